"""The interface to a slot's evaluated expressions, and how their values are read as numbers.

A caller names an expression and gets its value in the slot's ad with the ad of its job. Texts, ads and the ClassAd
library stay behind the interface.
"""

from __future__ import annotations

import math
from typing import Protocol

NEVER = math.inf
"""Infinity: no such time."""

POLLING_INTERVAL_S = 5.0
UPDATE_INTERVAL_S = 300.0
CLAIM_WORKLIFE_S = 1200.0
MAX_VACATE_S = 600.0

_SHORTEST_POLL_S = 1.0
_LONGEST_POLL_S = 24 * 3600.0


class SlotEvaluator(Protocol):
    """Values of a slot's expressions: MY = the slot's ad, TARGET = the ad of its job, if any."""

    @property
    def polls(self) -> bool:
        """Whether a value may change without an event; False = all are constant."""
        ...

    def truth(self, name: str) -> bool | None:
        """Return the value if it is a boolean, else None; a `_VANILLA` variant wins."""
        ...

    def number(self, name: str) -> float | None:
        """Return the expression's number; None = undefined, error, or no number."""
        ...

    def text(self, name: str) -> str | None:
        """Return the expression's text; None = it is none."""
        ...

    def job_number(self, attribute: str) -> float | None:
        """Return a number of the job's ad; None = it has no such attribute, or it is no number."""
        ...


def is_true(evaluator: SlotEvaluator, name: str) -> bool:
    """Whether an expression is true.

    Undefined, an error, a number and a text are not true, whatever the name. HTCondor's startd ends itself where
    IS_OWNER or WANT_VACATE comes to nothing; a pilot must not take its other slots' jobs with it. So such a slot
    has no owner, and such a job is killed as if WANT_VACATE were false: no fault in a policy grants anything.
    """
    return evaluator.truth(name) is True


def duration_s(evaluator: SlotEvaluator, name: str, default_s: float) -> float:
    """Return the seconds that an expression comes to; `default_s` where that is no finite number."""
    found = evaluator.number(name)
    return found if found is not None and math.isfinite(found) else default_s


def poll_interval_s(evaluator: SlotEvaluator, *, claimed: bool) -> float:
    """Return how often a slot is looked at: from 1 s to a day, NEVER where the answers are constant."""
    if not evaluator.polls:
        return NEVER
    if claimed:
        stated = duration_s(evaluator, "POLLING_INTERVAL", POLLING_INTERVAL_S)
    else:
        stated = duration_s(evaluator, "UPDATE_INTERVAL", UPDATE_INTERVAL_S)
    return min(max(stated, _SHORTEST_POLL_S), _LONGEST_POLL_S)
