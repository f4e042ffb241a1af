"""The attributes that a ClassAd expression refers to, by scope.

Rules
-----
Only the outline is read, without the library. A word that may be a reference counts as one. An expression that
evaluates a text may refer to anything and is `is_dynamic`. A cached result is therefore valid for equal values of
all attributes referred to. A name that a nested ad lacks is looked up in the ad around it, so that of `MY.a.b` both `a`
and `b` count. Names are folded. Source: the ClassAd language reference (scopes).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from pilotage.classads.tokens import Token, TokenKind, tokens
from pilotage.text import fold

_CACHE_SIZE = 4096
_MY = frozenset({"my", "self"})
_TARGET = frozenset({"target", "other"})
_WHOLE_ADS = frozenset({"parent", "toplevel", "root"})
_KEYWORDS = frozenset({"true", "false", "undefined", "error", "is", "isnt"})
_EVALUATING = frozenset({"eval", "evalineachcontext", "countmatches"})
"""Functions that evaluate a text, or an expression in every ad of a list."""


@dataclass(frozen=True, slots=True)
class References:
    """The attributes that an expression refers to: in MY, in TARGET, and `free` (in MY, else in TARGET).

    `is_dynamic` = it may refer to any other attribute too.
    """

    my: frozenset[str] = frozenset()
    target: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()
    is_dynamic: bool = False

    @property
    def in_my(self) -> frozenset[str]:
        """All names that may be looked up in MY."""
        return self.my | self.free

    def __or__(self, other: References) -> References:
        return References(
            self.my | other.my,
            self.target | other.target,
            self.free | other.free,
            self.is_dynamic or other.is_dynamic,
        )


@lru_cache(maxsize=_CACHE_SIZE)
def references(text: str) -> References:
    """Return the references of the expression `text`."""
    found: dict[str, set[str]] = {"my": set(), "target": set(), "free": set()}
    is_dynamic = False
    for token, is_call in _words(text):
        if token.kind is TokenKind.QUOTED_NAME and "\\" in token.text:
            is_dynamic = True  # its escapes are not decoded here
        elif is_call:
            is_dynamic |= token.name in _EVALUATING
        elif token.kind is TokenKind.QUOTED_NAME:
            found["free"].add(fold(token.text[1:-1]))
        elif token.text.startswith(".") or token.text.endswith("."):
            is_dynamic = True  # blanks around the point of a scope: rare, not worth a grammar
        elif not token.text[0].isdigit():
            is_dynamic |= _is_whole_ad(fold(token.text))
            scope, names = _scoped(fold(token.text))
            found[scope] |= names - _KEYWORDS
    return References(frozenset(found["my"]), frozenset(found["target"]), frozenset(found["free"]), is_dynamic)


def nested_names(text: str) -> frozenset[str]:
    """Return the folded names that the expression looks up in nested ads, such as `b` of `MY.a.b`."""
    words = (fold(token.text).split(".") for token, is_call in _words(text) if not is_call)
    return frozenset(name for first, *names in words for name in names[first in _MY | _TARGET :])


def _words(text: str) -> Iterator[tuple[Token, bool]]:
    """Yield the words and quoted names, each with whether it is a function call."""
    word: Token | None = None
    for token in tokens(text):
        if token.is_blank:
            continue
        if word is not None:
            yield word, token.text == "("
        word = token if token.kind in (TokenKind.WORD, TokenKind.QUOTED_NAME) else None
    if word is not None:
        yield word, False


def _is_whole_ad(word: str) -> bool:
    """Return whether the word stands for a whole ad, as in TARGET["name"], or searches the enclosing ads."""
    return word in _MY | _TARGET or word.partition(".")[0] in _WHOLE_ADS


def _scoped(word: str) -> tuple[str, set[str]]:
    """Return the scope of a word and its names."""
    scope, *names = word.split(".")
    if names and scope in _MY:
        return "my", set(names)
    if names and scope in _TARGET:
        return "target", set(names)
    return "free", {scope, *names}
