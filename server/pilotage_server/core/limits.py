"""Running limits: at most n jobs of an attribute value at a site, a CE or a queue.

Rules
-----
Exact: the counts come from the database inside the transaction that makes the matches, and what the round has
given is added. A job whose attribute has a list counts for each of its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pilotage.folding import fold
from pilotage.resource_tree import QueueId
from pilotage_server.core.rules import RunningLimit
from pilotage_server.core.task_queues import Traits


def limits_at(limits: Iterable[RunningLimit], queue: QueueId) -> tuple[RunningLimit, ...]:
    """Return the limits that hold for jobs on this queue."""
    return tuple(limit for limit in limits if limit.covers(queue))


def counts_for(limit: RunningLimit, traits: Traits) -> bool:
    """Whether jobs with these traits count towards the limit."""
    value = traits.value(limit.attribute)
    values = value if isinstance(value, tuple) else (value,)
    return any(value is not None and fold(str(value)) == fold(limit.value) for value in values)


class LimitRound:
    """The limits of one queue during one round; `running` holds the jobs with a lease that each limit counts."""

    def __init__(self, running: Mapping[RunningLimit, int]) -> None:
        self._running = dict(running)

    def reached(self, traits: Traits) -> RunningLimit | None:
        """Return a limit that forbids one more job with these traits; None = it may run."""
        for limit, running in self._running.items():
            if running >= limit.at_most and counts_for(limit, traits):
                return limit
        return None

    def given(self, traits: Traits) -> None:
        """Count a job that the round has given."""
        for limit in self._running:
            if counts_for(limit, traits):
                self._running[limit] += 1
