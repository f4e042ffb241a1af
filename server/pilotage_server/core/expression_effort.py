"""How much work it is to evaluate an expression, told before: the library cannot be stopped once it has begun.

Rules
-----
Followed is what an expression mentions, as often as it does, through attributes that are expressions themselves: a
few of them, each of which mentions the next one often, would keep a server busy for years. In which of the ads a name
is looked for is not asked, so what is counted here is rather too much. What eval makes up is not known here: it is
refused to users, and who runs a slot is trusted with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from pilotage.classad_bounds import GROWING, REPEATING, evaluated_texts
from pilotage.classad_patterns import weight_of_patterns
from pilotage.classad_text import Kind, calls, tokens
from pilotage.classads import AdValue
from pilotage.folding import fold
from pilotage_server.core.expression_reach import expression_texts

Get: TypeAlias = "Callable[[str], AdValue | None]"
"""Returns what an ad says under a folded name; None = nothing."""

MOST_STEPS = 10_000
"""Mentions of attributes that are looked up in one evaluation."""

STEPS_OF_PATTERN = 100
"""What it counts to look for a pattern."""

STEPS_OF_USERS_PATTERN = 900
"""What it counts where a user wrote all of it, and perhaps to keep the server busy."""

LONGEST_CHAIN = 50
"""Attributes each of which mentions the next one."""

MOST_CHARACTERS = 2**28
"""Length of a text that could come of texts that are put into one another."""

_USUAL_LIST = 16
_REMEMBERED = 8192


def is_laborious(text: str, gets: Sequence[Get], steps_of_pattern: int = STEPS_OF_PATTERN) -> bool:
    """Whether to evaluate the expression over these ads could be more work than there is time for."""
    effort = _Effort(gets, steps_of_pattern)
    effort.follow(text, _Level())
    return effort.is_too_much


def is_multiplying(text: str) -> bool:
    """Whether the work of an expression is more than that of what it mentions."""
    return _outline(text).repeats or _outline(text).grows


class _Outline(NamedTuple):
    """What an expression mentions, folded and as often as it does, and which kinds of functions it calls.

    `patterns` = how often it looks for one.
    """

    mentions: tuple[str, ...]
    repeats: bool
    grows: bool
    patterns: int


@lru_cache(maxsize=_REMEMBERED)
def _outline(text: str) -> _Outline:
    called = set(calls(text))
    evaluated = [_outline(inner) for inner in evaluated_texts(text) if inner is not None]
    said = [name for token in tokens(text) for name in _names(token.kind, token.name)]
    return _Outline(
        (*said, *(name for outline in evaluated for name in outline.mentions)),
        bool(called & REPEATING) or any(outline.repeats for outline in evaluated),
        bool(called & GROWING) or any(outline.grows for outline in evaluated),
        weight_of_patterns(text),
    )


def _names(kind: Kind, name: str) -> list[str]:
    return list(filter(None, fold(name).split("."))) if kind is Kind.WORD else [fold(name)] if name else []


class _Level(NamedTuple):
    """Where in an evaluation an expression stands: how often it is evaluated there, and what leads to it."""

    times: int = 1
    growth: int = 0
    path: tuple[str, ...] = ()


class _Effort:
    """What it takes to evaluate an expression, as far as it was followed."""

    def __init__(self, gets: Sequence[Get], steps_of_pattern: int) -> None:
        self._gets = gets
        self._steps_of_pattern = steps_of_pattern
        self._steps = 0
        self._size = 0
        self._growth = 0
        self._is_endless = False

    @property
    def is_too_much(self) -> bool:
        """Whether the work is more than is allowed, whatever else there is to be followed."""
        is_growing = self._growth > 0 and self._size ** (self._growth + 1) > MOST_CHARACTERS
        return self._is_endless or self._steps > MOST_STEPS or is_growing

    def follow(self, text: str, at: _Level) -> None:
        """Count an expression with all that it leads to."""
        outline = _outline(text)
        self._size += len(text)
        self._is_endless |= len(at.path) > LONGEST_CHAIN
        found = {name: self._values(name) for name in set(outline.mentions).difference(at.path)}
        times = at.times * (_elements(text, found.values()) if outline.repeats else 1)
        growth = at.growth + outline.grows
        self._growth = max(self._growth, growth)
        self._steps += times * self._steps_of_pattern * outline.patterns
        for name in outline.mentions:
            if self.is_too_much:
                return
            self._steps += times
            for value in found.get(name, ()):
                self._size += _length(value)
                for inner in expression_texts([value]):
                    self.follow(inner, _Level(times, growth, (*at.path, name)))

    def _values(self, name: str) -> list[AdValue]:
        return [value for get in self._gets if (value := get(name)) is not None]


def _elements(text: str, found: Iterable[list[AdValue]]) -> int:
    """Return of how many elements the lists may be that an expression repeats something for."""
    lists = [value for values in found for value in values if isinstance(value, tuple)]
    return _USUAL_LIST + text.count(",") + sum(map(len, lists))


def _length(value: AdValue) -> int:
    match value:
        case str():
            return len(value)
        case tuple():
            return sum(map(_length, value))
        case _:
            return 0
