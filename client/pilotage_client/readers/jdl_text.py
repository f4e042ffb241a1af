"""JDL text: statements, their values, and conversions of values.

The dialects of DIRAC, gLite and AliEn allow what the ClassAd language does not: `#` comments, no brackets around the
whole, words without quotes, a comma after the last element of a list. The text is split into statements by its
outline, and values are repaired; HTCondor's ClassAd parser then reads them.

A value keeps its type, and what is not a literal stays an expression as typed. Sections are read statement by
statement, so that a fault inside them is reported on its own line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TypeAlias

from pilotage.classads.library import AdValue, Expression, InvalidClassAdError, check_expression, parse_value, quoted
from pilotage.classads.tokens import BRACKETS, Token, TokenKind, tokens
from pilotage.errors import InvalidRequirementsError
from pilotage.job_description import JobPolicy, Scalar, Value
from pilotage.text import fold
from pilotage.units import LARGEST_COUNT, parse_whole_number
from pilotage_client.readers.draft import StatementFaultError

_NAME = re.compile(r"\s*(?:'(?P<quoted>[^']+)'|(?P<plain>[A-Za-z_][\w.]*))\s*=(?![=?!])")

# A comment starts a line or follows a separator: // or /* inside an unquoted path is not a comment.
_COMMENT_OR_PATH = re.compile(
    r"""
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?<![^\s;,\[\]{}])(?P<comment>\#[^\n]*|//[^\n]*|/\*.*?\*/)
    | (?<![^\s;,={}])(?P<path>[A-Za-z/.%$][^\s"'{}\[\]();,=]*/[/*][^\s"'{}\[\];,]*)
    """,
    re.VERBOSE | re.DOTALL,
)

_BARE_WORD = re.compile(r"(?:%\([\w.]+\)[a-z]|[\w./~%$*:@+#-])+")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_ARITHMETIC = re.compile(r"[\d.+*/%-]+")
_REFERENCE = re.compile(r"(?:other|self|my|target|parent)\.\w+", re.IGNORECASE)
_LITERAL_WORDS = frozenset({"true", "false", "undefined", "error"})


@dataclass(frozen=True, slots=True)
class JdlStatement:
    """A statement `name = text;` that begins on `line`; comments in `text` are blanked out."""

    name: str
    text: str
    line: int
    text_line: int

    @property
    def is_section(self) -> bool:
        """Whether its value is a section `[ … ]`."""
        return self.text.startswith("[")


def jdl_statements(text: str) -> list[JdlStatement]:
    """Return the statements of a JDL file, with or without brackets around the whole.

    Raises
    ------
    StatementFaultError
        At the first invalid or unclosed statement, or at text after the closing bracket.
    """
    return _statements(_COMMENT_OR_PATH.sub(_blanked_or_quoted, text), first_line=1, bracketed=False)


def section_statements(section: JdlStatement) -> list[JdlStatement]:
    """Return the statements of a section; raises as `jdl_statements`."""
    return _statements(section.text, section.text_line, bracketed=True)


def repaired(text: str) -> str:
    """Return a value that the ClassAd parser accepts: bare words in quotes, no comma at the end of a list."""
    pieces: list[str] = []
    run: list[str] = []
    depth = 0
    for token in tokens(text):
        depth += (token.text in "[(") - (token.text in ")]") if token.kind in (TokenKind.OPEN, TokenKind.CLOSE) else 0
        if depth or token.text not in ("{", "}", ","):
            run.append(token.text)
            continue
        pieces.append(_repaired_element("".join(run)))
        run.clear()
        if token.text == "}":
            position = len(pieces) - 1
            while position >= 0 and not pieces[position].strip():
                position -= 1
            if position >= 0 and pieces[position] == ",":
                pieces[position] = ""
        pieces.append(token.text)
    return "".join([*pieces, _repaired_element("".join(run))])


def is_bare_word(text: str) -> bool:
    """Return whether `text` is a word or path without quotes, as DIRAC allows."""
    return (
        _BARE_WORD.fullmatch(text) is not None
        and text.lower() not in _LITERAL_WORDS
        and not any(other.fullmatch(text) for other in (_NUMBER, _ARITHMETIC, _REFERENCE))
    )


def _repaired_element(text: str) -> str:
    word = text.strip()
    if is_bare_word(word):
        return text.replace(word, quoted(word))
    is_name_in_quotes = len(word) > 1 and word[0] == word[-1] == "'" and "'" not in word[1:-1]
    return text.replace(word, quoted(word[1:-1])) if is_name_in_quotes else text


def _blanked_or_quoted(found: re.Match[str]) -> str:
    if found["comment"] is not None:
        return re.sub(r"[^\n]", " ", found.group())
    return quoted(found["path"]) if found["path"] is not None else found.group()


def _statements(text: str, first_line: int, *, bracketed: bool) -> list[JdlStatement]:
    body_start = len(text) - len(text.lstrip())
    has_bracket = text[body_start : body_start + 1] == "["
    assert has_bracket or not bracketed, "a section begins with its bracket"
    body_start += has_bracket
    statements = []
    position = body_start
    for end in _ends(text, body_start, has_bracket, first_line):
        if text[position:end].strip():
            statements.append(_statement(text, position, end, first_line))
        position = end + 1
    return statements


def _ends(text: str, start: int, has_bracket: bool, first_line: int) -> Iterator[int]:
    """Yield the end of each statement: a semicolon, the closing bracket, or the end of the text."""
    stack: list[str] = []
    position = start
    for token in _tokens_from(text, start):
        if token.kind is TokenKind.UNCLOSED:
            break
        if token.kind is TokenKind.OPEN:
            stack.append(token.text)
        elif token.kind is TokenKind.CLOSE and not stack and has_bracket and token.text == "]":
            yield token.start
            rest = text[token.end :]
            if rest.strip(" \t\r\n;"):
                raise StatementFaultError(
                    _line_of(text, token.end, first_line), "text after the bracket that closes the job"
                )
            return
        elif token.kind is TokenKind.CLOSE and (not stack or BRACKETS[stack.pop()] != token.text):
            raise StatementFaultError(_line_of(text, position, first_line), f"{token.text} closes nothing")
        elif token.kind is TokenKind.SEMICOLON and not stack:
            yield token.start
            position = token.end
    yield len(text)
    if has_bracket:
        raise StatementFaultError(_line_of(text, start - 1, first_line), "the [ that begins here is not closed")


def _tokens_from(text: str, start: int) -> Iterator[Token]:
    for token in tokens(text[start:]):
        yield Token(token.kind, token.text, token.start + start)


def _statement(text: str, start: int, end: int, first_line: int) -> JdlStatement:
    line = _line_of(text, start, first_line)
    found = _NAME.match(text, start, end)
    if found is None:
        written = " ".join(text[start:end].split())
        raise StatementFaultError(line, f"not a statement NAME = VALUE: {written[:60]}")
    value = text[found.end() : end]
    value_start = found.end() + len(value) - len(value.lstrip())
    return JdlStatement(
        name=found["quoted"] or found["plain"],
        text=value.strip(),
        line=line,
        text_line=_line_of(text, value_start, first_line),
    )


def _line_of(text: str, position: int, first_line: int) -> int:
    """Return the line of the first visible character from `position` on."""
    blank = len(text[position:]) - len(text[position:].lstrip())
    at_end = position + blank == len(text)
    return first_line + text.count("\n", 0, position if at_end else position + blank)


EXPRESSIONS = frozenset(
    {
        "requirements",
        "requirementsexpression",
        "rank",
        "fuzzyrank",
        *(policy.name.replace("_", "") for policy in fields(JobPolicy)),
    }
)
"""Attributes whose value is an expression, in which a bare word is a reference."""

_DEEPEST_SECTION = 50
_MISSING_SEMICOLON = re.compile(r"\n\s*[A-Za-z_][\w.]*\s*=(?!=)")
_PLACEHOLDER = re.compile(r"<\w+>|\$\w+|@\w+@")


@dataclass(frozen=True, slots=True)
class JdlSection:
    """The statements of a section `[ … ]`, and its text as typed."""

    attributes: tuple[Attribute, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Attribute:
    """A statement of a JDL text with its parsed value; it begins on `line`."""

    name: str
    value: JdlValue
    line: int

    def rewritten(self, rewrite: Callable[[str], str]) -> Attribute:
        """Return the statement with `rewrite` applied to every text of its value."""
        return Attribute(self.name, rewritten(self.value, rewrite), self.line)


JdlValue: TypeAlias = "AdValue | JdlSection"
"""The value of an attribute."""


def read_attributes(text: str) -> tuple[list[Attribute], list[StatementFaultError]]:
    """Return the valid statements of a JDL text with their values, and the faults of the others.

    Raises
    ------
    StatementFaultError
        The text cannot be split into statements.
    """
    attributes, faults = [], []
    for statement in jdl_statements(text):
        try:
            attributes.append(_attribute(statement))
        except StatementFaultError as fault:
            faults.append(fault)
    return attributes, faults


def _attribute(statement: JdlStatement, depth: int = 0) -> Attribute:
    if statement.is_section:
        if depth == _DEEPEST_SECTION:
            raise StatementFaultError(statement.line, f"sections nest deeper than {_DEEPEST_SECTION}")
        attributes = tuple(_attribute(inner, depth + 1) for inner in section_statements(statement))
        return Attribute(statement.name, JdlSection(attributes, statement.text), statement.line)
    try:
        if fold(statement.name) in EXPRESSIONS:
            check_expression(statement.text)
            value: AdValue = Expression(statement.text)
        else:
            value = parse_value(repaired(statement.text))
    except InvalidClassAdError as error:
        raise StatementFaultError(statement.line, _cause(statement, str(error))) from error
    return Attribute(statement.name, value, statement.line)


def _cause(statement: JdlStatement, cause: str) -> str:
    """Return the parser's message with a hint at the most likely cause."""
    if _MISSING_SEMICOLON.search(statement.text):
        return f"{statement.name}: {cause}; is a semicolon missing?"
    if _PLACEHOLDER.match(statement.text):
        return f"{statement.name}: {cause}; is this a template that was not filled in?"
    return f"{statement.name}: {cause}"


def rewritten(value: JdlValue, rewrite: Callable[[str], str]) -> JdlValue:
    """Return `value` with `rewrite` applied to every text in it, including expressions."""
    if isinstance(value, JdlSection):
        attributes = (Attribute(each.name, rewritten(each.value, rewrite), each.line) for each in value.attributes)
        return JdlSection(tuple(attributes), rewrite(value.text))
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
    """Yield every text in `value`, including expressions and sections."""
    if isinstance(value, JdlSection | Expression):
        yield value.text
    elif isinstance(value, str):
        yield value
    elif isinstance(value, tuple | Mapping):
        for element in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(element)


def flattened(value: JdlValue) -> list[JdlValue]:
    """Return the elements of a list and of lists inside it; a single value is a list of one.

    The doubled braces of Python's format strings (`{{ "a", "b" }}`) are thus one list.
    """
    if not isinstance(value, tuple):
        return [value]
    return [inner for element in value for inner in flattened(element)]


def as_text(value: JdlValue) -> str:
    """Return a value as text without quotes: `5`, `word`, `{a,b}`."""
    if isinstance(value, tuple):
        return "{" + ",".join(as_text(element) for element in value) + "}"
    if isinstance(value, JdlSection | Expression):
        return value.text
    if isinstance(value, Mapping):
        return "[" + "; ".join(f"{name} = {as_text(each)}" for name, each in value.items()) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_attribute(value: JdlValue) -> Value:
    """Convert to the value of a job's attribute: scalars and lists of them stay, all else becomes text."""
    if isinstance(value, tuple):
        return tuple(_as_scalar(element) for element in value)
    return _as_scalar(value)


def _as_scalar(value: JdlValue) -> Scalar:
    return value if isinstance(value, bool | int | float | str) else as_text(value)


def is_empty(value: JdlValue) -> bool:
    """Return whether a value is a blank text or an empty list."""
    return (isinstance(value, str) and not value.strip()) or value == ()


def text_of(attribute: Attribute) -> str:
    """Return the value of an attribute that must be a single text; raises StatementFaultError."""
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
    """Return the value of an attribute that must be a whole number or its text; raises StatementFaultError."""
    try:
        return parse_whole_number(text_of(attribute), attribute.name, least=least)
    except InvalidRequirementsError as error:
        raise StatementFaultError(attribute.line, str(error)) from error


def scalar_of(attribute: Attribute, value: JdlValue) -> Scalar:
    """Return `value`, an element of `attribute`, if it is a plain value; raises StatementFaultError."""
    if not isinstance(value, bool | int | float | str):
        raise StatementFaultError(attribute.line, f"{attribute.name} must be a value or a list of values")
    return value


def expression_of(attribute: Attribute) -> str:
    """Return an expression in one line; raises StatementFaultError.

    It is parsed again, as a parameter may have changed it.
    """
    value = attribute.value
    text = value.text if isinstance(value, Expression) else as_text(value)
    expression = " ".join(text.split("\n")).strip()
    try:
        check_expression(expression)
    except InvalidClassAdError as error:
        raise StatementFaultError(attribute.line, f"{attribute.name}: {error}") from error
    return expression
