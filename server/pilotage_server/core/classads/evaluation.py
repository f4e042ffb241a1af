"""Evaluation of expressions over one or two ads, and caches of results.

Rules
-----
- A result of two ads is cached by the expression and the projections of both ads. A result that depends on the time
  is not cached. When the cache is full, the least recently used slot values are removed with all their results.
- An expression that cannot be evaluated is an error value, never an exception.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pilotage.classads.evaluation import CURRENT_TIME, Ad, NoValue, Result, compile_expression, evaluate
from pilotage.classads.library import AdValue, Expression, InvalidClassAdError
from pilotage.classads.references import references
from pilotage.classads.tokens import calls, with_time_from
from pilotage.text import fold
from pilotage_server.core.classads.views import AdSnapshot, Names, Projection

MAX_TABLES = 4096
MAX_IN_A_TABLE = 20_000
MAX_RESULTS = 400_000

_KEPT_FRACTION = 7 / 8
"""Fraction of the results that stays when the cache is full."""

Table = dict[str, Result]
"""Results of one expression for one projection of the slot, by the key of the job's projection."""


class EvaluationCache:
    """A bounded cache of results."""

    def __init__(self, most_tables: int = MAX_TABLES, most_results: int = MAX_RESULTS) -> None:
        self._most_tables = most_tables
        self._most_results = most_results
        self._kept = 0
        self._tables: OrderedDict[tuple[str, bool, str], Table] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._tables.values()))

    def table(self, text: str, slot: Projection, *, of_job: bool) -> Table:
        """Return the results of a job's or a slot's expression for slots with this projection."""
        if slot.is_time_dependent:
            return {}
        key = (text, of_job, slot.key)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = {}
            if len(self._tables) > self._most_tables:
                self._kept -= len(self._tables.popitem(last=False)[1])
        else:
            self._tables.move_to_end(key)
        if len(table) >= MAX_IN_A_TABLE:
            self._kept -= len(table)
            table.clear()
        return table

    def add(self, table: Table, key: str, result: Result) -> None:
        """Store a result in one of the tables."""
        table[key] = result
        self._kept += 1
        if self._kept > self._most_results:
            self._evict()

    def _evict(self) -> None:
        """Remove the least recently used tables.

        The results are counted exactly only here, because results may have been added to removed tables.
        """
        self._kept = len(self)
        if self._kept > self._most_results:
            while self._kept > self._most_results * _KEPT_FRACTION:
                self._kept -= len(self._tables.popitem(last=False)[1])


class SlotExpression:
    """An expression of a slot, evaluated for many jobs; `job_names` = the job attributes that it reads."""

    def __init__(self, text: str, slot: AdSnapshot, evaluations: EvaluationCache) -> None:
        refers = slot.references_of(text)
        self._text = text
        self._slot = slot
        self._my_projection = slot.projection(None if refers.is_dynamic else refers.my, refers.free)
        self.job_names = _union(refers.target, self._my_projection.other_names)
        self._evaluations = evaluations
        self._table = evaluations.table(text, self._my_projection, of_job=False)
        self._time_dependent: Table = {}

    @property
    def slot_key(self) -> str:
        """A key that is equal for slots with equal results; "" where the expression depends on the time."""
        return "" if self._my_projection.is_time_dependent else self._my_projection.key

    def is_equal_within_class(self, job: AdSnapshot) -> bool:
        """Whether slots with equal keys give the same result for the job, now and later."""
        target_projection = job.projection(self.job_names)
        return not (
            self._my_projection.is_time_dependent
            or target_projection.is_time_dependent
            or _looks_back(target_projection, self._my_projection)
        )

    def value(self, job: AdSnapshot) -> Result:
        """Return the value of the expression for the job."""
        target_projection = job.projection(self.job_names)
        if _looks_back(target_projection, self._my_projection):
            return evaluate_projections(self._text, *mutual_projections(self._text, self._slot, job))
        table = self._time_dependent if target_projection.is_time_dependent else self._table
        result = table.get(target_projection.key)
        if result is None:
            result = evaluate_projections(self._text, self._my_projection, target_projection)
            if target_projection.is_time_dependent:
                table[target_projection.key] = result
            else:
                self._evaluations.add(table, target_projection.key, result)
        return result


class JobExpressions:
    """The expressions of jobs, evaluated for one slot."""

    def __init__(self, slot: AdSnapshot, evaluations: EvaluationCache) -> None:
        self._slot = slot
        self._evaluations = evaluations
        self._by_text: dict[tuple[str, Names], tuple[Projection, Table]] = {}

    def value(self, text: str, job: AdSnapshot) -> Result:
        """Return the value of the job's expression `text` for the slot."""
        refers = job.references_of(text)
        my_projection = job.projection(None if refers.is_dynamic else refers.my, refers.free)
        target_projection, table = self._looked_up(text, _union(refers.target, my_projection.other_names))
        if _looks_back(target_projection, my_projection):
            return evaluate_projections(text, *mutual_projections(text, job, self._slot))
        result = table.get(my_projection.key)
        if result is None:
            result = evaluate_projections(text, my_projection, target_projection)
            if not my_projection.is_time_dependent:
                self._evaluations.add(table, my_projection.key, result)
        return result

    def depends_on_whole_job(self, text: str, job: AdSnapshot) -> bool:
        """Whether the value may depend on more job attributes than the job's own expression reads."""
        refers = job.references_of(text)
        my_projection = job.projection(None if refers.is_dynamic else refers.my, refers.free)
        target_projection, _ = self._looked_up(text, _union(refers.target, my_projection.other_names))
        return _looks_back(target_projection, my_projection)

    def _looked_up(self, text: str, wanted: Names) -> tuple[Projection, Table]:
        found = self._by_text.get((text, wanted))
        if found is None:
            target_projection = self._slot.projection(wanted)
            found = self._by_text[text, wanted] = (
                target_projection,
                self._evaluations.table(text, target_projection, of_job=True),
            )
        return found


def mutual_projections(text: str, my: AdSnapshot, target: AdSnapshot) -> tuple[Projection, Projection]:
    """Return the projections that an expression needs of two ads whose expressions may refer to each other."""
    refers = my.references_of(text)
    names: Names = None if refers.is_dynamic else refers.my
    while True:
        my_projection = my.projection(names, refers.free)
        target_projection = target.projection(_union(refers.target, my_projection.other_names))
        needed = _union(names, target_projection.other_names)
        if needed == names:
            return my_projection, target_projection
        names = needed


def evaluate_projections(text: str, my_projection: Projection, target_projection: Projection | None) -> Result:
    """Return the value of an expression over these projections; `theirs` None = there is no TARGET.

    It is an error where an ad cannot hold a value, or where the evaluation would cost too much.
    """
    try:
        return evaluate(
            compile_expression(text), my_projection.ad(), None if target_projection is None else target_projection.ad()
        )
    except InvalidClassAdError:
        return NoValue.ERROR


def _looks_back(target_projection: Projection, my_projection: Projection) -> bool:
    """Whether expressions of the other ad may read attributes that the first projection lacks."""
    return my_projection.other_names is not None and (
        target_projection.other_names is None or bool(target_projection.other_names)
    )


def _union(names: Names, others: Names) -> Names:
    return None if names is None or others is None else names | others


_CLOCKS = frozenset({"time", "abstime", "formattime", "currenttime", "daytime"})
"""Functions that may read a clock."""

_TIMES = frozenset({fold(CURRENT_TIME), "servertime"})
"""Folded names of attributes that hold the time."""

_MAX_VALUES = 10_000


@dataclass(frozen=True, slots=True)
class _Needs:
    """What an expression reads of its own ad: folded names, all attributes (`whole`), the time (`timed`)."""

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
    """Return whether the value may change although the job does not."""
    needs = _needs_of(text)
    return needs.timed or needs.whole


def reads_any(text: str, names: frozenset[str]) -> bool:
    """Return whether the expression may read one of these folded names of its own ad."""
    needs = _needs_of(text)
    return needs.whole or not needs.names.isdisjoint(names)


def is_constant(text: str) -> bool:
    """Return whether the value is the same for every ad."""
    needs = _needs_of(text)
    return not (needs.names or needs.whole or needs.timed)


class FoldedAd:
    """The attributes of an ad by folded name; missing ones are taken from the ad `below`."""

    def __init__(self, attributes: Mapping[str, AdValue], fallback: FoldedAd | None = None) -> None:
        self._values: dict[str, AdValue] = {fold(name): value for name, value in attributes.items()}
        self._fallback = fallback

    def all(self) -> Mapping[str, AdValue]:
        """Return every attribute."""
        return self._values if self._fallback is None else {**self._fallback.all(), **self._values}

    def some(self, names: frozenset[str]) -> dict[str, AdValue] | None:
        """Return the named attributes; None = one of them is an expression and may refer to others."""
        found = {name: value for name in names if (value := self._get(name)) is not None}
        return None if any(isinstance(value, Expression | Mapping) for value in found.values()) else found

    def _get(self, name: str) -> AdValue | None:
        value = self._values.get(name)
        return self._fallback._get(name) if value is None and self._fallback is not None else value


class AdEvaluator:
    """Evaluates expressions over one ad at a time and caches the values by the attributes that they read."""

    def __init__(self, most_values: int = _MAX_VALUES) -> None:
        self._known: dict[tuple[str, tuple[tuple[str, str], ...]], Result] = {}
        self._most = most_values

    def value(self, text: str, ad: FoldedAd) -> Result:
        """Return the value of the expression in the ad. Expressions that depend on the time are not cached."""
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
