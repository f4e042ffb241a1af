"""Limits of reports on attempts: the server checks them, and senders cut their texts to them.

`sanitized_*` take any value from a target, a node, a payload or a hook, and return what a report may hold: no text is
worth a rejected report.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from datetime import datetime

from pilotage.job_description import Scalar, Value
from pilotage.text import fold, scalar_fault, text_fault

LONGEST_REASON = 2000
"""Characters of a reason or a node's name; the server cuts longer ones."""

LONGEST_ROUTE_TEXT = 20_000
"""Characters of a text of a route, or of a routed job's reference at its target; the server rejects longer ones."""

LATEST_S = 253_402_300_799
"""The last second of the year 9999; later times, and times before 1970, are invalid."""

LARGEST_CODE = 2**31 - 1
"""The largest exit code or signal, of either sign."""

MAX_ATTRIBUTES = 64
"""The server rejects reports on a routed job with more attributes."""

MAX_ATTRIBUTE_BYTES = 16_384
"""Bytes of all names and texts, plus 16 for each value; the server rejects more."""

_BYTES_OF_A_VALUE = 16
"""No value except a text takes more on the wire."""

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_KEPT = "\n\t"
_REPLACED_CATEGORIES = frozenset({"Cc", "Cs"})
"""Unicode categories of control characters and surrogates."""


def sanitized_text(text: str) -> str:
    """Return a text for people that can be shown and stored: cut, with a question mark for invisible characters."""
    if text.isascii() and text.isprintable():
        return text[:LONGEST_REASON]
    return "".join(map(_shown, text[:LONGEST_REASON]))


def _shown(character: str) -> str:
    return "?" if unicodedata.category(character) in _REPLACED_CATEGORIES and character not in _KEPT else character


def sanitized_reference(reference: str) -> str:
    """Return a reference unchanged, or "" if it cannot be sent: a changed one would find nothing."""
    return "" if len(reference) > LONGEST_ROUTE_TEXT or text_fault(reference) else reference


def sanitized_amount(amount: float) -> float:
    """Return the number if it is positive and finite, else 0."""
    return amount if math.isfinite(amount) and amount > 0 else 0.0


def sanitized_code(code: int | None) -> int | None:
    """Return an exit code or a signal within range; too large ones stay the largest, as they are no success."""
    return None if code is None else max(-LARGEST_CODE, min(code, LARGEST_CODE))


def sanitized_time(time: datetime | None) -> datetime | None:
    """Return an aware time, None if it is out of range."""
    return time if time is not None and 0 <= time.timestamp() <= LATEST_S else None


def sanitized_attributes(attributes: Mapping[str, object]) -> dict[str, Value]:
    """Return the valid attributes in their order, as many as the limits allow.

    Values that are neither texts, numbers, booleans nor lists of these are left out; texts are cut. Of names that
    differ only in letter case the first counts.
    """
    sanitized: dict[str, Value] = {}
    names: set[str] = set()
    room = MAX_ATTRIBUTE_BYTES
    for name, value in attributes.items():
        clean = _sanitized_value(value)
        if clean is None or not _NAME.fullmatch(name) or fold(name) in names or len(sanitized) == MAX_ATTRIBUTES:
            continue
        if (size := _size(name, clean)) <= room:
            sanitized[name] = clean
            names.add(fold(name))
            room -= size
    return sanitized


def attributes_fault(attributes: Mapping[str, Value]) -> str:
    """Return why attributes of a routed job are invalid; empty = they are valid."""
    if len(attributes) > MAX_ATTRIBUTES:
        return f"are {len(attributes)}, and at most {MAX_ATTRIBUTES} are allowed"
    size = sum(_size(name, value) for name, value in attributes.items())
    if size > MAX_ATTRIBUTE_BYTES:
        return f"take {size} bytes, and at most {MAX_ATTRIBUTE_BYTES} are allowed"
    if invalid := [name for name in attributes if not _NAME.fullmatch(name)]:
        return f'hold "{invalid[0]}", which is no name of an attribute'
    if len({fold(name) for name in attributes}) < len(attributes):
        return "hold a name twice, in letters of another case"
    return ""


def _sanitized_value(value: object) -> Value | None:
    """Return a value that can be sent, None = it cannot."""
    if not isinstance(value, tuple):
        return _sanitized_scalar(value)
    scalars = tuple(each for each in map(_sanitized_scalar, value) if each is not None)
    return scalars if len(scalars) == len(value) else None


def _sanitized_scalar(value: object) -> Scalar | None:
    if isinstance(value, str):
        return sanitized_text(value)
    return value if isinstance(value, bool | int | float) and not scalar_fault(value) else None


def _size(name: str, value: Value) -> int:
    scalars = value if isinstance(value, tuple) else (value,)
    texts = [name, *(each for each in scalars if isinstance(each, str))]
    return _BYTES_OF_A_VALUE * len(scalars) + sum(len(text.encode()) for text in texts)
