"""The outline of ClassAd text: strings, comments, brackets and separators, with their positions.

Rules
-----
Only the outline is read here; HTCondor's parser (`pilotage.classads.library`) reads the meaning. The tokenizer
accepts every text: an unclosed string or a stray character is a token too.
Source of the lexical rules: the ClassAd language reference (strings, quoted names, the two kinds of comment).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum


class TokenKind(StrEnum):
    """The lexical class of a token."""

    SPACE = "space"
    COMMENT = "comment"
    STRING = "string"
    QUOTED_NAME = "quoted name"
    UNCLOSED = "unclosed"
    OPEN = "open"
    CLOSE = "close"
    COMMA = "comma"
    SEMICOLON = "semicolon"
    WORD = "word"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a text, which begins at character `start`."""

    kind: TokenKind
    text: str
    start: int

    @property
    def end(self) -> int:
        """The position after its last character."""
        return self.start + len(self.text)

    @property
    def name(self) -> str:
        """The name that it may stand for, in lower case and without quotes; "" = none."""
        match self.kind:
            case TokenKind.WORD:
                return self.text.lower()
            case TokenKind.QUOTED_NAME:
                return self.text[1:-1].lower()
            case _:
                return ""

    @property
    def is_blank(self) -> bool:
        """Whether it is white space or a comment."""
        return self.kind in (TokenKind.SPACE, TokenKind.COMMENT)


BRACKETS = {"[": "]", "{": "}", "(": ")"}
"""Each opening bracket with its closing one."""

DEEPEST_NESTING = 100
"""The deepest nesting of brackets; HTCondor's parser gives up between 150 and 200."""

LONGEST_CHAIN = 8000
"""The most operators and operands of one expression in a row, with those of its brackets.

Of `1+1+1…` HTCondor's parser makes a tree as deep as it is long, which it copies and frees recursively: 8,000 operands
overflow a stack of 2 MiB, which ends the process. A name after a point counts twice, as it is an operator too.
"""

# An unclosed quote takes the rest of the text, or of its line: else each quote after it would search all of it again.
_TOKEN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<quoted_name>'(?:[^'\\\n]|\\.)*')
    | (?P<unclosed>/\*.*|".*|'(?:[^'\\\n]|\\.)*)
    | (?P<open>[\[{(])
    | (?P<close>[\]})])
    | (?P<comma>,)
    | (?P<semicolon>;)
    | (?P<word>[\w.]+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_UNCLOSED = {
    "/": "a comment is not closed",
    '"': "a text is not closed by a quote",
    "'": "a name is not closed by a quote",
}
_KINDS = {kind.name.lower(): kind for kind in TokenKind}
_ABOUT_TIME = re.compile(r"\b(current|format|abs|day)?time\b", re.IGNORECASE)
_PART_OF_DAY = 'int(formatTime({now}, "%%%s")) * %d'
_TIME_OF_DAY = " + ".join(_PART_OF_DAY % part for part in (("H", 3600), ("M", 60), ("S", 1)))
_CLOCKS = {
    "time": "{now}",
    "formattime": "formatTime({now})",
    "abstime": "absTime({now})",
    "daytime": f"real({_TIME_OF_DAY})",
}
"""Functions that read the machine's clock if called without arguments, with an equivalent for a given time."""


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of `text`, blank ones too; joined they are the text again."""
    for found in _TOKEN.finditer(text):
        yield Token(_KINDS[str(found.lastgroup)], found.group(), found.start())


def outline_fault(text: str) -> str | None:
    """Return why `text` cannot be one expression; None = its outline is valid.

    The parser would read only the first part of `1; other = 2` and of `1] [x = 2`, and join `"a" "b"`.
    It reads text that passes here to the end, or rejects it.
    """
    return _outline_fault(text, is_ad=False)


def ad_fault(text: str) -> str | None:
    """Return why `text` cannot be one ad in square brackets; None = its outline is valid."""
    return _outline_fault(text, is_ad=True)


def _outline_fault(text: str, *, is_ad: bool) -> str | None:
    open_brackets: list[str] = []
    chains = [_Chain()]
    previous: re.Match[str] | None = None
    for found in _TOKEN.finditer(text):  # not `tokens`, which takes three times as long
        kind = found.lastgroup
        if kind in ("space", "comment"):
            continue
        if is_ad and not open_brackets and (previous is not None or found.group() != "["):
            return "an ad must stand in square brackets, alone"
        fault = _fault_of(found, previous, open_brackets) or _fault_of_chain(found, chains)
        if fault is not None:
            return fault
        previous = found
    if previous is None:
        return "there is no value"
    return f"{open_brackets[-1]} is not closed" if open_brackets else None


def _fault_of(found: re.Match[str], previous: re.Match[str] | None, open_brackets: list[str]) -> str | None:
    """Return why a piece cannot follow those before it; adds it to the brackets, or removes the one that it closes."""
    match found.lastgroup:
        case "word" | "other" | "comma":
            return None
        case "unclosed":
            return _UNCLOSED[found.group()[0]]
        case "semicolon" if "[" not in open_brackets[-1:]:
            return "a semicolon inside a value"
        case "string" if previous is not None and previous.lastgroup == "string":
            return f"{previous.group()} and {found.group()} stand side by side without a comma"
        case "open":
            open_brackets.append(found.group())
            return f"brackets nest deeper than {DEEPEST_NESTING}" if len(open_brackets) > DEEPEST_NESTING else None
        case "close" if not open_brackets or BRACKETS[open_brackets.pop()] != found.group():
            return f"{found.group()} closes nothing"
        case _:
            return None


@dataclass(slots=True)
class _Chain:
    """The pieces since the last separator inside one bracket; `longest` is the largest number so far.

    A closed bracket counts in the chain that it stands in, for an operand may be as deep as its own chain.
    """

    length: int = 0
    longest: int = 0


def _fault_of_chain(found: re.Match[str], chains: list[_Chain]) -> str | None:
    chain = chains[-1]
    match found.lastgroup:
        case "open":
            chains.append(_Chain())
        case "close":
            chains.pop()
            chains[-1].length += 1 + max(chain.length, chain.longest)
        case "comma" | "semicolon":
            chain.longest = max(chain.length, chain.longest)
            chain.length = 0
        case "word":
            chain.length += 1 + 2 * found.group().count(".")
        case _:
            chain.length += 1
    return f"more than {LONGEST_CHAIN} operators and operands in a row" if chains[-1].length > LONGEST_CHAIN else None


def nesting(text: str) -> int:
    """Return the nesting depth of the brackets of `text`."""
    depth = deepest = 0
    for token in tokens(text):
        depth += (token.kind is TokenKind.OPEN) - (token.kind is TokenKind.CLOSE)
        deepest = max(deepest, depth)
    return deepest


def with_time_from(attribute: str, text: str) -> str:
    """Return `text` with every reading of the clock replaced by `attribute`.

    This concerns `time()`, `CurrentTime`, and the functions that use the present if called without a time.
    """
    if not _ABOUT_TIME.search(text):  # most texts; the tokenizer is slow
        return text
    pieces = list(tokens(text))
    visible = [index for index, piece in enumerate(pieces) if not piece.is_blank]
    for place, index in enumerate(visible):
        word = pieces[index].name
        if word == "currenttime" or (pieces[index].kind is TokenKind.WORD and word.endswith(".currenttime")):
            pieces[index] = replace(pieces[index], text=attribute)
        call = visible[place + 1 : place + 3]
        if word in _CLOCKS and [pieces[following].text for following in call] == ["(", ")"]:
            pieces[index] = replace(pieces[index], text=_CLOCKS[word].format(now=attribute))
            for following in call:
                pieces[following] = replace(pieces[following], text="")
    return "".join(piece.text for piece in pieces)


def calls(text: str) -> Iterator[str]:
    """Yield the names of the functions that `text` calls, in lower case."""
    previous: Token | None = None
    for token in tokens(text):
        if token.is_blank:
            continue
        if token.text == "(" and previous is not None and previous.name:
            yield previous.name
        previous = token


def bracketed(text: str) -> str:
    """Return an expression in brackets; a line end closes its last comment, which would hide the bracket."""
    return f"({text}\n)" if "//" in text else f"({text})"
