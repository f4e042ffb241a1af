"""JDL text taken apart into statements, and values repaired until HTCondor's ClassAd parser takes them.

Rules
-----
Here is what the dialects of DIRAC, gLite and AliEn write and the ClassAd language does not: `#` comments, no
brackets around the whole, words without quotes, a comma after the last element of a list. Only the outline of
the text is read; what a value means is read by the ClassAd parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pilotage.classad_text import BRACKETS, Kind, Token, tokens
from pilotage.classads import quoted
from pilotage_client.readers.read_error import StatementFaultError

_NAME = re.compile(r"\s*(?:'(?P<quoted>[^']+)'|(?P<plain>[A-Za-z_][\w.]*))\s*=(?![=?!])")

# A comment begins a line or follows a separator, so that the // or /* in a path without quotes begins none.
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
class Statement:
    """`name = text;` that begins on `line`; comments are blanked out of `text`."""

    name: str
    text: str
    line: int
    text_line: int

    @property
    def is_section(self) -> bool:
        """Whether its value is a section `[ … ]`."""
        return self.text.startswith("[")


def jdl_statements(text: str) -> list[Statement]:
    """Return the statements of a JDL file, with or without brackets around the whole.

    Raises
    ------
    StatementFaultError
        At the first statement that is none, that is not closed, or that has text after the whole.
    """
    return _statements(_without_comments(text), first_line=1, bracketed=False)


def section_statements(section: Statement) -> list[Statement]:
    """Return the statements of a section; raises as `jdl_statements`."""
    return _statements(section.text, section.text_line, bracketed=True)


def repaired(text: str) -> str:
    """Return a value that the ClassAd parser takes: bare words in quotes, no comma at the end of a list."""
    pieces: list[str] = []
    run: list[str] = []
    depth = 0
    for token in tokens(text):
        depth += (token.text in "[(") - (token.text in ")]") if token.kind in (Kind.OPEN, Kind.CLOSE) else 0
        if depth or token.text not in ("{", "}", ","):
            run.append(token.text)
            continue
        pieces.append(_repaired_element("".join(run)))
        run.clear()
        if token.text == "}":
            _drop_last_comma(pieces)
        pieces.append(token.text)
    return "".join([*pieces, _repaired_element("".join(run))])


def is_bare_word(text: str) -> bool:
    """Say whether `text` is a word or path that its author left without quotes, as DIRAC allows."""
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


def _drop_last_comma(pieces: list[str]) -> None:
    position = len(pieces) - 1
    while position >= 0 and not pieces[position].strip():
        position -= 1
    if position >= 0 and pieces[position] == ",":
        pieces[position] = ""


def _without_comments(text: str) -> str:
    return _COMMENT_OR_PATH.sub(_blanked_or_quoted, text)


def _blanked_or_quoted(found: re.Match[str]) -> str:
    if found["comment"] is not None:
        return re.sub(r"[^\n]", " ", found.group())
    return quoted(found["path"]) if found["path"] is not None else found.group()


def _statements(text: str, first_line: int, *, bracketed: bool) -> list[Statement]:
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
    """Yield where each statement ends: a semicolon, the closing bracket, or the end of the text."""
    stack: list[str] = []
    position = start
    for token in _tokens_from(text, start):
        if token.kind is Kind.UNCLOSED:
            break
        if token.kind is Kind.OPEN:
            stack.append(token.text)
        elif token.kind is Kind.CLOSE and not stack and has_bracket and token.text == "]":
            yield token.start
            _check_nothing_follows(text, token.end, first_line)
            return
        elif token.kind is Kind.CLOSE and (not stack or BRACKETS[stack.pop()] != token.text):
            raise StatementFaultError(_line_of(text, position, first_line), f"{token.text} closes nothing")
        elif token.kind is Kind.SEMICOLON and not stack:
            yield token.start
            position = token.end
    yield len(text)
    if has_bracket:
        raise StatementFaultError(_line_of(text, start - 1, first_line), "the [ that begins here is not closed")


def _tokens_from(text: str, start: int) -> Iterator[Token]:
    for token in tokens(text[start:]):
        yield Token(token.kind, token.text, token.start + start)


def _check_nothing_follows(text: str, position: int, first_line: int) -> None:
    rest = text[position:]
    if rest.strip(" \t\r\n;"):
        raise StatementFaultError(_line_of(text, position, first_line), "text after the bracket that closes the job")


def _statement(text: str, start: int, end: int, first_line: int) -> Statement:
    line = _line_of(text, start, first_line)
    found = _NAME.match(text, start, end)
    if found is None:
        written = " ".join(text[start:end].split())
        raise StatementFaultError(line, f"not a statement NAME = VALUE: {written[:60]}")
    value = text[found.end() : end]
    value_start = found.end() + len(value) - len(value.lstrip())
    return Statement(
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
