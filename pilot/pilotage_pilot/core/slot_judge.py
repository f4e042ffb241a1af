"""Who answers what a slot's expressions come to, and how its answers are read as numbers.

Rules
-----
A question, never an expression: texts, ads and the library are behind it. An answer is what an expression comes to
in the slot's ad with the ad of the job in it, at the moment that the judge was made for.
"""

from __future__ import annotations

import math
from typing import Protocol

NEVER = math.inf
"""A time that does not come."""

POLLING_INTERVAL_S = 5.0
UPDATE_INTERVAL_S = 300.0
CLAIM_WORKLIFE_S = 1200.0
MAX_VACATE_S = 600.0

_SHORTEST_POLL_S = 1.0
_LONGEST_POLL_S = 24 * 3600.0


class Judge(Protocol):
    """The slot's expressions: MY = the slot's ad, TARGET = the ad of the job in it (none if there is none)."""

    @property
    def polls(self) -> bool:
        """Whether an answer may become another with time alone; False = all of them are constant."""
        ...

    def truth(self, name: str) -> bool | None:
        """Return True or False where the expression is just that, else None; a `_VANILLA` variant goes first."""
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


def holds(judge: Judge, name: str) -> bool:
    """Whether an expression is true.

    Undefined, an error, a number and a text are not true, whatever the name. HTCondor's startd ends itself where
    IS_OWNER or WANT_VACATE comes to nothing; a pilot must not take its other slots' jobs with it. So such a slot
    has no owner, and such a job is killed as if WANT_VACATE were false: no fault in a policy grants anything.
    """
    return judge.truth(name) is True


def seconds(judge: Judge, name: str, default_s: float) -> float:
    """Return the seconds that an expression comes to; `default_s` where that is no finite number."""
    found = judge.number(name)
    return found if found is not None and math.isfinite(found) else default_s


def poll_interval_s(judge: Judge, *, claimed: bool) -> float:
    """Return how often a slot is looked at: from 1 s to a day, NEVER where the answers are constant."""
    if not judge.polls:
        return NEVER
    if claimed:
        stated = seconds(judge, "POLLING_INTERVAL", POLLING_INTERVAL_S)
    else:
        stated = seconds(judge, "UPDATE_INTERVAL", UPDATE_INTERVAL_S)
    return min(max(stated, _SHORTEST_POLL_S), _LONGEST_POLL_S)
