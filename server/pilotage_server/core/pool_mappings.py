"""Which queues each pool may run on, in both directions: what a server process keeps of the mappings in memory.

Rules
-----
A pool that is not here, or has no mapping, may run nowhere, never anywhere. A mapping is replaced whole, and
never by one that was made before it. Only what has been committed to the database comes in here. A mapping is a
bit for each queue, and the pools of a queue are looked up among them: 10,000 pools on 5,000 queues are 10 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from pilotage.folding import fold, folded_set
from pilotage.queue_sets import NO_QUEUES, QueueOrder, QueueSet
from pilotage.resource_tree import QueueId
from pilotage_server.core.change_log import ChangeLog

_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PoolMapping:
    """The queues that a pool of `vo` may run on.

    They are those that the tree of `tree_version` gave it at `mapped` (None = it has no mapping).
    """

    pool_id: str
    vo: str
    queues: QueueSet = NO_QUEUES
    mapped: datetime | None = None
    tree_version: int = 0

    def __post_init__(self) -> None:
        assert self.mapped is not None or not self.queues, "a pool without a mapping is eligible nowhere"

    @property
    def stamp(self) -> tuple[int, datetime]:
        """What orders the mappings of one pool: the later replaces the earlier."""
        return self.tree_version, self.mapped or _NEVER


class PoolMappings:
    """The mappings of all pools; changed by one thread at a time, read by any without a lock."""

    __slots__ = ("_by_pool", "changes")

    def __init__(self, mappings: Iterable[PoolMapping] = ()) -> None:
        self.changes: ChangeLog[str] = ChangeLog()
        """The pools of which other queues than before are said."""

        self._by_pool: dict[str, PoolMapping] = {}
        self.put(mappings)

    def __len__(self) -> int:
        return len(self._by_pool)

    def all(self) -> tuple[PoolMapping, ...]:
        """Return the mappings of all pools."""
        return tuple(self._by_pool.values())

    def get(self, pool_id: str) -> PoolMapping | None:
        """Return the mapping of a pool; None = there is no such pool."""
        return self._by_pool.get(pool_id)

    def queues(self, pool_id: str) -> QueueSet:
        """Return the queues that a pool may run on; empty for a pool that is unknown or has no mapping."""
        mapping = self._by_pool.get(pool_id)
        return mapping.queues if mapping else NO_QUEUES

    def pools(self, queue: QueueId, vos: Iterable[str] = ()) -> frozenset[str]:
        """Return the ids of the pools that may run on `queue`, only those of `vos` unless these are empty."""
        served = folded_set(vos)
        return frozenset(mapping.pool_id for mapping in self._on(queue) if not served or fold(mapping.vo) in served)

    def _on(self, queue: QueueId) -> Iterator[PoolMapping]:
        order, bit = QueueOrder(), 0
        for mapping in self.all():
            queues = mapping.queues
            if queues.order is not order:  # nearly all are of one order, so its number for the queue is kept
                order, bit = queues.order, queues.order.of([queue]).bits
            if queues.bits & bit:
                yield mapping

    def put(self, mappings: Iterable[PoolMapping]) -> None:
        """Take new mappings in, each in the place of the pool's former one, unless that is newer."""
        for mapping in mappings:
            before = self._by_pool.get(mapping.pool_id)
            if before is None or mapping.stamp >= before.stamp:
                self._by_pool[mapping.pool_id] = mapping
                if before is None or not before.queues.is_same(mapping.queues):
                    self.changes.note(mapping.pool_id)

    def remove(self, mappings: Iterable[PoolMapping]) -> None:
        """Forget pools by their last mapping; one that was made anew since then stays."""
        for last in mappings:
            mapping = self._by_pool.get(last.pool_id)
            if mapping is not None and mapping.stamp <= last.stamp:
                del self._by_pool[last.pool_id]
                self.changes.note(last.pool_id)
