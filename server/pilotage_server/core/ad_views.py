"""Ads as an evaluation sees them: what an expression reaches of an ad, and nothing else of it.

Rules
-----
An expression is evaluated over what it reaches of both ads alone, so its result can depend on nothing else and may
be kept for equal excerpts. Reaching goes on through attributes that are expressions themselves. What an expression
names without a scope and its own ad lacks is wanted of the other ad; one that may refer to anything reaches, and
wants, everything. Names are folded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain

from pilotage.classad_evaluation import Ad
from pilotage.classad_references import References
from pilotage.classads import AdValue
from pilotage_server.core.expression_reach import are_literals, expression_texts, follow, is_random, refers_in

Names = frozenset[str] | None
"""Names of attributes; None = all that there are."""

NO_NAMES: frozenset[str] = frozenset()

MOST_EXCERPTS = 256
"""Excerpts that are remembered of one ad: everybody may ask for other names, but most ask for the same."""


class Excerpt:
    """What an evaluation reaches of one ad.

    `key` is equal for equal contents. `wants` = what the expressions in it want of the other ad. `passes` = it
    holds what is so at one time only.
    """

    __slots__ = ("_ad", "_values", "key", "passes", "wants")

    def __init__(self, values: Mapping[str, AdValue], wants: Names, *, passes: bool) -> None:
        self._values = values
        self._ad: Ad | None = None
        self.wants = wants
        self.passes = passes
        self.key = repr(sorted(values.items(), key=_by_name))  # unlike the values, it tells 1, 1.0 and true apart

    @property
    def is_plain(self) -> bool:
        """Whether nothing in it is an expression."""
        return are_literals(self._values.values())

    def get(self, name: str) -> AdValue | None:
        """Return what it holds under a folded name; None = nothing."""
        return self._values.get(name)

    def ad(self) -> Ad:
        """Return the ad to evaluate in; raises InvalidClassAdError for what an ad cannot hold."""
        if self._ad is None:
            self._ad = Ad(self._values)
        return self._ad


class AdView:
    """One ad, in layers of which the first that has an attribute wins.

    `passing` are the names of attributes that are so at one time only: they are in no layer, their values come
    with the questions (`AdNow`), and no excerpt with one of them is remembered.
    """

    def __init__(self, *layers: Mapping[str, AdValue], passing: frozenset[str] = NO_NAMES) -> None:
        self._layers = layers
        self.passing = passing
        self.excerpts: dict[tuple[Names, frozenset[str]], Excerpt] = {}

    def get(self, name: str) -> AdValue | None:
        """Return what the attribute is, a passing one apart; None = there is none."""
        if name in self.passing:
            return None
        for layer in self._layers:
            if name in layer:
                return layer[name]
        return None

    def names(self) -> Iterator[str]:
        """Yield the names of all attributes, passing ones apart, some of them more than once."""
        return (name for name in chain.from_iterable(self._layers) if name not in self.passing)

    def expressions(self) -> Iterator[str]:
        """Yield the texts of all expressions, also of those that are not reached."""
        return chain.from_iterable(expression_texts(layer.values()) for layer in self._layers)

    def is_left_to_chance(self, text: str) -> bool:
        """Whether the expression, evaluated in this ad, would be another each time."""
        found, _ = follow(refers_in(text, self.get), self.get)
        return any(map(is_random, chain([text], expression_texts(found.values()))))


class AdNow:
    """An ad at one time; `passing` gives the values of its passing attributes, when they are asked for."""

    def __init__(self, view: AdView, passing: Callable[[], Mapping[str, AdValue]]) -> None:
        self.view = view
        self._passing_values = passing
        self._passing: Mapping[str, AdValue] | None = None
        self._excerpts: dict[tuple[Names, frozenset[str]], Excerpt] = {}

    def excerpt(self, names: Names, free: frozenset[str] = NO_NAMES) -> Excerpt:
        """Return what is reached by who looks for `names` here, and first here for what is `free`."""
        key = (names, free)
        excerpt = self.view.excerpts.get(key) or self._excerpts.get(key)
        if excerpt is None:
            excerpt = self._whole() if names is None else self._part(names, free)
            remembered = self._excerpts if excerpt.passes else self.view.excerpts
            if len(remembered) >= MOST_EXCERPTS:
                remembered.clear()
            remembered[key] = excerpt
        return excerpt

    def refers_to(self, text: str) -> References:
        """Return what an expression of this ad refers to."""
        return refers_in(text, self._get)

    def _part(self, names: frozenset[str], free: frozenset[str]) -> Excerpt:
        found, refers = follow(References(names, free=free), self._get)
        if refers.is_dynamic:
            return self.excerpt(None)
        wants = refers.target | (refers.free - found.keys())
        return Excerpt(found, wants, passes=not self.view.passing.isdisjoint(refers.in_my))

    def _whole(self) -> Excerpt:
        names = dict.fromkeys(chain(self.view.names(), self.view.passing))
        values = {name: value for name in names if (value := self._get(name)) is not None}
        return Excerpt(values, None, passes=bool(self.view.passing))

    def _get(self, name: str) -> AdValue | None:
        if name not in self.view.passing:
            return self.view.get(name)
        if self._passing is None:
            self._passing = self._passing_values()
        return self._passing.get(name)


def _by_name(item: tuple[str, AdValue]) -> str:
    return item[0]
