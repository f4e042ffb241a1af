"""Evaluates ClassAd expressions in the scopes of two ads, by HTCondor's rules and with its library.

A name without a scope is looked up in MY, then in TARGET. The current time is an attribute of the ads
(`CURRENT_TIME`), never the machine's clock. A result is a value, `UNDEFINED` or `ERROR`; only True is true.
The cost of each evaluation is bounded before it (`pilotage.classads.cost`); one that could cost too much is `ERROR`.
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

from pilotage.classads.cost import Cost, TooCostlyError, expression_cost
from pilotage.classads.library import (
    AdValue,
    Expression,
    InvalidClassAdError,
    check_expression,
    classad_library,
    library_failures,
    plain_value,
    quoted,
)
from pilotage.classads.limits import bounds_fault, framed, pattern_calls, unframed
from pilotage.classads.tokens import ad_fault, calls, with_time_from
from pilotage.job_description import Scalar
from pilotage.text import fold, text_fault

CURRENT_TIME = "MyCurrentTime"
"""The attribute that holds the current time, in seconds since 1970."""

_CACHED_EXPRESSIONS = 4096
_CACHED_ADS = 256
_FLAT_NAME = r"""[^][{}()"'/\\;=]++"""
_FLAT_VALUE = r"""=\s*+(?:"[^"\\\n]*+"\s*+|[^][{}()"'/\\;=]{0,1000}+)"""
_FLAT_AD = re.compile(rf"\s*+\[\s*+(?:{_FLAT_NAME}{_FLAT_VALUE}(?:;{_FLAT_NAME}{_FLAT_VALUE})*+)?+(?:;\s*+)?+\]\s*+")
"""An ad of short values without brackets. Its outline needs no check; most frequent ads are of this form."""

_SMALLEST_INTEGER, _LARGEST_INTEGER = -(2**63), 2**63 - 1


class NoValue(Enum):
    """The results of an expression that has no value; neither is true."""

    UNDEFINED = "undefined"
    ERROR = "error"


Result: TypeAlias = Scalar | NoValue | Expression
"""The result of an expression; lists, ads and times are returned as text."""


@dataclass(frozen=True, slots=True)
class CompiledExpression:
    """A parsed expression, which can be evaluated many times and in any ads; `text` is its source."""

    text: str
    tree: Any


class RandomFunctionError(InvalidClassAdError):
    """The expression would evaluate differently each time."""

    def __init__(self) -> None:
        super().__init__("random functions are not allowed here: the result must be repeatable")


@lru_cache(maxsize=_CACHED_EXPRESSIONS)
def compile_expression(text: str, *, refuse_random: bool = False) -> CompiledExpression:
    """Parse the expression `text`, in new ClassAd syntax, with the time read from `CURRENT_TIME`.

    Raises
    ------
    InvalidClassAdError
        It is not exactly one expression, or it calls a random function although `refuse_random` is set.
    """
    if refuse_random and "random" in calls(text):
        raise RandomFunctionError
    timed = with_time_from(CURRENT_TIME, text)
    check_expression(timed)
    # The brackets make the whole text one expression; the line end closes a comment at its end.
    return CompiledExpression(text, classad_library().ExprTree(f"({framed(timed)}\n)"))


class Ad:
    """A ClassAd to evaluate in: names are case-insensitive, values may be expressions over the ad itself."""

    def __init__(self, attributes: Mapping[str, AdValue]) -> None:
        self._ad = classad_library().ClassAd()
        self._known: dict[str, AdValue | None] = {}
        for name, value in attributes.items():
            self.set(name, value)

    @classmethod
    def read(cls, text: str) -> Ad:
        """Parse an ad in new ClassAd syntax; raises InvalidClassAdError."""
        ad = cls({})
        ad.update(text)
        return ad

    def set(self, name: str, value: AdValue) -> None:
        """Set the attribute `name`; raises InvalidClassAdError for a value that an ad cannot hold."""
        self._ad[name] = _for_library(value)
        self._known.pop(fold(name), None)

    def update(self, text: str) -> None:
        """Set all attributes of the ad `text`; raises InvalidClassAdError."""
        with _decoding_errors():
            self._ad.update(_parsed_ad(text))
        self._known.clear()

    def discard(self, name: str) -> None:
        """Remove the attribute `name`, if present."""
        self._ad.pop(name, None)
        self._known.pop(fold(name), None)

    def get(self, name: str) -> AdValue | None:
        """Return the value of an attribute by its folded name, expressions unevaluated; None = missing."""
        if name not in self._known:
            self._known[name] = plain_value(self._ad[name]) if name in self._ad else None
        return self._known[name]

    def copy(self) -> Ad:
        """Return an independent copy."""
        copied = Ad({})
        copied.library_ad.update(self._ad)
        return copied

    def value(self, name: str) -> Result:
        """Evaluate the attribute `name` inside the ad; a missing attribute is undefined."""
        value = self.get(fold(name))
        if value is None:
            return NoValue.UNDEFINED
        if isinstance(value, Expression) and evaluation_fault(value.text, self) is not None:
            return NoValue.ERROR
        try:
            return _result(self._ad.eval(name))
        except library_failures():
            return NoValue.ERROR

    def plain(self) -> dict[str, AdValue]:
        """Return all attributes: literals as values, all others as expressions."""
        return {name: plain_value(self._ad[name]) for name in self._ad}

    @property
    def library_ad(self) -> Any:
        """The library's own ad."""
        return self._ad


def evaluate(expression: CompiledExpression, my: Ad, target: Ad | None = None) -> Result:
    """Evaluate `expression` with these ads as MY and TARGET; without a TARGET its names are undefined.

    An expression that could cost too much results in `ERROR`, as does one that the library cannot evaluate, such as a
    chain of hundreds of operators.
    """
    if evaluation_fault(expression.text, my, target) is not None:
        return NoValue.ERROR
    return _evaluated(expression, my, target)


def evaluation_fault(text: str, my: Ad, target: Ad | None = None) -> str | None:
    """Return why the evaluation of an expression with these ads costs too much; None = it does not."""
    try:
        evaluation_cost(text, my, target)
    except TooCostlyError as error:
        return str(error)
    return None


def evaluation_cost(text: str, my: Ad, target: Ad | None = None) -> Cost:
    """Return a bound of the cost of evaluating an expression with these ads; raises TooCostlyError."""
    ads = (my,) if target is None else (my, target)

    def evaluate_in(argument: str, ad: int) -> Result:
        other = ads[1 - ad] if target is not None else None
        try:
            return _evaluated(compile_expression(argument), ads[ad], other)
        except InvalidClassAdError:
            return NoValue.ERROR

    return expression_cost(text, [ad.get for ad in ads], evaluate_in)


def _evaluated(expression: CompiledExpression, my: Ad, target: Ad | None) -> Result:
    try:
        if target is None:
            return _result(expression.tree.eval(my.library_ad))
        return _result(expression.tree.eval(my.library_ad, target.library_ad))
    except library_failures():
        return NoValue.ERROR


def compile_bounded(text: str) -> CompiledExpression:
    """Parse a user's expression within bounds of size and work, without randomness; raises InvalidClassAdError."""
    fault = bounds_fault(text)
    if fault is not None:
        raise InvalidClassAdError(fault)
    compiled = compile_expression(text, refuse_random=True)
    _check_patterns(text)
    fault = evaluation_fault(text, Ad({}))
    if fault is not None:
        raise InvalidClassAdError(fault)
    try:
        with _decoding_errors():
            compiled.tree.eval(classad_library().ClassAd())
    except classad_library().ClassAdException as error:
        raise InvalidClassAdError("it has more operators than can be evaluated") from error
    return compiled


def _check_patterns(text: str) -> None:
    """Raise InvalidClassAdError for a pattern that is invalid by itself: its brackets could leave its frame."""
    for call in pattern_calls(text):
        pattern, options = call.arguments[0][0].text, "".join(f", {token.text}" for token in call.options)
        # The empty alternative matches at once: only whether the pattern can be compiled is tested.
        alone = classad_library().ExprTree(f'regexp(strcat("(?:)|", {pattern}), ""{options})')
        in_frame = classad_library().ExprTree(framed(f'regexp({pattern}, ""{options})'))
        if not all(isinstance(trial.eval(classad_library().ClassAd()), bool) for trial in (alone, in_frame)):
            raise InvalidClassAdError(f"{pattern} is not a valid pattern")


def is_true(result: Result) -> bool:
    """Return whether `result` is True itself: 1, "true", undefined and error are not."""
    return result is True


@contextmanager
def _decoding_errors() -> Iterator[None]:
    """Raise InvalidClassAdError if the library returns bytes that are not UTF-8."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InvalidClassAdError("a text holds bytes that are not UTF-8") from error


@lru_cache(maxsize=_CACHED_ADS)
def _parsed_ad(text: str) -> Any:
    """Return the library's ad of `text`, with the time read from `CURRENT_TIME`; shared, so never changed."""
    fault = text_fault(text) or (None if _FLAT_AD.fullmatch(text) else ad_fault(text))
    if fault:
        raise InvalidClassAdError(fault)
    library = classad_library()
    try:
        return library.ClassAd(framed(with_time_from(CURRENT_TIME, text)))
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
    if isinstance(value, str) and (fault := text_fault(value)):  # the library aborts the process on a surrogate
        raise InvalidClassAdError(f"the text {fault}")
    return value


def _result(value: Any) -> Result:
    library = classad_library()
    if isinstance(value, library.Value):  # before int: an error value is an int, and a true one
        return NoValue.ERROR if value == library.Value.Error else NoValue.UNDEFINED
    if isinstance(value, str):
        return unframed(value)  # the text may be that of an expression
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
