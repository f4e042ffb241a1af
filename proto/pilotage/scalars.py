"""What a single value or a name may hold at all, wherever it comes from.

Rules
-----
Whatever is refused here could not be stored in some database or sent over the wire.
"""

from __future__ import annotations

import math

from pilotage.job_description import Scalar

SMALLEST_INTEGER, LARGEST_INTEGER = -(2**63), 2**63 - 1


def scalar_fault(value: Scalar) -> str:
    """Return why `value` cannot be taken; empty = it can."""
    match value:
        case bool():
            return ""
        case int():
            fits = SMALLEST_INTEGER <= value <= LARGEST_INTEGER
            return "" if fits else f"an integer of {value.bit_length()} bits does not fit in 64"
        case float():
            return "" if math.isfinite(value) else f"{value} is not a finite number"
        case str():
            return text_fault(value)


def text_fault(text: str) -> str:
    """Return why `text` cannot be taken; empty = it can."""
    if "\0" in text:
        return "holds a NUL character"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return "holds half of a character (a lone surrogate)"
    return ""
