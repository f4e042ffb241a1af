"""Which routes of a table a job may take by what it is: yes or no alone, for many jobs in a short time.

Rules
-----
The same questions as `routing.verdicts` asks, without the reasons and without what the routes have already: only what
is True counts. Routes that ask the same are asked once. Jobs that are equal in all that the table looks at are judged
once; never so where that refers to more in its turn, as an attribute that is an expression does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pilotage.ad_text import ad_text
from pilotage.classad_evaluation import CURRENT_TIME, Ad, CompiledExpression, compile_expression, evaluate, is_true
from pilotage.classad_references import References, references
from pilotage.classad_text import with_time_from
from pilotage.classads import AdValue, Expression
from pilotage.folding import fold
from pilotage_agents.core.routes.route_fields import expression_text
from pilotage_agents.core.routes.route_table import RouteTable

_MOST_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class _Question:
    """What must be True of a job; `own` is the ad that asks, None = the job's own.

    `looks_at` is what the answer depends on. `key` is equal for questions that have the same answer for every job that
    says nothing but plain values of that.
    """

    expression: CompiledExpression
    own: Ad | None
    looks_at: References
    key: tuple[str, str]

    @classmethod
    def of(cls, text: str, own: Mapping[str, AdValue] | None) -> Self:
        """Return what the expression asks, in an ad with the attributes `own`, or in that of the job (None)."""
        looks_at, led_to = _led_to(text, own or {})
        ad, key = (None, "") if own is None else (Ad(own), ad_text(led_to))
        return cls(compile_expression(text), ad, looks_at, (text, key))

    def is_answered(self, my: Ad, target: Ad) -> bool:
        """Return whether it is True of a job, of which both are the ad."""
        return is_true(evaluate(self.expression, self.own or my, target))


class Judge:
    """Says of one job after another which routes of a table it may take, limits aside."""

    def __init__(self, table: RouteTable, most_remembered: int = _MOST_REMEMBERED) -> None:
        self._of_all = None if table.constraint is None else _Question.of(table.constraint, None)
        said = ((route.requirements, route.own) for route in table.routes)
        self._routes = tuple(None if text is None else _Question.of(text, own) for text, own in said)
        keys = [question and question.key for question in self._routes]
        self._firsts = tuple(map(keys.index, keys))
        looked_at = [question.looks_at for question in (self._of_all, *self._routes) if question is not None]
        self._names = tuple(sorted(frozenset().union(*(each.in_my | each.target for each in looked_at))))
        self._sees_all = any(each.is_dynamic for each in looked_at)
        self._known: dict[tuple[str, ...], tuple[int, ...]] = {}
        self._most = most_remembered

    @property
    def looks_at_time(self) -> bool:
        """Whether the answer for a job may be another later, though nothing has changed."""
        return self._sees_all or fold(CURRENT_TIME) in self._names

    def fulfilled(self, job: Mapping[str, AdValue]) -> tuple[int, ...]:
        """Return the places in the table, from 0, of the routes that the job with these attributes may take, in order.

        They are none where it does not fulfil the table's constraint. Raises InvalidClassAdError for a value that no
        ad can hold.
        """
        folded = {fold(name): value for name, value in job.items()}
        seen = {name: folded[name] for name in self._names if name in folded}
        if self._sees_all or any(isinstance(value, Expression | Mapping | tuple) for value in seen.values()):
            return self._judged(job, range(len(self._routes)))
        key = tuple(map(repr, map(seen.get, self._names)))  # as texts: to Python 1, 1.0 and True are the same
        if (known := self._known.get(key)) is not None:
            return known
        if len(self._known) >= self._most:
            del self._known[next(iter(self._known))]
        self._known[key] = found = self._judged(seen, self._firsts)
        return found

    def _judged(self, job: Mapping[str, AdValue], firsts: Sequence[int]) -> tuple[int, ...]:
        """Return the routes that the job may take; `firsts` says of each which is the first that asks the same."""
        my = Ad(job)
        target = my.copy()  # one ad cannot be both for the library
        if self._of_all is not None and not self._of_all.is_answered(my, target):
            return ()
        answers: list[bool] = []
        for first, question in zip(firsts, self._routes, strict=True):
            known = first < len(answers)
            answers.append(answers[first] if known else question is None or question.is_answered(my, target))
        return tuple(place for place, may_take in enumerate(answers) if may_take)


def _led_to(text: str, own: Mapping[str, AdValue]) -> tuple[References, dict[str, AdValue]]:
    """Return what an expression in an ad refers to, by way of the ad's own attributes too, and which of these."""
    unseen = {fold(name): (name, value) for name, value in own.items()}
    led_to: dict[str, AdValue] = {}
    found, waiting = References(), [text]
    while waiting:
        named = references(with_time_from(CURRENT_TIME, waiting.pop()))
        found |= named
        reached = dict(unseen.pop(name) for name in (named.in_my | named.target) & unseen.keys())
        led_to |= reached
        waiting += map(expression_text, reached.values())
    return found, dict(own) if found.is_dynamic else led_to
