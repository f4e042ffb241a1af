"""Amounts and their units: sizes in MiB, times in seconds, from numbers or from text such as "1.5 GB".

- KB, MB, GB, TB are powers of 1024 (as in condor_submit). A plain number has the base unit.
- Amounts are exact, and int wherever they are whole, so that 4000 = 4000.0 = "4000 MB".
- `amount_of` never raises, as evaluation must not; the `parse_…` functions read input of people and raise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import NoReturn

from pilotage.errors import InvalidRequirementsError, Violation
from pilotage.text import fold

Amount = int | float
"""A finite number; int wherever it is whole."""

LARGEST_COUNT = 2**31 - 1
"""The largest whole number in input: of cores, of jobs, as a priority."""

_LARGEST_SIZE_MIB = 2**63 - 1
_LONGEST_TIME_S = 10**10
_LONGEST_AMOUNT = 64
_UNIT_CACHE_SIZE = 64
_EXACT_BITS = 1000  # longer numbers do not fit in a float, and their fraction is meaningless
_AMOUNT = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Measure:
    """The kind of amount that units belong to: its base unit, and the size of each unit in base units."""

    name: str
    base: str
    factors: Mapping[str, Fraction]


def _sizes() -> Mapping[str, Fraction]:
    factors = {"b": Fraction(1, 1024**2)}
    for power, letter in enumerate("kmgtp", start=-1):
        factors |= dict.fromkeys((letter, f"{letter}b", f"{letter}ib"), Fraction(1024) ** power)
    return MappingProxyType(factors)


def _times() -> Mapping[str, Fraction]:
    seconds = {
        1: ("s", "sec", "secs", "second", "seconds"),
        60: ("m", "min", "mins", "minute", "minutes"),
        3600: ("h", "hour", "hours"),
        86400: ("d", "day", "days"),
        7 * 86400: ("w", "week", "weeks"),
    }
    return MappingProxyType({unit: Fraction(length) for length, units in seconds.items() for unit in units})


SIZE = Measure("size", "MiB", _sizes())
TIME = Measure("time", "s", _times())


@dataclass(frozen=True, slots=True)
class NotAnAmount:
    """A value that cannot be compared as a number; `why` completes "it is …"."""

    why: str


def measure_of(unit: str | None) -> Measure | None:
    """Return the measure of `unit`; None = a bare number, or a unit that is only a label.

    "m" is a size; a parameter in minutes has the unit "min".
    """
    for measure in (SIZE, TIME):
        if unit is not None and fold(unit) in measure.factors:
            return measure
    return None


def amount_of(value: object, unit: str | None = None) -> Amount | NotAnAmount:
    """Return `value` in the base unit of `unit`'s measure, or why it is no amount.

    A number, and a text without a unit, is taken in `unit`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return NotAnAmount("not a number")
    if isinstance(value, str):
        return _amount_of_text(value, unit)
    if isinstance(value, float) and not math.isfinite(value):
        return NotAnAmount("not a finite number")
    factor = _factor(unit)
    if factor == 1:  # most amounts are plain numbers, and a tree has many
        return value if isinstance(value, float) and not value.is_integer() else int(value)
    # A float stands for the decimal that people see, so that 0.1 and "0.1" are the same amount.
    is_whole = isinstance(value, int) or value.is_integer()
    return _plain((Fraction(int(value)) if is_whole else Fraction(repr(value))) * factor)


def _amount_of_text(text: str, unit: str | None) -> Amount | NotAnAmount:
    found = _AMOUNT.fullmatch(text) if len(text) <= _LONGEST_AMOUNT else None
    if found is None:
        return NotAnAmount("not a number")
    digits, own_unit = found.groups()
    if not own_unit:
        return _plain(Fraction(digits) * _factor(unit))
    measure = measure_of(unit)
    if measure is None:
        return NotAnAmount("not a plain number")
    factor = measure.factors.get(fold(own_unit))
    if factor is None:
        return NotAnAmount(f"not a {measure.name}: there is no unit {own_unit}")
    return _plain(Fraction(digits) * factor)


@lru_cache(_UNIT_CACHE_SIZE)
def _factor(unit: str | None) -> Fraction:
    measure = measure_of(unit)
    return measure.factors[fold(unit)] if measure is not None and unit is not None else Fraction(1)


_SHOWN = {"MiB": ("TB", "GB"), "s": ("d", "h", "min")}


def amount_text(amount: Amount, unit: str | None) -> str:
    """Return an amount in the base unit of `unit`'s measure as text that `amount_of` reads, such as "60 GB".

    It is in the largest unit in which it is whole.
    """
    measure = measure_of(unit)
    if measure is None:
        return str(amount)
    for larger in _SHOWN[measure.base]:
        whole, rest = divmod(amount, measure.factors[fold(larger)])
        if whole and not rest:
            return f"{whole} {larger}"
    return f"{amount} {measure.base}"


def _plain(amount: Fraction) -> Amount:
    if amount.denominator == 1 or amount.numerator.bit_length() > _EXACT_BITS:
        return round(amount)
    number = float(amount)
    return int(number) if number.is_integer() else number


def parse_size(value: object, where: str = "") -> Amount:
    """Return a size in MiB.

    Raises
    ------
    InvalidRequirementsError
        For a value that is no size, negative, not finite or too large; `where` is the field to blame.
    """
    return _parse(value, SIZE, _LARGEST_SIZE_MIB, where)


def parse_size_mib(value: object, where: str = "") -> int:
    """Return a size in whole MiB, rounded up; raises as `parse_size`."""
    return math.ceil(parse_size(value, where))


def parse_time(value: object, where: str = "") -> Amount:
    """Return a time in seconds, at most about 317 years; raises as `parse_size`."""
    return _parse(value, TIME, _LONGEST_TIME_S, where)


def parse_duration(value: object, where: str = "") -> timedelta:
    """Return a duration; raises as `parse_size`."""
    return timedelta(seconds=parse_time(value, where))


def parse_whole_number(value: object, where: str = "", *, least: int = -LARGEST_COUNT) -> int:
    """Return a whole number from `least` to LARGEST_COUNT, also from text; raises as `parse_size`."""
    number = amount_of(value)
    if not isinstance(number, int):
        _fail(value, where, "not a whole number")
    if number < least:
        _fail(value, where, f"less than {least}")
    if number > LARGEST_COUNT:
        _fail(value, where, f"more than {LARGEST_COUNT}")
    return number


def _parse(value: object, measure: Measure, largest: int, where: str) -> Amount:
    amount = amount_of(value, measure.base)
    if isinstance(amount, NotAnAmount):
        _fail(value, where, amount.why)
    if amount < 0:
        _fail(value, where, "negative")
    if amount > largest:
        _fail(value, where, f"more than {largest} {measure.base}")
    return amount


def _fail(value: object, where: str, why: str) -> NoReturn:
    raise InvalidRequirementsError(Violation(where, f"{value!r:.60} is {why}"))
