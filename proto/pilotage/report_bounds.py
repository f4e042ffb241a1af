"""What reports on attempts may hold: what the server checks, and what those who report keep their words within.

Rules
-----
The bounds stand here alone. `sound_*` take whatever a target, a node, a payload or a hook said, and return what may be
told: no text of theirs is worth a report that is refused.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from datetime import datetime

from pilotage.folding import fold
from pilotage.job_description import Scalar, Value
from pilotage.scalars import scalar_fault, text_fault

LONGEST_REASON = 2000
"""Characters of a reason or the name of a node; the server cuts what is longer."""

LONGEST_ROUTE_TEXT = 20_000
"""Characters of a text of a route, or of what finds a copy at its target; the server refuses what is longer."""

LATEST_S = 253_402_300_799
"""The last second of the year 9999; what lies after it, or before 1970, is no time."""

LARGEST_CODE = 2**31 - 1
"""The largest exit code or signal, of either sign."""

MOST_ATTRIBUTES = 64
"""So many attributes are told of a copy; the server refuses more."""

LARGEST_ATTRIBUTES = 16_384
"""Bytes of them all, of their names and texts, and 16 more for each value; the server refuses more."""

_BYTES_OF_A_VALUE = 16
"""No value but a text takes more on the wire."""

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_KEPT = "\n\t"
_UNSHOWN = frozenset({"Cc", "Cs"})
"""Categories of control characters and of halves of characters."""


def sound_text(text: str) -> str:
    """Return a text for people that can be shown and kept: cut, a question mark for what is no character to see."""
    if text.isascii() and text.isprintable():
        return text[:LONGEST_REASON]
    return "".join(map(_shown, text[:LONGEST_REASON]))


def _shown(character: str) -> str:
    return "?" if unicodedata.category(character) in _UNSHOWN and character not in _KEPT else character


def sound_reference(reference: str) -> str:
    """Return what finds a copy at its target as it is, "" where it cannot be told: it would find nothing if changed."""
    return "" if len(reference) > LONGEST_ROUTE_TEXT or text_fault(reference) else reference


def sound_amount(amount: float) -> float:
    """Return a number from 0 up, 0 where it is none."""
    return amount if math.isfinite(amount) and amount > 0 else 0.0


def sound_code(code: int | None) -> int | None:
    """Return an exit code or a signal that fits; one that is too large stays the largest, as it is no success."""
    return None if code is None else max(-LARGEST_CODE, min(code, LARGEST_CODE))


def sound_time(time: datetime | None) -> datetime | None:
    """Return an aware time, None where it cannot be one of ours."""
    return time if time is not None and 0 <= time.timestamp() <= LATEST_S else None


def sound_attributes(said: Mapping[str, object]) -> dict[str, Value]:
    """Return the attributes that can be told, in their order as many as there is room for.

    Those whose values are neither texts, numbers, truth values nor lists of these are left out, texts are cut; of
    names that are equal but for letter case the first counts.
    """
    sound: dict[str, Value] = {}
    names: set[str] = set()
    room = LARGEST_ATTRIBUTES
    for name, value in said.items():
        told = _sound_value(value)
        if told is None or not _NAME.fullmatch(name) or fold(name) in names or len(sound) == MOST_ATTRIBUTES:
            continue
        if (size := _size(name, told)) <= room:
            sound[name] = told
            names.add(fold(name))
            room -= size
    return sound


def attributes_fault(attributes: Mapping[str, Value]) -> str:
    """Return why attributes of a copy cannot be taken; empty = they can."""
    if len(attributes) > MOST_ATTRIBUTES:
        return f"are {len(attributes)}, and at most {MOST_ATTRIBUTES} may be told"
    size = sum(_size(name, value) for name, value in attributes.items())
    if size > LARGEST_ATTRIBUTES:
        return f"take {size} bytes, and at most {LARGEST_ATTRIBUTES} may be told"
    if odd := [name for name in attributes if not _NAME.fullmatch(name)]:
        return f'hold "{odd[0]}", which is no name of an attribute'
    if len({fold(name) for name in attributes}) < len(attributes):
        return "hold a name twice, in letters of another case"
    return ""


def _sound_value(value: object) -> Value | None:
    """Return a value as it can be told, None = it cannot."""
    if not isinstance(value, tuple):
        return _sound_scalar(value)
    scalars = tuple(each for each in map(_sound_scalar, value) if each is not None)
    return scalars if len(scalars) == len(value) else None


def _sound_scalar(value: object) -> Scalar | None:
    if isinstance(value, str):
        return sound_text(value)
    return value if isinstance(value, bool | int | float) and not scalar_fault(value) else None


def _size(name: str, value: Value) -> int:
    scalars = value if isinstance(value, tuple) else (value,)
    texts = [name, *(each for each in scalars if isinstance(each, str))]
    return _BYTES_OF_A_VALUE * len(scalars) + sum(len(text.encode()) for text in texts)
