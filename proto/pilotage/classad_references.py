"""Which attributes a ClassAd expression refers to, and in which scope.

Rules
-----
Read from the outline alone, without the library. What is not sure to be no reference counts as one, and an
expression that may refer to anything (it evaluates a text) says so: results may be kept for equal values of the
attributes referred to, and for nothing less. Names are folded. Source: the ClassAd language reference (scopes).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from pilotage.classad_text import Kind, Token, tokens
from pilotage.folding import fold

_REMEMBERED = 4096
_MY = frozenset({"my", "self"})
_TARGET = frozenset({"target", "other"})
_WHOLE_ADS = frozenset({"parent", "toplevel", "root"})
_KEYWORDS = frozenset({"true", "false", "undefined", "error", "is", "isnt"})
_EVALUATING = frozenset({"eval", "evalineachcontext", "countmatches"})
"""Functions that look up what a text, or every ad of a list, says."""


@dataclass(frozen=True, slots=True)
class References:
    """The attributes that an expression refers to: in MY, in TARGET, and `free` (in MY, else in TARGET).

    `is_dynamic` = it may refer to any other attribute besides.
    """

    my: frozenset[str] = frozenset()
    target: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()
    is_dynamic: bool = False

    @property
    def in_my(self) -> frozenset[str]:
        """All that may be looked for in MY."""
        return self.my | self.free

    def __or__(self, other: References) -> References:
        return References(
            self.my | other.my,
            self.target | other.target,
            self.free | other.free,
            self.is_dynamic or other.is_dynamic,
        )


@lru_cache(maxsize=_REMEMBERED)
def references(text: str) -> References:
    """Return what the expression `text` refers to."""
    found: dict[str, set[str]] = {"my": set(), "target": set(), "free": set()}
    is_dynamic = False
    for token, is_call in _words(text):
        if token.kind is Kind.QUOTED_NAME and "\\" in token.text:
            is_dynamic = True  # it names what its escapes come to
        elif is_call:
            is_dynamic |= token.name in _EVALUATING
        elif token.kind is Kind.QUOTED_NAME:
            found["free"].add(fold(token.text[1:-1]))
        elif token.text.startswith(".") or token.text.endswith("."):
            is_dynamic = True  # blanks around the point of a scope: rare, and not worth a grammar
        elif not token.text[0].isdigit():
            is_dynamic |= _is_whole_ad(fold(token.text))
            scope, name = _scoped(fold(token.text))
            found[scope] |= {name} - _KEYWORDS
    return References(frozenset(found["my"]), frozenset(found["target"]), frozenset(found["free"]), is_dynamic)


def _words(text: str) -> Iterator[tuple[Token, bool]]:
    """Yield the words and quoted names, each with whether it is a function that is called."""
    word: Token | None = None
    for token in tokens(text):
        if token.is_blank:
            continue
        if word is not None:
            yield word, token.text == "("
        word = token if token.kind in (Kind.WORD, Kind.QUOTED_NAME) else None
    if word is not None:
        yield word, False


def _is_whole_ad(word: str) -> bool:
    """Whether the word stands for an ad, as in TARGET["name"], or looks through the ads around it."""
    return word in _MY | _TARGET or word.partition(".")[0] in _WHOLE_ADS


def _scoped(word: str) -> tuple[str, str]:
    scope, _, rest = word.partition(".")
    if rest and scope in _MY:
        return "my", rest.partition(".")[0]
    if rest and scope in _TARGET:
        return "target", rest.partition(".")[0]
    return "free", scope
