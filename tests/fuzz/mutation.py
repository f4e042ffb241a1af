"""Random values: texts, bytes and messages of the protocol, made from hostile and from valid parts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

DEEPEST = 4
LARGEST = 20_000

INTEGERS = (0, 1, 2, 3, -1, 7, 100, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**32)
FLOATS = (0.0, 1.0, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"), 0.5)
PIECES = (
    *(
        "",
        "a",
        "slot1",
        "SITE",
        "ce1",
        "long",
        "alice",
        "\0",
        "\n",
        "é",
        "💥",
        "\ud7ff",
        "../../etc/passwd",
        "{}",
        "[]",
    ),
    *(
        "true",
        "Infinity",
        "NaN",
        "1e999",
        "9" * 50,
        "-1",
        '"',
        "'",
        "\\",
        "$(",
        "$(Process)",
        "${",
        "%s",
        "#",
        ";",
        "=",
    ),
    *("[" * 200, "(" * 200, "{" * 200, '{"a":' * 100, "eval(S1)", "START = True", "strcat(", 'regexp("(a+)+$", S)'),
    *("MY.Rank", "TARGET.Cpus", "ifThenElse(", "time()", "1 + ", " && ", " || ", "=?=", "queue 3", "include :"),
    *("if true", "A = 1;", 'Executable = "x";', "[[jobs]]", 'executable = "/bin/true"', "sites", "queues", "Memory"),
    *("500 MiB", "&a", "*a", "!!python/object:os.system", "<<: ", "SLOT_TYPE_1 = 100%", "JOB_ROUTER_ROUTE_NAMES = a"),
)


class Mutator:
    """Makes random inputs; equal seeds make equal inputs. `words` are values that the running system knows."""

    def __init__(self, seed: object, words: Sequence[str] = ()) -> None:
        self.random = random.Random(repr(seed))
        self._words = words

    def text(self) -> str:
        """Return a text of hostile pieces, or one that the system knows."""
        dice = self.random.random()
        if self._words and dice < 0.4:
            return self.random.choice(self._words)
        if dice < 0.45:
            return self.random.choice(PIECES) * self.random.randrange(200)
        return "".join(self.random.choices(PIECES, k=self.random.randrange(4)))[:LARGEST]

    def mutated(self, content: bytes) -> bytes:
        """Return the content with some bytes changed, removed, repeated or added."""
        parts = bytearray(content)
        for _ in range(self.random.randrange(1, 6)):
            at = self.random.randrange(len(parts) + 1)
            end = at + self.random.randrange(20)
            match self.random.randrange(5):
                case 0 if at < len(parts):
                    parts[at] = self.random.randrange(256)
                case 1:
                    del parts[at:end]
                case 2:
                    parts[at:at] = parts[at:end] * self.random.randrange(50)
                case 3:
                    parts[at:at] = self.random.choice(PIECES).encode("utf-8", "surrogatepass")
                case _:
                    parts[at:end] = self.random.randbytes(end - at)
        return bytes(parts[:LARGEST])

    def content(self, message: Message) -> bytes:
        """Return the bytes of a message; a part of them are changed, and are no message then."""
        content = message.SerializeToString()
        return self.mutated(content) if self.random.random() < 0.2 else content

    def change(self, message: Message) -> None:
        """Give one field of the message, or of one inside it, a random value."""
        while True:
            fields: Any = message.DESCRIPTOR.fields
            field: FieldDescriptor = self.random.choice(fields)
            inner = field.message_type
            if inner is None or inner.GetOptions().map_entry or self.random.random() < 0.3:
                break
            value = getattr(message, field.name)
            if field.is_repeated and not value:
                break
            message = self.random.choice(value) if field.is_repeated else value
            if not message.DESCRIPTOR.fields:
                return
        message.ClearField(field.name)
        self._fill(message, field, DEEPEST)

    def message(self, descriptor: Descriptor, depth: int = DEEPEST) -> Message:
        """Return a message with random fields."""
        message: Message = GetMessageClass(descriptor)()
        for field in descriptor.fields:
            if self.random.random() < 0.6:
                self._fill(message, field, depth)
        return message

    def _fill(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        count = self.random.choice((0, 1, 1, 1, 2, 3)) if field.is_repeated else 1
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            self._fill_map(getattr(message, field.name), inner, count, depth)
        elif inner is not None:
            for _ in range(count if depth else 0):
                target = getattr(message, field.name)
                (target.add() if field.is_repeated else target).CopyFrom(self.message(inner, depth - 1))
        elif field.is_repeated:
            getattr(message, field.name).extend(self._scalar(field) for _ in range(count))
        else:
            setattr(message, field.name, self._scalar(field))

    def _fill_map(self, target: Any, entry: Descriptor, count: int, depth: int) -> None:
        value = entry.fields_by_name["value"]
        for _ in range(count if depth else 0):
            key = self._scalar(entry.fields_by_name["key"])
            if value.message_type is None:
                target[key] = self._scalar(value)
            else:
                target[key].CopyFrom(self.message(value.message_type, depth - 1))

    def _scalar(self, field: FieldDescriptor) -> Any:
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
                return self.random.randbytes(self.random.randrange(40))
            case FieldDescriptor.CPPTYPE_STRING:
                name = f"{self.random.getrandbits(64):x}"
                return name if field.name == "request_id" and self.random.random() < 0.9 else self.text()
            case FieldDescriptor.CPPTYPE_BOOL:
                return self.random.random() < 0.5
            case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
                return self.random.choice(FLOATS)
            case FieldDescriptor.CPPTYPE_ENUM:
                known = () if field.enum_type is None else field.enum_type.values_by_number
                return self.random.choice([*known, 77])
            case FieldDescriptor.CPPTYPE_INT32:
                return self.random.choice([each for each in INTEGERS if -(2**31) <= each < 2**31])
            case FieldDescriptor.CPPTYPE_UINT32 | FieldDescriptor.CPPTYPE_UINT64:
                return self.random.choice([each for each in INTEGERS if 0 <= each < 2**32])
            case _:
                return self.random.choice(INTEGERS)
