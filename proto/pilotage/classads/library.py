"""The only access to HTCondor's ClassAd library: takes texts, returns plain values or unevaluated expressions.

The library (HTCondor 25) has traps, which this module handles:

- `classad2` evaluates by other rules than HTCondor until `htcondor2` is imported.
- The import of `htcondor2` with a faulty configuration ends the process.
- Error and undefined values are truthy.
- An integer of 64 bits or more is read as 0.
- Of the text `1; x = 2` only the first part is read.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from types import ModuleType
from typing import Any, TypeAlias

from pilotage.classads.limits import unframed
from pilotage.classads.tokens import TokenKind, outline_fault, tokens
from pilotage.errors import InvalidInputError, PilotageError, Violation
from pilotage.job_description import Scalar
from pilotage.text import text_fault

_LARGEST_INTEGER = 2**63 - 1
_CACHED_VALUES = 4096  # the jobs of one file share most values
_INTEGER = re.compile(r"\d+", re.ASCII)
_OLD_BACKSLASH = re.compile(r'\\(?!")')  # in the old syntax a backslash escapes only a quote


class ClassAdLibraryMissingError(PilotageError):
    """HTCondor's Python library is not installed."""

    def __init__(self) -> None:
        where = "pip install htcondor" if sys.platform == "linux" else "HTCondor offers it for Linux only"
        super().__init__(f"HTCondor's Python package, which reads ClassAds, is not installed: {where}")


class InvalidClassAdError(InvalidInputError):
    """The text is not a ClassAd value or expression."""

    def __init__(self, why: str) -> None:
        super().__init__(Violation("", why))


@dataclass(frozen=True, slots=True)
class Expression:
    """An unevaluated ClassAd expression, as text in new ClassAd syntax."""

    text: str


AdValue: TypeAlias = "Scalar | Expression | tuple[AdValue, ...] | Mapping[str, AdValue]"
"""A ClassAd value; nested ads are mappings, everything that is not a literal is an `Expression`."""


def is_available() -> bool:
    """Return whether the library is installed."""
    try:
        _library()
    except ClassAdLibraryMissingError:
        return False
    return True


def htcondor_library() -> ModuleType:
    """Return the module `htcondor2`, imported without its configuration; raises ClassAdLibraryMissingError."""
    return _library()[0]


def classad_library() -> ModuleType:
    """Return the module `classad2`, set to HTCondor's rules of evaluation; raises ClassAdLibraryMissingError."""
    return _library()[1]


def library_failures() -> tuple[type[Exception], ...]:
    """Return the errors that the library raises when it cannot evaluate an expression or decode the result."""
    return (classad_library().ClassAdException, UnicodeDecodeError)


@cache
def _library() -> tuple[ModuleType, ModuleType]:
    try:
        with _no_configuration():
            # In this order: htcondor2 sets the rules of evaluation for the whole process.
            htcondor2, classad2 = importlib.import_module("htcondor2"), importlib.import_module("classad2")
    except ImportError as error:
        raise ClassAdLibraryMissingError from error
    # Without a log the library writes syntax errors to the standard error too.
    htcondor2.param["TOOL_LOG"] = os.devnull
    htcondor2.enable_log()
    return htcondor2, classad2


@contextmanager
def _no_configuration() -> Iterator[None]:
    """Hide the machine's HTCondor configuration: an illegal line in it would end this process at import."""
    before = os.environ.get("CONDOR_CONFIG")
    os.environ["CONDOR_CONFIG"] = os.devnull
    try:
        yield
    finally:
        if before is None:
            del os.environ["CONDOR_CONFIG"]
        else:
            os.environ["CONDOR_CONFIG"] = before


@lru_cache(maxsize=_CACHED_VALUES)
def parse_value(text: str) -> AdValue:
    """Parse a value; arithmetic on plain numbers is evaluated, other expressions are kept.

    Raises
    ------
    InvalidClassAdError
        The text is not exactly one ClassAd expression, or has a number that does not fit into 64 bits.
    """
    try:
        return plain_value(_parsed(text)["value"], text)
    except UnicodeDecodeError as error:
        raise InvalidClassAdError(f"{_shortened(text)} holds bytes that are not UTF-8") from error


@lru_cache(maxsize=_CACHED_VALUES)
def check_expression(text: str) -> None:
    """Raise InvalidClassAdError unless `text` is exactly one ClassAd expression."""
    _parsed(text)


def expression_from_old_syntax(text: str) -> str:
    r"""Return an expression of a submit file or a configuration in new ClassAd syntax.

    The two differ in backslashes only: `"a\.b"` there is `"a\\.b"` here. Raises InvalidClassAdError.
    """
    expression = _OLD_BACKSLASH.sub(r"\\\\", text)
    check_expression(expression)
    return expression


def quoted(text: str) -> str:
    """Return `text` as a ClassAd string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _parsed(text: str) -> Any:
    fault = text_fault(text) or outline_fault(text) or _limit_fault(text)
    if fault is not None:
        raise InvalidClassAdError(fault)
    classad2 = _library()[1]
    try:
        # The line end keeps a comment at the end of the text from hiding the bracket.
        return classad2.ClassAd(f"[ value = {text}\n ]")
    except classad2.ClassAdException as error:
        raise InvalidClassAdError(f"{_shortened(text)} is not a ClassAd expression") from error


def _limit_fault(text: str) -> str | None:
    for token in tokens(text):
        if token.kind is TokenKind.WORD and _INTEGER.fullmatch(token.text) and _is_too_large(token.text):
            return f"the number {_shortened(token.text)} does not fit into 64 bits"
    return None


def _is_too_large(digits: str) -> bool:
    significant = digits.lstrip("0") or "0"
    return len(significant) > len(str(_LARGEST_INTEGER)) or int(significant) > _LARGEST_INTEGER


def _shortened(text: str, limit: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[:limit] + "…"


def plain_value(value: Any, text: str | None = None) -> AdValue:
    """Convert a value of the library; `text` is its source, None = unknown."""
    classad2 = _library()[1]
    if isinstance(value, classad2.Value):  # before int: an error value is an int, and a true one
        return Expression(value.name.lower())
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else Expression(text or str(value))
    if isinstance(value, list):
        return tuple(plain_value(element) for element in value)
    if isinstance(value, classad2.ClassAd):
        return {name: plain_value(value[name]) for name in value}
    kept = text if text is not None else unframed(str(value))
    return _computed(kept, value) if isinstance(value, classad2.ExprTree) else Expression(kept)


def _computed(text: str, expression: Any) -> AdValue:
    """Return the result of arithmetic such as `24 * 3600`; an expression with references or calls is kept."""
    if any(token.kind is TokenKind.STRING or _names_something(token.text) for token in tokens(text)):
        return Expression(text.strip())
    try:
        number = expression.eval()
    except library_failures():
        return Expression(text.strip())
    is_number = type(number) in (int, float) and math.isfinite(number)
    return number if is_number else Expression(text.strip())


def _names_something(text: str) -> bool:
    return any(character.isalpha() or character in "_'" for character in text)
