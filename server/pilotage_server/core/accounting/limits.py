"""Running limits: at most n jobs of an attribute value at a site, a CE or a queue.

They are exact: the counts come from the database inside the transaction that makes the matches, the round adds what it
gives, and the transaction commits only if the database still agrees at its end. A job whose attribute is a list counts
for each of its values.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pilotage.resources.tree import QueueId
from pilotage.text import fold
from pilotage_server.core.queueing.task_queue import Traits
from pilotage_server.core.rules import RunningLimit


def limit_key(limit: RunningLimit) -> str:
    """Return the key of what the limit counts; letter case makes no difference."""
    named = (limit.site, limit.ce, limit.queue, limit.attribute, limit.value)
    return json.dumps([None if name is None else fold(name) for name in named], separators=(",", ":"))


class LimitIndex:
    """The active limits, found by the queues for which they hold."""

    def __init__(self, limits: Iterable[RunningLimit]) -> None:
        self.limits = tuple(limits)
        self._at: dict[QueueId, tuple[RunningLimit, ...]] = {}

    def at(self, queue: QueueId) -> tuple[RunningLimit, ...]:
        """Return the limits that hold for jobs on this queue."""
        if not self.limits:
            return ()
        found = self._at.get(queue)
        if found is None:
            found = self._at[queue] = tuple(limit for limit in self.limits if limit.covers(queue))
        return found

    def counting(self, queue: QueueId, traits: Traits) -> tuple[RunningLimit, ...]:
        """Return the limits that count jobs with these traits on this queue."""
        return tuple(limit for limit in self.at(queue) if counts_for(limit, traits))


def counts_for(limit: RunningLimit, traits: Traits) -> bool:
    """Whether jobs with these traits count towards the limit."""
    value = traits.value(limit.attribute)
    values = value if isinstance(value, tuple) else (value,)
    return any(value is not None and fold(str(value)) == fold(limit.value) for value in values)


@dataclass(slots=True)
class _Count:
    """The count of one limit during a round."""

    limit: RunningLimit
    running: int


class LimitRound:
    """The limits of one queue during one round; `running` holds the jobs with a lease that each limit counts.

    Rounds of several queues may share their counts (`at`), so that each sees what the others give.
    """

    def __init__(self, running: Mapping[RunningLimit, int]) -> None:
        self._counts = {limit: _Count(limit, jobs) for limit, jobs in running.items()}
        self._here = tuple(self._counts.values())

    def __bool__(self) -> bool:
        """Whether any limit holds."""
        return bool(self._here)

    def at(self, limits: Iterable[RunningLimit]) -> LimitRound:
        """Return a round of a queue for which only these limits hold, over the same counts."""
        other = LimitRound({})
        other._counts = self._counts
        other._here = tuple(self._counts[limit] for limit in limits)
        return other

    def reached(self, traits: Traits) -> RunningLimit | None:
        """Return a limit that forbids one more job with these traits; None = it may run."""
        for count in self._here:
            if count.running >= count.limit.at_most and counts_for(count.limit, traits):
                return count.limit
        return None

    def add(self, traits: Traits) -> None:
        """Count a job that the round has given."""
        self._count(traits, 1)

    def remove(self, traits: Traits) -> None:
        """Remove a job that the round had given: the database had none."""
        self._count(traits, -1)

    def _count(self, traits: Traits, by: int) -> None:
        for count in self._here:
            if counts_for(count.limit, traits):
                count.running += by
