"""Which queues a director serves, and what is settled for each.

Rules
-----
A queue is served when a pattern names it and a batch system takes its CEType. Of several overrides that name a
queue the last one that says something wins, setting by setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase

from pilotage.folding import fold, folded_set
from pilotage.resource_tree import QueueId
from pilotage_agents.core.pilot_shape import QueueFacts
from pilotage_agents.core.provisioning import Demand, QueueLimits, QueueState, Supply
from pilotage_agents.core.queue_failures import QueueFailures


@dataclass(frozen=True, slots=True)
class QueueSupply:
    """What there is at a queue already.

    `throttled` = why it gets single jobs only, "" = it does not; `held` = it gets none at all, for an operator says so.
    """

    known: bool
    banned: bool
    supply: Supply
    throttled: str = ""
    held: bool = False


@dataclass(frozen=True, slots=True)
class ServedQueue:
    """A queue that the director fills; `vos` empty = all that the queue admits.

    `max_pilots` None = only the tree limits them. `pilot` holds settings of its pilots, by name. `pilot_bundle` is
    the file that goes with each, "" = the pilot is there already; `python` is what runs it.
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

    def state(self, there: QueueSupply, failures: QueueFailures, now: datetime) -> QueueState:
        """Return the queue as a plan needs it; where it is throttled, one pilot is enough for its trials."""
        supply, throttled = there.supply, there.throttled
        limits = QueueLimits(
            _smallest(self.facts.max_total, self.max_pilots, 1 if throttled else None),
            self.facts.max_waiting,
            0 if throttled else self.min_idle_pilots,
        )
        has_pilots = supply.pilots_waiting + supply.pilots_running > 0
        reasons = (
            "" if there.known else "the tree does not know it",
            "an operator has banned it" if there.banned else "",
            "" if self.enabled else "it is not enabled",
            throttled if there.held else "",
            f"its pilots do for trials: {throttled}" if throttled and has_pilots else "",
        )
        closed, paused = next(filter(None, reasons), ""), failures.pause_of(self.id, now)
        return QueueState(self.id, self.facts.pilot, supply, limits, closed, paused)


def for_served_vos(demands: Iterable[Demand], queues: Sequence[ServedQueue]) -> tuple[Demand, ...]:
    """Return the demands, each for those of its queues alone whose pilots serve its VO; letter case does not count."""
    served = [folded_set(queue.vos) for queue in queues]
    for_them = (
        replace(demand, queues=tuple(at for at in demand.queues if not served[at] or fold(demand.vo) in served[at]))
        for demand in demands
    )
    return tuple(demand for demand in for_them if demand.queues)


def is_named(queue: QueueId, patterns: Iterable[str]) -> bool:
    """Return whether one of the `patterns` of "SITE/CE/QUEUE" names the queue; letter case does not count."""
    name = fold(str(queue))
    return any(fnmatchcase(name, fold(pattern)) for pattern in patterns)


def naming_nothing(patterns: Iterable[str], queues: Iterable[QueueId]) -> tuple[str, ...]:
    """Return those of the `patterns` that name none of the queues."""
    known = tuple(queues)
    return tuple(pattern for pattern in patterns if not any(is_named(queue, (pattern,)) for queue in known))


def unused_lines(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return what a dry run says of patterns that name nothing, one line each."""
    return tuple(f"{pattern}: no queue of the tree is called so" for pattern in patterns)


def _smallest(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)
