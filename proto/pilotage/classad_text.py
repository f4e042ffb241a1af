"""The outline of ClassAd text: strings, comments, brackets and separators, with their positions.

Rules
-----
Only the outline is read here: what a piece means is for HTCondor's own parser (`pilotage.classads`). Text is
never refused: what does not fit (a string without an end, a stray character) is a token like any other.
Source of the lexical rules: the ClassAd language reference (strings, quoted names, the two kinds of comment).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum


class Kind(StrEnum):
    """What a token is."""

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
    """A piece of a text: `text` begins at character `start` of it."""

    kind: Kind
    text: str
    start: int

    @property
    def end(self) -> int:
        """The position after its last character."""
        return self.start + len(self.text)

    @property
    def name(self) -> str:
        """What it may name, in lower case: the library takes quoted names for what they hold; "" = nothing."""
        match self.kind:
            case Kind.WORD:
                return self.text.lower()
            case Kind.QUOTED_NAME:
                return self.text[1:-1].lower()
            case _:
                return ""

    @property
    def is_blank(self) -> bool:
        """Whether it separates tokens and says nothing."""
        return self.kind in (Kind.SPACE, Kind.COMMENT)


BRACKETS = {"[": "]", "{": "}", "(": ")"}
"""Each opening bracket and what closes it."""

_TOKEN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<quoted_name>'(?:[^'\\\n]|\\.)*')
    | (?P<unclosed>/\*.*|".*)
    | (?P<open>[\[{(])
    | (?P<close>[\]})])
    | (?P<comma>,)
    | (?P<semicolon>;)
    | (?P<word>[\w.]+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_KINDS = {kind.name.lower(): kind for kind in Kind}
_ABOUT_TIME = re.compile(r"\b(current|format|abs|day)?time\b", re.IGNORECASE)
_PART_OF_DAY = 'int(formatTime({now}, "%%%s")) * %d'
_TIME_OF_DAY = " + ".join(_PART_OF_DAY % part for part in (("H", 3600), ("M", 60), ("S", 1)))
_CLOCKS = {
    "time": "{now}",
    "formattime": "formatTime({now})",
    "abstime": "absTime({now})",
    "daytime": f"real({_TIME_OF_DAY})",
}
"""Functions that look at the machine's clock when they are given nothing, and what says the same of any time."""


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of `text`, blank ones too: joined they are the text again."""
    for found in _TOKEN.finditer(text):
        yield Token(_KINDS[str(found.lastgroup)], found.group(), found.start())


def outline_fault(text: str) -> str | None:
    """Return why `text` cannot be one expression, None = its outline is whole.

    The parser would take the first part of `1; other = 2` and of `1] [x = 2`, and glue `"a" "b"` together;
    text that passes here is read to its end or refused.
    """
    open_brackets: list[str] = []
    previous: Token | None = None
    for token in tokens(text):
        if token.is_blank:
            continue
        fault = _fault_of(token, previous, open_brackets)
        if fault is not None:
            return fault
        previous = token
    if previous is None:
        return "there is no value"
    return f"{open_brackets[-1]} is not closed" if open_brackets else None


def _fault_of(token: Token, previous: Token | None, open_brackets: list[str]) -> str | None:
    if token.kind is Kind.UNCLOSED:
        return "a comment is not closed" if token.text.startswith("/*") else "a text is not closed by a quote"
    if token.kind is Kind.SEMICOLON and "[" not in open_brackets[-1:]:
        return "a semicolon inside a value"
    if token.kind is Kind.STRING and previous is not None and previous.kind is Kind.STRING:
        return f"{previous.text} and {token.text} stand side by side without a comma"
    if token.kind is Kind.OPEN:
        open_brackets.append(token.text)
    elif token.kind is Kind.CLOSE and (not open_brackets or BRACKETS[open_brackets.pop()] != token.text):
        return f"{token.text} closes nothing"
    return None


def ad_fault(text: str) -> str | None:
    """Return why `text` cannot be one ad in square brackets, None = its outline is whole."""
    fault = outline_fault(text)
    if fault is not None:
        return fault
    depth = 0
    spoken = [token for token in tokens(text) if not token.is_blank]
    for place, token in enumerate(spoken, start=1):
        depth += (token.kind is Kind.OPEN) - (token.kind is Kind.CLOSE)
        if depth == 0 and (place < len(spoken) or token.text != "]"):
            return "an ad stands in square brackets, alone"
    return None


def nesting(text: str) -> int:
    """Return how deep the brackets of `text` nest."""
    depth = deepest = 0
    for token in tokens(text):
        depth += (token.kind is Kind.OPEN) - (token.kind is Kind.CLOSE)
        deepest = max(deepest, depth)
    return deepest


def with_time_from(attribute: str, text: str) -> str:
    """Return `text` with all that looks at a clock looking at `attribute` instead: time is what the ad says it is.

    That is `time()` and `CurrentTime`, and the functions that mean the present where no time is given to them.
    """
    if not _ABOUT_TIME.search(text):  # so are most texts, and to cut them up takes long
        return text
    pieces = list(tokens(text))
    spoken = [index for index, piece in enumerate(pieces) if not piece.is_blank]
    for place, index in enumerate(spoken):
        word = pieces[index].name
        if word == "currenttime" or (pieces[index].kind is Kind.WORD and word.endswith(".currenttime")):
            pieces[index] = replace(pieces[index], text=attribute)
        call = spoken[place + 1 : place + 3]
        if word in _CLOCKS and [pieces[following].text for following in call] == ["(", ")"]:
            pieces[index] = replace(pieces[index], text=_CLOCKS[word].format(now=attribute))
            for following in call:
                pieces[following] = replace(pieces[following], text="")
    return "".join(piece.text for piece in pieces)


def calls(text: str) -> Iterator[str]:
    """Yield the names, in lower case, of the functions that `text` calls."""
    previous: Token | None = None
    for token in tokens(text):
        if token.is_blank:
            continue
        if token.text == "(" and previous is not None and previous.name:
            yield previous.name
        previous = token
