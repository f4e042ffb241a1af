"""Which queues a director serves, with which settings, and which of them are paused after failures.

Rules
-----
- A queue is served when a pattern matches it and a batch system takes its CEType. If several overrides match, the last
  one that has a value wins, setting by setting.
- A failure is a glidein that the batch system refused, or a pilot that ended in error. Each failure in a row doubles
  the queue's pause. A pilot that has run jobs and ends well ends the streak; one that returned empty does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Self

from pilotage.backoff import backoff
from pilotage.resources.tree import QueueId
from pilotage.text import fold, folded_set
from pilotage.values.demand import Demand, QueueSupply
from pilotage_agents.batch_systems.shape import QueueFacts
from pilotage_agents.site_director.planning import QueueLimits, QueueState


@dataclass(frozen=True, slots=True)
class FailureStreak:
    """Failures in a row at one queue; `reason` is that of the last, `until` the end of the pause."""

    failures: int
    reason: str
    until: datetime


@dataclass(frozen=True, slots=True)
class QueueFailures:
    """The failure streaks by queue; `first_pause` doubles with each failure up to `longest_pause`."""

    first_pause: timedelta = timedelta(seconds=2)
    longest_pause: timedelta = timedelta(minutes=10)
    streaks: Mapping[QueueId, FailureStreak] = field(default_factory=lambda: MappingProxyType({}))

    def with_failure(self, queue: QueueId, reason: str, now: datetime) -> Self:
        """Return the streaks with one more failure of `queue`; failures within its pause count as one."""
        row = self.streaks.get(queue)
        if row is not None and now < row.until:
            return self
        failures = row.failures + 1 if row else 1
        pause = backoff(failures, self.first_pause, self.longest_pause)
        return self._with({**self.streaks, queue: FailureStreak(failures, reason, now + pause)})

    def with_success(self, queue: QueueId) -> Self:
        """Return the streaks without that of `queue`."""
        return self._with({other: row for other, row in self.streaks.items() if other != queue})

    def pause_reason(self, queue: QueueId, now: datetime) -> str:
        """Return why `queue` is paused at `now`; empty = it is not."""
        row = self.streaks.get(queue)
        if row is None or now >= row.until:
            return ""
        seconds = (row.until - now).total_seconds()
        return f"paused for {seconds:.0f} s more after {row.failures} failures in a row, the last: {row.reason}"

    def _with(self, rows: Mapping[QueueId, FailureStreak]) -> Self:
        return type(self)(self.first_pause, self.longest_pause, MappingProxyType(dict(rows)))


@dataclass(frozen=True, slots=True)
class ServedQueue:
    """A queue that the director serves; `vos` empty = all that the queue admits.

    `max_pilots` None = only the tree limits them. `pilot` holds settings of its pilots, by name. `pilot_bundle` is sent
    with each pilot, "" = the pilot is installed on the nodes; `python` runs it. `queue_set` = the patterns of queues of
    which the batch system chooses one for each pilot; `id` is only a name for people then, and `batch_queue` the batch
    system's own name of the place.
    """

    id: QueueId
    batch_system: str
    facts: QueueFacts
    enabled: bool = True
    min_idle_pilots: int = 0
    max_pilots: int | None = None
    vos: tuple[str, ...] = ()
    pilot: Mapping[str, object] | None = None
    pilot_bundle: str = ""
    python: str = "python3"
    queue_set: tuple[str, ...] = ()
    batch_queue: str = ""

    def state(self, there: QueueSupply, failures: QueueFailures, now: datetime) -> QueueState:
        """Return the queue as input of a plan; one pilot is enough for the probes of an open circuit breaker."""
        throttled = there.throttled
        limits = QueueLimits(
            _smallest(self.facts.max_total, self.max_pilots, 1 if throttled else None),
            self.facts.max_waiting,
            0 if throttled else self.min_idle_pilots,
        )
        has_pilots = there.pilots_waiting + there.pilots_running > 0
        reasons = (
            "" if there.known else "it is not in the tree",
            "an operator has banned it" if there.banned else "",
            "" if self.enabled else "it is not enabled",
            throttled if there.held else "",
            f"its pilots are enough for probes: {throttled}" if throttled and has_pilots else "",
        )
        closed, paused = next(filter(None, reasons), ""), failures.pause_reason(self.id, now)
        return QueueState(self.id, self.facts.pilot, there, limits, closed, paused)


def demands_of_served_vos(demands: Iterable[Demand], queues: Sequence[ServedQueue]) -> tuple[Demand, ...]:
    """Return the demands with only those queues whose pilots serve its VO; letter case does not count."""
    served = [folded_set(queue.vos) for queue in queues]
    found = []
    for demand in demands:
        vo = fold(demand.vo)
        indexes = tuple(at for at in demand.queue_indexes if not served[at] or vo in served[at])
        if indexes:
            found.append(replace(demand, queue_indexes=indexes))
    return tuple(found)


def _smallest(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)
