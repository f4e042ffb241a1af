"""Parts of slot ads, stored by key, so that a pilot sends each part once.

The key of a part is the SHA-256 of its text, so a pilot cannot replace another's part. Pilots send missing parts again,
so the store is bounded in number and size and removes the least recently used parts.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from pilotage.classads.evaluation import Ad
from pilotage.classads.library import AdValue, InvalidClassAdError
from pilotage.text import fold
from pilotage.values.offers import MAX_PART_BYTES, check_part
from pilotage_server.core.classads.views import are_literals, expression_texts

MOST_PARTS = 20_000
MOST_BYTES = 64 * 1024 * 1024
LONGEST_EXPRESSION = 16 * 1024
"""Characters of one expression in an ad; site policies are far shorter."""

MAX_ATTRIBUTES = 5000
"""Attributes of one part; those of a node whose hundreds of slots show each other their states are fewer."""

MAX_EXPRESSION_CHARACTERS = 128 * 1024
"""Characters of all expressions in one part."""

MAX_COMMAS = 20_000
"""Commas in one part that has more than literals: about the elements of its lists, each of which becomes a value."""

_OF_AN_ATTRIBUTE = 200
"""Bytes that an attribute takes in memory beside its text."""


_LITERAL = re.compile(r'(0|[1-9][0-9]{0,17})|((?:0|[1-9][0-9]{0,9})\.[0-9]{1,9})|"([^"\\\n]*)"|(true|false)')
_VALUES: tuple[Callable[[str], AdValue], ...] = (str, int, float, lambda text: text[1:-1], "true".__eq__)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = frozenset({"error", "false", "is", "isnt", "parent", "true", "undefined"})


class ParsedAdPart:
    """A part of slot ads: attributes by folded name; `fault` = why it is unusable, "" = usable.

    `size` = its approximate size in memory, in bytes.
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
        """Whether no value is an expression."""
        return are_literals(self.attributes.values())


class AdPartStore:
    """The stored parts, least recently used first."""

    def __init__(self, most: int = MOST_PARTS, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._parts: OrderedDict[str, ParsedAdPart] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, key: str, text: str) -> None:
        """Store a part; raises InvalidInputError where the text does not match the key or is too large."""
        if key in self._parts:
            self._parts.move_to_end(key)
            return
        check_part(key, text)
        part = self._parts[key] = ParsedAdPart(text)
        self._bytes += part.size
        while len(self._parts) > self._most or self._bytes > self._most_bytes:
            _, removed = self._parts.popitem(last=False)
            self._bytes -= removed.size

    def missing(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Return the keys without a part, in order."""
        return tuple(key for key in keys if key not in self._parts)

    def get(self, key: str) -> ParsedAdPart:
        """Return a part that is not missing."""
        self._parts.move_to_end(key)
        return self._parts[key]


def ad_attributes(text: str) -> dict[str, AdValue]:
    """Return the attributes of an ad by folded name; raises InvalidClassAdError."""
    if len(text) > MAX_PART_BYTES:
        raise InvalidClassAdError(f"it has {len(text)} characters, at most {MAX_PART_BYTES} are allowed")
    literals = _literals(text)
    if literals is not None:
        _check_size(literals)
        return literals
    if text.count(",") > MAX_COMMAS:
        raise InvalidClassAdError(f"it has more than {MAX_COMMAS} commas, and so too many elements of lists")
    attributes = {fold(name): value for name, value in Ad.read(text).plain().items()}
    _check_size(attributes)
    return attributes


def _check_size(attributes: Mapping[str, AdValue]) -> None:
    """Raise InvalidClassAdError for too many attributes, or for expressions that are too long, each or together."""
    if len(attributes) > MAX_ATTRIBUTES:
        raise InvalidClassAdError(f"it has {len(attributes)} attributes, at most {MAX_ATTRIBUTES} are allowed")
    total = 0
    for name, value in attributes.items():
        for expression in expression_texts([value]):
            total += len(expression)
            if len(expression) > LONGEST_EXPRESSION:
                raise InvalidClassAdError(f"{name} is longer than the {LONGEST_EXPRESSION} characters of an expression")
    if total > MAX_EXPRESSION_CHARACTERS:
        raise InvalidClassAdError(
            f"its expressions have {total} characters, at most {MAX_EXPRESSION_CHARACTERS} are allowed"
        )


def _literals(text: str) -> dict[str, AdValue] | None:
    """Return the attributes of an ad of plain literals, by folded name; None = it may hold something else.

    Pilots report changing values such as loads and times in this form, and the ClassAd library is far slower.
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
    """Return the folded name; "" = not a valid plain attribute name."""
    folded = fold(name)
    return folded if _NAME.fullmatch(name) and folded not in _RESERVED else ""
