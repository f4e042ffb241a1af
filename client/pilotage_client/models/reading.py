"""Messages of the server → values: a value has the fields of its message, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from pilotage.accounts import Quota
from pilotage.errors import InvalidInputError, Violation
from pilotage.job_description import Value
from pilotage.resources.queue_id import QueueId
from pilotage.rpc.wire import quota_from_wire, section_from_wire, time_from_wire, time_to_wire
from pilotage.text import did_you_mean
from pilotage.v1 import values_pb2
from pilotage_client.models.jobs import JobStatus, iso, job_status, time_of

ServerValue = TypeVar("ServerValue")
_Reader = Callable[[Message, str], Any]


def value_of(kind: type[ServerValue], message: Message, /, **given: Any) -> ServerValue:
    """Return the value of a message: each field that is not given is that of the message with the same name.

    A field that may be None is None where the message does not have it.
    """
    readers = _readers(kind, frozenset(given))  # type: ignore[arg-type]  # mypy takes the hash of its instances
    return kind(**{name: reader(message, name) for name, reader in readers}, **given)


def queue_parts(queue: values_pb2.QueueId) -> dict[str, str]:
    """Return the fields `site`, `ce` and `queue`; empty texts = the message names none."""
    return {"site": queue.site, "ce": queue.ce, "queue": queue.queue}


def enum_name(message: Message, field: str, prefix: str) -> str:
    """Return the name of a field's number, in lower case and without the protocol's prefix; "" = not set."""
    number, enum = getattr(message, field), message.DESCRIPTOR.fields_by_name[field].enum_type
    assert enum is not None, f"{field} is no enumeration"
    return enum.values_by_number[number].name.removeprefix(prefix).lower() if number else ""


def one_of(where: str, name: str, known: Sequence[str]) -> str:
    """Return the name; raises InvalidInputError if it is not one of the known ones."""
    if name not in known:
        raise InvalidInputError(Violation(where, f"{name} is none of {', '.join(known)}{did_you_mean(name, known)}"))
    return name


def listed(where: str, names: Iterable[str]) -> Iterable[str]:
    """Return names of a list; raises InvalidInputError for a text alone, whose letters would be the names."""
    if isinstance(names, str):
        raise InvalidInputError(Violation(where, f"must be a list such as [{names!r}], not a text alone"))
    return names


def moment_to_wire(where: str, time: datetime | None) -> Timestamp | None:
    """Return the message of a time, None = none; raises InvalidInputError if it has no time zone."""
    if time is not None and time.tzinfo is None:
        why = "has no time zone: add tzinfo=UTC, or call astimezone() if it is a local time"
        raise InvalidInputError(Violation(where, f"{time} {why}"))
    return time_to_wire(time)


class AsJson:
    """A value with the keys that scripts depend on."""

    __slots__ = ()

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys; times as RFC 3339, missing values as None."""
        return _plain_fields(self)

    def _renamed(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Return the keys with other names for some fields."""
        return {names.get(name, name): value for name, value in _plain_fields(self).items()}


def plain(value: Any) -> Any:
    """Return a field's value as JSON has it."""
    match value:
        case datetime():
            return iso(value)
        case AsJson() | JobStatus():
            return value.as_json()
        case QueueId() | Quota():
            return str(value)
        case tuple():
            return [plain(each) for each in value]
        case Mapping():
            return {name: plain(each) for name, each in value.items()}
        case _ if is_dataclass(value):
            return _plain_fields(value)
        case _:
            return None if value == "" else value


def _plain_fields(value: Any) -> dict[str, Any]:
    return {each.name: plain(getattr(value, each.name)) for each in fields(value)}


@cache
def _readers(kind: Any, given: frozenset[str]) -> list[tuple[str, _Reader]]:
    hints = get_type_hints(kind)
    return [(each.name, _reader(hints[each.name])) for each in fields(kind) if each.name not in given]


def _reader(hint: Any) -> _Reader:
    if hint == datetime | None:
        return time_of
    if get_origin(hint) is UnionType:
        (inner,) = set(get_args(hint)) - {NoneType}
        return partial(_read_optional, convert=_converter(inner))
    if get_origin(hint) is tuple:
        return partial(_read_repeated, convert=_converter(get_args(hint)[0]))
    return partial(_read, convert=_converter(hint))


def _converter(hint: Any) -> Callable[[Any], Any]:
    if hint == Mapping[str, Value]:
        return lambda section: dict(sorted(section_from_wire(section).items()))
    if hint == Mapping[str, str]:
        return lambda texts: dict(sorted(texts.items()))
    if hint is JobStatus:
        return job_status
    if hint is datetime:
        return time_from_wire
    if hint is QueueId:
        return lambda queue: QueueId(queue.site, queue.ce, queue.queue)
    if hint is Quota:
        return quota_from_wire
    if is_dataclass(hint):
        return lambda message: value_of(hint, message)  # type: ignore[arg-type]
    assert hint in (str, int, float, bool), f"{hint} is no type of a message's field"
    return lambda value: value


def _read(message: Message, field: str, convert: Callable[[Any], Any]) -> Any:
    return convert(getattr(message, field))


def _read_optional(message: Message, field: str, convert: Callable[[Any], Any]) -> Any:
    return convert(getattr(message, field)) if message.HasField(field) else None


def _read_repeated(message: Message, field: str, convert: Callable[[Any], Any]) -> tuple[Any, ...]:
    return tuple(map(convert, getattr(message, field)))
