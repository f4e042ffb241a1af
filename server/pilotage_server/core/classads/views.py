"""Projections of ads: the attributes that an expression can read, directly or through other attributes.

Rules
-----
- An expression is evaluated over the projections of both ads alone. Equal projections give equal results, so
  results can be cached.
- The reference closure follows attributes that are expressions. If an attribute may be read, it is included.
- A name without a scope that its own ad lacks is looked up in the other ad.
- `eval` of a text that the ad itself determines is followed: site policies write
  `eval(strcat("slot", SlotID + 8, "_State"))` for lack of arrays. Any other `eval` may read everything.
  Both the number of these texts in an expression and the cost of each are bounded.
- Names are folded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, TypeAlias

from pilotage.classads.cost import MAX_STEPS_OF_EVAL, TooCostlyError
from pilotage.classads.evaluation import CURRENT_TIME, Ad, compile_expression, evaluate, evaluation_cost
from pilotage.classads.library import AdValue, Expression, InvalidClassAdError
from pilotage.classads.references import References, references
from pilotage.classads.tokens import Token, TokenKind, calls, tokens, with_time_from

Get: TypeAlias = "Callable[[str], AdValue | None]"
"""Returns the value of an attribute by folded name; None = missing."""

_CACHE_SIZE = 8192


@lru_cache(maxsize=_CACHE_SIZE)
def expression_references(text: str) -> References:
    """Return the references of an expression, including the time."""
    return references(with_time_from(CURRENT_TIME, text))


MAX_EVALS = 200
"""Calls of eval in one expression that are followed; an expression with more may read everything."""


def references_in(text: str, get: Get) -> References:
    """Return the references of an expression of this ad, including the names that its `eval` calls yield."""
    refers = expression_references(text)
    if not refers.is_dynamic:
        return refers
    parts = _without_evals(text)
    found = expression_references(parts.rest)
    if len(parts.arguments) > MAX_EVALS:
        return refers
    for argument in parts.arguments:
        found |= _evaluated_names(argument, get)
    return refers if found.is_dynamic else found


def reference_closure(refers: References, get: Get) -> tuple[dict[str, AdValue], References]:
    """Return the attributes that are referred to, directly or through others, and all references found."""
    return _follow(refers, get, lambda text: references_in(text, get))


def _follow(
    refers: References, get: Get, refers_of: Callable[[str], References]
) -> tuple[dict[str, AdValue], References]:
    found: dict[str, AdValue] = {}
    looked_up: frozenset[str] = frozenset()
    while new := refers.in_my - looked_up:
        looked_up |= new
        values = {name: value for name in new if (value := get(name)) is not None}
        found |= values
        for text in expression_texts(values.values()):
            refers |= refers_of(text)
    return found, refers


@lru_cache(maxsize=_CACHE_SIZE)
def is_random(text: str) -> bool:
    """Whether the value differs between evaluations."""
    return "random" in calls(text)


def are_literals(values: Iterable[AdValue]) -> bool:
    """Whether none of the values is or contains an expression."""
    # Exact types first: isinstance() with Mapping takes ten times as long.
    return all(type(value) in _LITERALS or not isinstance(value, _HOLDERS) for value in values)


_LITERALS = frozenset({str, int, float, bool})
_HOLDERS = (Expression, tuple, Mapping)


def expression_texts(values: Iterable[AdValue]) -> Iterator[str]:
    """Yield the texts of the expressions in these values, at any depth."""
    for value in values:
        match value:
            case Expression(text):
                yield text
            case tuple():
                yield from expression_texts(value)
            case Mapping():
                yield from expression_texts(value.values())
            case _:
                pass


class _EvalCalls(NamedTuple):
    """An expression with each call of eval replaced by 0, and the arguments of these calls."""

    rest: str
    arguments: tuple[str, ...]


@lru_cache(maxsize=_CACHE_SIZE)
def _without_evals(text: str) -> _EvalCalls:
    pieces = [token for token in tokens(with_time_from(CURRENT_TIME, text)) if not token.is_blank]
    rest: list[str] = []
    arguments: list[str] = []
    index = 0
    while index < len(pieces):
        end = _end_of_eval(pieces, index)
        if end is None:
            rest.append(pieces[index].text)
            index += 1
        else:
            rest.append("0")
            arguments.append(" ".join(token.text for token in pieces[index + 2 : end]))
            index = end + 1
    return _EvalCalls(" ".join(rest), tuple(arguments))


def _end_of_eval(pieces: list[Token], index: int) -> int | None:
    """Return the index of the bracket that closes the call of eval at `place`; None = no call begins there."""
    if pieces[index].text.lower() != "eval" or [token.text for token in pieces[index + 1 : index + 2]] != ["("]:
        return None
    depth = 0
    for end in range(index + 1, len(pieces)):
        depth += (pieces[end].kind is TokenKind.OPEN) - (pieces[end].kind is TokenKind.CLOSE)
        if depth == 0:
            return end
    return None


_ANYTHING = References(is_dynamic=True)


def _evaluated_names(argument: str, get: Get) -> References:
    """Return the references of `eval(argument)`: those of the argument and those of the text that it yields."""
    direct = expression_references(argument)
    if direct.is_dynamic or direct.target:
        return _ANYTHING
    found, refers = _follow(direct, get, expression_references)  # nested evals are not followed
    if refers.is_dynamic or refers.target or refers.free - found.keys():
        return _ANYTHING
    try:
        ad = Ad(found)
        if evaluation_cost(argument, ad).steps > MAX_STEPS_OF_EVAL:
            return _ANYTHING
        text = evaluate(compile_expression(argument), ad)
    except (InvalidClassAdError, TooCostlyError):
        return _ANYTHING
    return direct | expression_references(text) if isinstance(text, str) else direct


Names = frozenset[str] | None
"""Attribute names; None = all."""

NO_NAMES: frozenset[str] = frozenset()

MAX_PROJECTIONS = 256
"""Projections that are cached for one ad. Most expressions need the same few."""


class Projection:
    """The attributes of one ad that an evaluation can read.

    `key` is equal for equal contents. `other_names` = the attributes of the other ad that its expressions read.
    `is_time_dependent` = it holds values of one moment.
    """

    __slots__ = ("_ad", "_values", "is_time_dependent", "key", "other_names")

    def __init__(self, values: Mapping[str, AdValue], other_names: Names, *, is_time_dependent: bool) -> None:
        self._values = values
        self._ad: Ad | None = None
        self.other_names = other_names
        self.is_time_dependent = is_time_dependent
        self.key = repr(sorted(values.items(), key=_by_name))  # as texts, 1, 1.0 and true differ

    @property
    def is_plain(self) -> bool:
        """Whether no value is an expression."""
        return are_literals(self._values.values())

    def get(self, name: str) -> AdValue | None:
        """Return the value of a folded name; None = missing."""
        return self._values.get(name)

    def ad(self) -> Ad:
        """Return the ad to evaluate in; raises InvalidClassAdError where a value cannot be part of an ad."""
        if self._ad is None:
            self._ad = Ad(self._values)
        return self._ad


class AdView:
    """One ad in layers; the first layer that has an attribute wins.

    The values of the `time_dependent` attributes are in no layer: an `AdSnapshot` supplies them. Projections with such
    an attribute are not cached here.
    """

    def __init__(self, *layers: Mapping[str, AdValue], time_dependent: frozenset[str] = NO_NAMES) -> None:
        self._layers = layers
        self.time_dependent = time_dependent
        self.projections: dict[tuple[Names, frozenset[str]], Projection] = {}

    def get(self, name: str) -> AdValue | None:
        """Return the value of an attribute; None = missing or time-dependent."""
        if name in self.time_dependent:
            return None
        for layer in self._layers:
            if name in layer:
                return layer[name]
        return None

    def names(self) -> Iterator[str]:
        """Yield the names of all attributes that do not depend on the time; names may repeat."""
        return (name for name in chain.from_iterable(self._layers) if name not in self.time_dependent)

    def expressions(self) -> Iterator[str]:
        """Yield the texts of all expressions."""
        return chain.from_iterable(expression_texts(layer.values()) for layer in self._layers)

    def is_random(self, text: str) -> bool:
        """Whether the value of the expression in this ad differs between evaluations."""
        found, _ = reference_closure(references_in(text, self.get), self.get)
        return any(map(is_random, chain([text], expression_texts(found.values()))))


class AdSnapshot:
    """An ad at one time; `passing` returns the values of the time-dependent attributes and is called at most once."""

    def __init__(self, view: AdView, load_time_dependent: Callable[[], Mapping[str, AdValue]]) -> None:
        self.view = view
        self._load_time_dependent = load_time_dependent
        self._time_dependent: Mapping[str, AdValue] | None = None
        self._projections: dict[tuple[Names, frozenset[str]], Projection] = {}

    def projection(self, names: Names, free: frozenset[str] = NO_NAMES) -> Projection:
        """Return the projection for `names`, and for `free` names, which are looked up here first."""
        key = (names, free)
        projection = self.view.projections.get(key) or self._projections.get(key)
        if projection is None:
            projection = self._full_projection() if names is None else self._closure_projection(names, free)
            cache = self._projections if projection.is_time_dependent else self.view.projections
            if len(cache) >= MAX_PROJECTIONS:
                cache.clear()
            cache[key] = projection
        return projection

    def references_of(self, text: str) -> References:
        """Return the references of an expression of this ad."""
        return references_in(text, self._get)

    def _closure_projection(self, names: frozenset[str], free: frozenset[str]) -> Projection:
        found, refers = reference_closure(References(names, free=free), self._get)
        if refers.is_dynamic:
            return self.projection(None)
        wants = refers.target | (refers.free - found.keys())
        return Projection(found, wants, is_time_dependent=not self.view.time_dependent.isdisjoint(refers.in_my))

    def _full_projection(self) -> Projection:
        names = dict.fromkeys(chain(self.view.names(), self.view.time_dependent))
        values = {name: value for name in names if (value := self._get(name)) is not None}
        return Projection(values, None, is_time_dependent=bool(self.view.time_dependent))

    def _get(self, name: str) -> AdValue | None:
        if name not in self.view.time_dependent:
            return self.view.get(name)
        if self._time_dependent is None:
            self._time_dependent = self._load_time_dependent()
        return self._time_dependent.get(name)


def _by_name(item: tuple[str, AdValue]) -> str:
    return item[0]
