"""The values of JDL statements, read by HTCondor's ClassAd parser, and what can be done with them.

Rules
-----
A value is what its author meant, with its type; what is no literal stays an expression, as typed. Sections
are read statement by statement, so that a fault inside them is found on its own line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pilotage.classads import AdValue, Expression, InvalidClassAdError, check_expression, parse_value
from pilotage.errors import InvalidRequirementsError
from pilotage.folding import fold
from pilotage.job_description import Scalar, Value
from pilotage.resources import LARGEST_COUNT, parse_whole_number
from pilotage_client.readers.jdl_text import (
    Statement,
    jdl_statements,
    repaired,
    section_statements,
)
from pilotage_client.readers.read_error import StatementFaultError

EXPRESSIONS = frozenset(
    {
        "requirements",
        "requirementsexpression",
        "rank",
        "fuzzyrank",
        "periodichold",
        "periodicholdreason",
        "periodicholdsubcode",
        "periodicrelease",
        "periodicremove",
    }
)
"""Attributes whose value is an expression, so that a word without quotes is a reference in it."""

_DEEPEST_SECTION = 50
_MISSING_SEMICOLON = re.compile(r"\n\s*[A-Za-z_][\w.]*\s*=(?!=)")
_PLACEHOLDER = re.compile(r"<\w+>|\$\w+|@\w+@")


@dataclass(frozen=True, slots=True)
class Section:
    """The statements of a `[ … ]`, and the whole as typed."""

    attributes: tuple[Attribute, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Attribute:
    """One statement of a JDL text with its value read; `line` is where it begins."""

    name: str
    value: JdlValue
    line: int

    def rewritten(self, rewrite: Callable[[str], str]) -> Attribute:
        """Return the same statement with every text of its value passed through `rewrite`."""
        return Attribute(self.name, rewritten(self.value, rewrite), self.line)


JdlValue: TypeAlias = "AdValue | Section"
"""What stands to the right of a `=`."""


def read_attributes(text: str) -> list[Attribute]:
    """Return the statements of a JDL text with their values; raises StatementFaultError."""
    return [_attribute(statement) for statement in jdl_statements(text)]


def _attribute(statement: Statement, depth: int = 0) -> Attribute:
    if statement.is_section:
        if depth == _DEEPEST_SECTION:
            raise StatementFaultError(statement.line, f"sections nest deeper than {_DEEPEST_SECTION}")
        attributes = tuple(_attribute(inner, depth + 1) for inner in section_statements(statement))
        return Attribute(statement.name, Section(attributes, statement.text), statement.line)
    try:
        value = _value(statement)
    except InvalidClassAdError as error:
        raise StatementFaultError(statement.line, _cause(statement, str(error))) from error
    return Attribute(statement.name, value, statement.line)


def _value(statement: Statement) -> AdValue:
    if fold(statement.name) not in EXPRESSIONS:
        return parse_value(repaired(statement.text))
    check_expression(statement.text)
    return Expression(statement.text)


def _cause(statement: Statement, cause: str) -> str:
    """Return the parser's cause with what its author most likely did."""
    if _MISSING_SEMICOLON.search(statement.text):
        return f"{statement.name}: {cause}; is a semicolon missing?"
    if _PLACEHOLDER.match(statement.text):
        return f"{statement.name}: {cause}; is this a template that was not filled in?"
    return f"{statement.name}: {cause}"


def rewritten(value: JdlValue, rewrite: Callable[[str], str]) -> JdlValue:
    """Return `value` with every text in it, expressions too, passed through `rewrite`."""
    if isinstance(value, Section):
        attributes = (Attribute(each.name, rewritten(each.value, rewrite), each.line) for each in value.attributes)
        return Section(tuple(attributes), rewrite(value.text))
    return _rewritten_ad_value(value, rewrite)


def _rewritten_ad_value(value: AdValue, rewrite: Callable[[str], str]) -> AdValue:
    if isinstance(value, str):
        return rewrite(value)
    if isinstance(value, Expression):
        return Expression(rewrite(value.text))
    if isinstance(value, tuple):
        return tuple(_rewritten_ad_value(element, rewrite) for element in value)
    if isinstance(value, Mapping):
        return {name: _rewritten_ad_value(each, rewrite) for name, each in value.items()}
    return value


def texts_in(value: JdlValue) -> Iterator[str]:
    """Yield every text in `value`, those of expressions and sections too."""
    if isinstance(value, Section | Expression):
        yield value.text
    elif isinstance(value, str):
        yield value
    elif isinstance(value, tuple | Mapping):
        for element in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(element)


def flattened(value: JdlValue) -> list[JdlValue]:
    """Return the elements of a list, lists inside it opened; a single value is a list of one.

    The doubled braces of Python's format strings (`{{ "a", "b" }}`) come out as what they meant.
    """
    if not isinstance(value, tuple):
        return [value]
    return [inner for element in value for inner in flattened(element)]


def as_text(value: JdlValue) -> str:
    """Return a value as it stands inside a text: `5`, `word`, `{a,b}`."""
    if isinstance(value, tuple):
        return "{" + ",".join(as_text(element) for element in value) + "}"
    if isinstance(value, Section | Expression):
        return value.text
    if isinstance(value, Mapping):
        return "[" + "; ".join(f"{name} = {as_text(each)}" for name, each in value.items()) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_attribute(value: JdlValue) -> Value:
    """Return a value as a job's attribute holds it: scalars and lists of them, the rest as text."""
    if isinstance(value, tuple):
        return tuple(_as_scalar(element) for element in value)
    return _as_scalar(value)


def _as_scalar(value: JdlValue) -> Scalar:
    return value if isinstance(value, bool | int | float | str) else as_text(value)


def says_nothing(value: JdlValue) -> bool:
    """Say whether a value is empty, so that nothing is lost when nobody heeds it."""
    return (isinstance(value, str) and not value.strip()) or value == ()


def text_of(attribute: Attribute) -> str:
    """Return the one text that an attribute must be; raises StatementFaultError."""
    elements = flattened(attribute.value)
    if len(elements) != 1 or not isinstance(elements[0], bool | int | float | str):
        raise StatementFaultError(attribute.line, f"{attribute.name} must be one text")
    return as_text(elements[0])


def texts_of(attribute: Attribute) -> list[str]:
    """Return the texts of a list, or the one text; raises StatementFaultError."""
    elements = flattened(attribute.value)
    if not all(isinstance(element, bool | int | float | str) for element in elements):
        raise StatementFaultError(attribute.line, f"{attribute.name} must be a list of texts")
    return [as_text(element) for element in elements]


def whole_number_of(attribute: Attribute, *, least: int = -LARGEST_COUNT) -> int:
    """Return the whole number that an attribute must be, also written as text; raises StatementFaultError."""
    try:
        return parse_whole_number(text_of(attribute), attribute.name, least=least)
    except InvalidRequirementsError as error:
        raise StatementFaultError(attribute.line, str(error)) from error


def scalar_of(attribute: Attribute, value: JdlValue) -> Scalar:
    """Return `value`, an element of `attribute`, which must be a plain value; raises StatementFaultError."""
    if not isinstance(value, bool | int | float | str):
        raise StatementFaultError(attribute.line, f"{attribute.name} must be a value or a list of values")
    return value


def expression_of(attribute: Attribute) -> str:
    """Return an expression in one line; a parameter may have changed it, so it is parsed again.

    Raises StatementFaultError.
    """
    value = attribute.value
    text = value.text if isinstance(value, Expression) else as_text(value)
    expression = " ".join(text.split("\n")).strip()
    try:
        check_expression(expression)
    except InvalidClassAdError as error:
        raise StatementFaultError(attribute.line, f"{attribute.name}: {error}") from error
    return expression
