"""Evaluates expressions over one ad at a time, each once for equal values of what it refers to.

Rules
-----
Nothing is remembered of an expression that depends on time or may refer to anything. What cannot be evaluated is
an error value, never an exception: the expression was checked when it came in, and an ad may hold anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pilotage.classad_evaluation import CURRENT_TIME, Ad, NoValue, Result, compile_expression, evaluate
from pilotage.classad_references import references
from pilotage.classad_text import calls, with_time_from
from pilotage.classads import AdValue, Expression, InvalidClassAdError
from pilotage.folding import fold

_CLOCKS = frozenset({"time", "abstime", "formattime", "currenttime", "daytime"})
"""Functions that may look at a clock."""

_TIMES = frozenset({fold(CURRENT_TIME), "servertime"})
"""Attributes that tell the time, folded."""

_MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class _Needs:
    """What an expression looks at in its own ad: folded names, everything (`whole`), the time (`timed`)."""

    names: frozenset[str]
    whole: bool
    timed: bool


@lru_cache(maxsize=4096)
def _needs_of(text: str) -> _Needs:
    timed_text = with_time_from(CURRENT_TIME, text)
    referred = references(timed_text)
    timed = bool(_TIMES & referred.in_my or _CLOCKS & set(calls(timed_text)))
    return _Needs(referred.in_my, referred.is_dynamic, timed)


def changes_with_time(text: str) -> bool:
    """Return whether what the expression evaluates to may change though nothing happens to the job."""
    needs = _needs_of(text)
    return needs.timed or needs.whole


def is_constant(text: str) -> bool:
    """Return whether the expression evaluates to the same for every ad."""
    needs = _needs_of(text)
    return not (needs.names or needs.whole or needs.timed)


class FoldedAd:
    """The attributes of an ad by folded name; what they do not say, the ad `below` them says."""

    def __init__(self, attributes: Mapping[str, AdValue], below: FoldedAd | None = None) -> None:
        self._values: dict[str, AdValue] = {fold(name): value for name, value in attributes.items()}
        self._below = below

    def all(self) -> Mapping[str, AdValue]:
        """Return every attribute."""
        return self._values if self._below is None else {**self._below.all(), **self._values}

    def some(self, names: frozenset[str]) -> dict[str, AdValue] | None:
        """Return the named attributes; None = some of them refers to others in its turn."""
        found = {name: value for name in names if (value := self._get(name)) is not None}
        return None if any(isinstance(value, Expression | Mapping) for value in found.values()) else found

    def _get(self, name: str) -> AdValue | None:
        value = self._values.get(name)
        return self._below._get(name) if value is None and self._below is not None else value


class AdEvaluator:
    """Evaluates expressions and remembers what they were."""

    def __init__(self, most_remembered: int = _MOST_REMEMBERED) -> None:
        self._known: dict[tuple[str, tuple[tuple[str, str], ...]], Result] = {}
        self._most = most_remembered

    def value(self, text: str, ad: FoldedAd) -> Result:
        """Return what the expression evaluates to in the ad."""
        needs = _needs_of(text)
        values = None if needs.whole else ad.some(needs.names)
        if values is None:
            return _evaluated(text, ad.all())
        if needs.timed:
            return _evaluated(text, values)
        key = (text, tuple(sorted((name, repr(value)) for name, value in values.items())))
        if key not in self._known:
            while len(self._known) >= self._most:
                del self._known[next(iter(self._known))]
            self._known[key] = _evaluated(text, values)
        return self._known[key]


def _evaluated(text: str, values: Mapping[str, AdValue]) -> Result:
    try:
        return evaluate(compile_expression(text, refuse_random=True), Ad(values))
    except InvalidClassAdError:
        return NoValue.ERROR
