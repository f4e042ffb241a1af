"""The waiting work that given queues could take, and what these queues have already.

Rules
-----
By the predicate of the match, so that no pilot is sent for work that it would not get. A task queue is one
demand, however many of the queues could take it: who plans pilots must not count its jobs once a queue. A banned
queue takes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pilotage.job_description import NOTHING, Value
from pilotage.resource_tree import QueueId
from pilotage.resources import Amount
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.empty_returns import EmptyReturns
from pilotage_server.core.pilots import SlotInfo
from pilotage_server.core.reach import Reach
from pilotage_server.core.waiting import Waiting


@dataclass(frozen=True, slots=True)
class Demand:
    """Waiting work that no slot could tell apart.

    `amounts` and `cpu_time_s` (None = not said) are what each job asks; `queue_indexes` = which of the queues
    asked could take it, as places in that list, never empty.
    """

    pool_id: str
    vo: str
    waiting: int
    amounts: Amounts
    cpu_time_s: Amount | None
    queue_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IdleSlots:
    """Open slots with a free core that have the same free amounts."""

    free: Amounts
    count: int


@dataclass(frozen=True, slots=True)
class QueueSupply:
    """What there is at a queue already; `parameters` are what the tree says of it to operators.

    `idle` counts no slots of throttled places, which take no more than single jobs. `throttled` = why the queue gets
    single jobs only, "" = it does not; `held` = it gets none at all. `empty_returns` None =
    no pilot came back empty.
    """

    known: bool
    banned: bool = False
    pilots_waiting: int = 0
    pilots_running: int = 0
    idle: tuple[IdleSlots, ...] = ()
    parameters: Mapping[str, Value] = field(default_factory=lambda: NOTHING)
    throttled: str = ""
    held: bool = False
    empty_returns: EmptyReturns | None = None


def demands(waiting: Iterable[Waiting], open_queues: Mapping[int, QueueId], reach: Reach) -> tuple[Demand, ...]:
    """Return the work for the queues, which are given by their place in the list that was asked for."""
    found: list[Demand] = []
    for each in waiting:
        indexes = tuple(index for index, queue in open_queues.items() if reach.can_go(each.task_queue, queue))
        if indexes:
            found.append(_demand(each, indexes))
    return tuple(found)


def without_banned(queues: Sequence[QueueId], banned: Iterable[QueueId]) -> dict[int, QueueId]:
    """Return the queues that are not banned, by their place in the list."""
    closed = frozenset(banned)
    return {index: queue for index, queue in enumerate(queues) if queue not in closed}


def idle_slots(slots: Iterable[SlotInfo]) -> dict[QueueId, tuple[IdleSlots, ...]]:
    """Return what is free for jobs at each queue that has something free."""
    idle: dict[QueueId, Counter[Amounts]] = defaultdict(Counter)
    for info in slots:
        if info.is_open:
            idle[info.queue][info.slot.free] += 1
    return {queue: tuple(IdleSlots(free, count) for free, count in counts.items()) for queue, counts in idle.items()}


def _demand(waiting: Waiting, indexes: tuple[int, ...]) -> Demand:
    task_queue = waiting.task_queue
    return Demand(
        pool_id=task_queue.pool_id,
        vo=task_queue.account.vo,
        waiting=waiting.count,
        amounts=task_queue.traits.amounts,
        cpu_time_s=task_queue.needs.cpu_time_s,
        queue_indexes=indexes,
    )
