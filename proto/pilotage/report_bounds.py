"""What reports on attempts may hold: what the server checks, and what those who report keep their words within.

Rules
-----
The bounds stand here alone. `sound_*` take whatever a target, a node or a payload said, and return what may be told:
no text of theirs is worth a report that is refused.
"""

from __future__ import annotations

import math
import unicodedata
from datetime import datetime

from pilotage.scalars import text_fault

LONGEST_REASON = 2000
"""Characters of a reason or the name of a node; the server cuts what is longer."""

LONGEST_ROUTE_TEXT = 20_000
"""Characters of a text of a route, or of what finds a copy at its target; the server refuses what is longer."""

LATEST_S = 253_402_300_799
"""The last second of the year 9999; what lies after it, or before 1970, is no time."""

LARGEST_CODE = 2**31 - 1
"""The largest exit code or signal, of either sign."""

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
