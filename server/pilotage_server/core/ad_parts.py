"""The parts that slots' ads are made of, kept by their keys, so that pilots bring each of them once.

Rules
-----
The key of a part is the SHA-256 of its text, so whoever brings a part cannot change another's. What is not here
may be asked for again, so the longest unused are forgotten: the store is bounded in number and in size.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from pilotage.classad_evaluation import Ad
from pilotage.classads import AdValue, InvalidClassAdError
from pilotage.errors import InvalidInputError, Violation
from pilotage.folding import fold
from pilotage_server.core.expression_reach import are_literals, expression_texts

MOST_PARTS = 20_000
MOST_BYTES = 64 * 1024 * 1024
LARGEST_PART = 256 * 1024
"""Bytes of one part; an ad of a node with hundreds of slots is far smaller."""

LONGEST_EXPRESSION = 16 * 1024
"""Characters of one expression in an ad; policies as sites write them are far shorter."""

_OF_AN_ATTRIBUTE = 200
"""Bytes that it takes to keep an attribute beside its text."""


_LITERAL = re.compile(r'(0|[1-9][0-9]{0,17})|((?:0|[1-9][0-9]{0,9})\.[0-9]{1,9})|"([^"\\\n]*)"|(true|false)')
_VALUES: tuple[Callable[[str], AdValue], ...] = (str, int, float, lambda text: text[1:-1], "true".__eq__)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = frozenset({"error", "false", "is", "isnt", "parent", "true", "undefined"})


class AdPart:
    """A part of slots' ads: its attributes by folded name; `fault` = why it cannot be used, "" = it can.

    `size` = about how many bytes it takes to keep it.
    """

    __slots__ = ("attributes", "fault", "size")

    def __init__(self, text: str) -> None:
        self.attributes: Mapping[str, AdValue] = {}
        self.fault = ""
        try:
            self.attributes = ad_attributes(text)
        except InvalidClassAdError as error:
            self.fault = "; ".join(violation.why for violation in error.violations)
        self.size = len(text) + _OF_AN_ATTRIBUTE * len(self.attributes)

    @property
    def is_plain(self) -> bool:
        """Whether nothing in it is an expression."""
        return are_literals(self.attributes.values())


class AdParts:
    """The parts that were brought, the longest unused first."""

    def __init__(self, most: int = MOST_PARTS, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._parts: OrderedDict[str, AdPart] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._parts)

    def take_in(self, key: str, text: str) -> None:
        """Keep a part; raises InvalidInputError where it is not that of the key, or larger than parts may be."""
        if key in self._parts:
            self._parts.move_to_end(key)
            return
        check_part(key, text)
        part = self._parts[key] = AdPart(text)
        self._bytes += part.size
        while len(self._parts) > self._most or self._bytes > self._most_bytes:
            _, forgotten = self._parts.popitem(last=False)
            self._bytes -= forgotten.size

    def missing(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Return those of the keys of which there is no part, in their order."""
        return tuple(key for key in keys if key not in self._parts)

    def part(self, key: str) -> AdPart:
        """Return a part that is not missing."""
        self._parts.move_to_end(key)
        return self._parts[key]


def check_part(key: str, text: str) -> None:
    """Raise InvalidInputError unless the text may be a part with that key."""
    encoded = text.encode()
    if len(encoded) > LARGEST_PART:
        raise InvalidInputError(Violation("text", f"has {len(encoded)} bytes, at most {LARGEST_PART} are allowed"))
    if hashlib.sha256(encoded).hexdigest() != key:
        raise InvalidInputError(Violation("key", "is not the SHA-256 of the text"))


def ad_attributes(text: str) -> dict[str, AdValue]:
    """Return what an ad says, by folded name; raises InvalidClassAdError."""
    if len(text) > LARGEST_PART:
        raise InvalidClassAdError(f"it has {len(text)} characters, at most {LARGEST_PART} are allowed")
    literals = _literals(text)
    if literals is not None:
        return literals
    attributes = {fold(name): value for name, value in Ad.read(text).plain().items()}
    for name, value in attributes.items():
        if any(len(expression) > LONGEST_EXPRESSION for expression in expression_texts([value])):
            raise InvalidClassAdError(f"{name} is longer than the {LONGEST_EXPRESSION} characters of an expression")
    return attributes


def _literals(text: str) -> dict[str, AdValue] | None:
    """Return what an ad of nothing but plain literals says, by folded name; None = it may hold something else.

    Slots tell so what is another each time, loads and times, and the ClassAd library takes far longer to read it.
    """
    if not text.isascii() or text[:1] != "[" or text[-1:] != "]":
        return None
    found: dict[str, AdValue] = {}
    for part in text[1:-1].split("; "):
        name, _, literal = part.partition(" = ")
        folded, value = _plain_name(name), _LITERAL.fullmatch(literal)
        if not folded or value is None or folded in found:
            return None
        found[folded] = _VALUES[value.lastindex or 0](literal)
    return found


@lru_cache(maxsize=MOST_PARTS)
def _plain_name(name: str) -> str:
    """Return a name folded; "" = it may not stand for an attribute as it is."""
    folded = fold(name)
    return folded if _NAME.fullmatch(name) and folded not in _RESERVED else ""
