"""Demand and supply: waiting work that pilots could take, and the pilots that queues already have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from pilotage.job_description import NOTHING, Value
from pilotage.units import Amount
from pilotage.values.amounts import Amounts


@dataclass(frozen=True, slots=True)
class Demand:
    """Waiting jobs that no slot can distinguish.

    `amounts` and `cpu_time_s` (None = not stated) are the request of each job; `queue_indexes` = the queues that could
    take it, as indexes in the request's list, never empty. `limit_indexes` = the limits of the answer that count it.
    """

    pool_id: str
    vo: str
    waiting: int
    amounts: Amounts
    queue_indexes: tuple[int, ...]
    cpu_time_s: Amount | None = None
    limit_indexes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LimitRoom:
    """How much more a running limit or quota lets run at the queues with these indexes; 0 = it is reached.

    `room` is a number of jobs, or with `counts_cores` the number of cores that they ask for.
    """

    limit: str
    room: int
    queue_indexes: tuple[int, ...]
    counts_cores: bool = False

    def size(self, request: Amounts) -> int:
        """Return how much of the room a job with this request takes."""
        return max(1, request.cpus) if self.counts_cores else 1


@dataclass(frozen=True, slots=True)
class IdleSlots:
    """Open slots of live pilots with equal free amounts, at least one core."""

    free: Amounts
    count: int


@dataclass(frozen=True, slots=True)
class EmptyReturns:
    """How many pilots of a queue returned empty, in how many sendings in a row, and how long ago the last ended.

    No pilot sent after them has run a job.
    """

    pilots: int = 0
    sendings: int = 0
    last_ago: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class QueueSupply:
    """The supply of a queue; `parameters` are its values in the tree.

    `idle` excludes slots of locations with an open circuit breaker, which get single jobs only. `throttled` = why the
    queue gets single jobs only, "" = it does not; `held` = it gets none, by an operator's order. `empty_returns` None =
    no pilot returned empty.
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

    @property
    def idle_cpus(self) -> int:
        """The free cores of live pilots."""
        return sum(slots.free.cpus * slots.count for slots in self.idle)


@dataclass(frozen=True, slots=True)
class DemandAnswer:
    """The demand, each job counted once, and the supply of each queue, in the order of the request.

    `set_supply` = pilots of a set of queues that have not said yet where they are, and those that returned empty.
    `limits` count waiting jobs; the room of each is shared by all demands that it counts.
    """

    demands: tuple[Demand, ...]
    supplies: tuple[QueueSupply, ...]
    set_supply: QueueSupply = QueueSupply(known=True)
    limits: tuple[LimitRoom, ...] = ()
