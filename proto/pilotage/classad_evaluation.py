"""Evaluates ClassAd expressions in the scopes of two ads, by HTCondor's rules and on its library.

Names without a scope are looked for in MY and then in TARGET. Time is an attribute of the ads (MyCurrentTime),
never the machine's clock. What comes out is a value, or one of the two that are none; only `True` itself is true.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeAlias

from pilotage.classad_bounds import bounds_fault
from pilotage.classad_patterns import framed, pattern_calls, unframed
from pilotage.classad_text import ad_fault, calls, with_time_from
from pilotage.classads import (
    AdValue,
    Expression,
    InvalidClassAdError,
    check_expression,
    classad_library,
    library_failures,
    plain_value,
    quoted,
)
from pilotage.job_description import Scalar
from pilotage.scalars import text_fault

CURRENT_TIME = "MyCurrentTime"
"""The attribute that says what time it is, in seconds since 1970."""

_REMEMBERED_EXPRESSIONS = 4096
_REMEMBERED_ADS = 256
_FLAT_NAME = r"""[^][{}()"'/\\;=]++"""
_FLAT_VALUE = r"""=\s*+(?:"[^"\\\n]*+"\s*+|[^][{}()"'/\\;=]*+)"""
_FLAT_AD = re.compile(rf"\s*+\[\s*+(?:{_FLAT_NAME}{_FLAT_VALUE}(?:;{_FLAT_NAME}{_FLAT_VALUE})*+)?+(?:;\s*+)?+\]\s*+")
"""An ad of plain values alone, the outline of which is whole; so are most that come often."""

_SMALLEST_INTEGER, _LARGEST_INTEGER = -(2**63), 2**63 - 1


class NoValue(Enum):
    """What an expression evaluates to when it has no value; both are no, whatever the question was."""

    UNDEFINED = "undefined"
    ERROR = "error"


Result: TypeAlias = Scalar | NoValue | Expression
"""What an expression evaluates to; lists, ads and times come as their text."""


@dataclass(frozen=True, slots=True)
class CompiledExpression:
    """An expression that is ready to be evaluated, many times and in any ads; `text` is how it was written."""

    text: str
    tree: Any


class RandomFunctionError(InvalidClassAdError):
    """The expression would evaluate differently each time."""

    def __init__(self) -> None:
        super().__init__("random functions are not allowed here: the same question must get the same answer")


@lru_cache(maxsize=_REMEMBERED_EXPRESSIONS)
def compile_expression(text: str, *, refuse_random: bool = False) -> CompiledExpression:
    """Return the expression `text`, in the ClassAd language's own syntax, with time read from `CURRENT_TIME`.

    Raises
    ------
    InvalidClassAdError
        When it is not exactly one expression, or calls a random function and may not.
    """
    if refuse_random and "random" in calls(text):
        raise RandomFunctionError
    timed = with_time_from(CURRENT_TIME, text)
    check_expression(timed)
    # Brackets, and a line end for a comment at its end: the whole text is one expression.
    return CompiledExpression(text, classad_library().ExprTree(f"({framed(timed)}\n)"))


class Ad:
    """A ClassAd to evaluate in: names are case-insensitive, values may be expressions over the ad itself."""

    def __init__(self, attributes: Mapping[str, AdValue]) -> None:
        self._ad = classad_library().ClassAd()
        for name, value in attributes.items():
            self.set(name, value)

    @classmethod
    def read(cls, text: str) -> Ad:
        """Return the ad that `text`, in the ClassAd language's own syntax, says; raises InvalidClassAdError."""
        ad = cls({})
        ad.update(text)
        return ad

    def set(self, name: str, value: AdValue) -> None:
        """Give the attribute `name` a value; raises InvalidClassAdError for what an ad cannot hold."""
        self._ad[name] = _for_library(value)

    def update(self, text: str) -> None:
        """Take in all that the ad `text` says; raises InvalidClassAdError."""
        with _texts_are_characters():
            self._ad.update(_parsed_ad(text))

    def discard(self, name: str) -> None:
        """Take the attribute `name` out, if it is there."""
        self._ad.pop(name, None)

    def copy(self) -> Ad:
        """Return an ad of its own that says the same."""
        copied = Ad({})
        copied.library_ad.update(self._ad)
        return copied

    def value(self, name: str) -> Result:
        """Return what the attribute `name` evaluates to inside the ad; undefined where it is not there."""
        if name not in self._ad:
            return NoValue.UNDEFINED
        try:
            return _result(self._ad.eval(name))
        except library_failures():
            return NoValue.ERROR

    def plain(self) -> dict[str, AdValue]:
        """Return all attributes, literals as values and the rest as expressions."""
        return {name: plain_value(self._ad[name]) for name in self._ad}

    @property
    def library_ad(self) -> Any:
        """The library's own ad."""
        return self._ad


def evaluate(expression: CompiledExpression, my: Ad, target: Ad | None = None) -> Result:
    """Return what `expression` evaluates to with MY and TARGET as given; without a TARGET its names are undefined.

    What the library cannot evaluate, such as a chain of hundreds of operators, is an error like any other.
    """
    try:
        if target is None:
            return _result(expression.tree.eval(my.library_ad))
        return _result(expression.tree.eval(my.library_ad, target.library_ad))
    except library_failures():
        return NoValue.ERROR


def bounded(text: str) -> CompiledExpression:
    """Return a user's expression, bounded in size, in work and free of chance; raises InvalidClassAdError."""
    fault = bounds_fault(text)
    if fault is not None:
        raise InvalidClassAdError(fault)
    compiled = compile_expression(text, refuse_random=True)
    _check_patterns(text)
    try:
        with _texts_are_characters():
            compiled.tree.eval(classad_library().ClassAd())
    except classad_library().ClassAdException as error:
        raise InvalidClassAdError("it joins more by operators than can be evaluated") from error
    return compiled


def _check_patterns(text: str) -> None:
    """Raise InvalidClassAdError for a pattern that is none by itself: its brackets could leave its frame."""
    for call in pattern_calls(text):
        pattern, options = call.arguments[0][0].text, "".join(f", {token.text}" for token in call.options)
        # What stands before it is found at once in nothing: whether the pattern can be read is all that is asked.
        alone = classad_library().ExprTree(f'regexp(strcat("(?:)|", {pattern}), ""{options})')
        in_frame = classad_library().ExprTree(framed(f'regexp({pattern}, ""{options})'))
        if not all(isinstance(trial.eval(classad_library().ClassAd()), bool) for trial in (alone, in_frame)):
            raise InvalidClassAdError(f"{pattern} is no pattern that can be looked for")


def is_true(result: Result) -> bool:
    """Say whether `result` is True itself: 1, "true", undefined and error are not."""
    return result is True


@contextmanager
def _texts_are_characters() -> Iterator[None]:
    """Turn what the library cannot tell us, a text of any bytes, into InvalidClassAdError."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InvalidClassAdError("a text holds bytes that are no characters") from error


@lru_cache(maxsize=_REMEMBERED_ADS)
def _parsed_ad(text: str) -> Any:
    """Return the library's ad of `text`, which nobody may change, with time read from `CURRENT_TIME`."""
    timed = with_time_from(CURRENT_TIME, text)
    fault = text_fault(timed) or (None if _FLAT_AD.fullmatch(timed) else ad_fault(timed))
    if fault:
        raise InvalidClassAdError(fault)
    library = classad_library()
    try:
        return library.ClassAd(framed(timed))
    except library.ClassAdException as error:
        raise InvalidClassAdError("the text is not a ClassAd") from error


def _for_library(value: AdValue) -> Any:
    if isinstance(value, Expression):
        return compile_expression(value.text).tree
    if isinstance(value, int) and not _SMALLEST_INTEGER <= value <= _LARGEST_INTEGER:
        raise InvalidClassAdError(f"the number {value} does not fit into 64 bits")
    if isinstance(value, tuple):
        return [_for_library(element) for element in value]
    if isinstance(value, Mapping):
        return Ad(value).library_ad
    if isinstance(value, str) and (fault := text_fault(value)):  # half a character would end the process
        raise InvalidClassAdError(f"the text {fault}")
    return value


def _result(value: Any) -> Result:
    library = classad_library()
    if isinstance(value, library.Value):  # before int: an error value is an int, and a true one
        return NoValue.ERROR if value == library.Value.Error else NoValue.UNDEFINED
    if isinstance(value, str):
        return unframed(value)  # an expression that was made a text
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return Expression(_shown(value))


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "{" + ", ".join(map(_shown, value)) + "}"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, classad_library().Value):
        return str(value.name).lower()
    return " ".join(unframed(str(value)).split())
