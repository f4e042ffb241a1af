"""Checks of single values and names, the folded form in which they are compared, and numbers with nouns.

- A value is rejected here if some database could not store it or the wire could not carry it.
- Letter case carries no meaning: names and texts are compared in folded form. What people typed is kept for showing.
  Unicode guarantees that the case folding of an assigned character never changes, so folded text may be hashed and
  stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pilotage.errors import InvalidInputError, Violation

if TYPE_CHECKING:
    from pilotage.job_description import Scalar, Value

SMALLEST_INTEGER, LARGEST_INTEGER = -(2**63), 2**63 - 1


def scalar_fault(value: Scalar) -> str:
    """Return why `value` is invalid; empty = it is valid."""
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


def given_value(value: object) -> Value:
    """Return a value that a program has given: a list or set becomes a tuple, a set in sorted order.

    Raises
    ------
    InvalidInputError
        It is neither a number, a text, true or false, nor a list of these.
    """
    if isinstance(value, bool | int | float | str):
        return value
    elements = tuple(value) if isinstance(value, list | tuple | AbstractSet) else (None,)
    if not all(isinstance(each, bool | int | float | str) for each in elements):
        why = f"{value!r:.60} is neither a number, a text, true or false, nor a list of these"
        raise InvalidInputError(Violation("", why))
    return tuple(sorted(elements, key=_by_kind)) if isinstance(value, AbstractSet) else elements


def _by_kind(value: Scalar) -> tuple[bool, Scalar]:
    """Return a key that sorts numbers before texts, which cannot be compared with one another."""
    return isinstance(value, str), value


def text_fault(text: str) -> str:
    """Return why `text` is invalid; empty = it is valid."""
    if "\0" in text:
        return "holds a NUL character"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return "holds half of a character (a lone surrogate)"
    return ""


def fold(text: str) -> str:
    """Return `text` for comparison; texts that differ only in letter case fold to the same."""
    return text.casefold()


def folded_set(texts: Iterable[str]) -> frozenset[str]:
    """Return the distinct folded forms of `texts`."""
    return frozenset(fold(text) for text in texts)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" with the known name most like a word in any letter case; "" = none is like it."""
    spelled = {fold(name): name for name in known}
    near = get_close_matches(fold(word), spelled, n=1)
    return f"; did you mean {spelled[near[0]]}?" if near else ""


def count_text(number: int, noun: str, nouns: str = "") -> str:
    """Return a number with its noun: "1 job", "2,000 jobs"; `nouns` is another plural than with an s."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"
