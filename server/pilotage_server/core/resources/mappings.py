"""The mappings of all pools in memory: the queues of a pool, and the pools of a queue.

Rules
-----
A pool that is unknown or has no mapping may run nowhere. A mapping is replaced as a whole, and never by an older one.
Only committed mappings come in here. A mapping is one bit for each queue, and the pools of a queue are looked up among
the bits: 10,000 pools on 5,000 queues take 20 MB.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from pilotage.resources.pool_mapping import NO_QUEUES, QueueOrder, QueueSet
from pilotage.resources.tree import QueueId
from pilotage.text import fold, folded_set
from pilotage_server.core.containers import ChangeLog

_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PoolMapping:
    """The queues that a pool of `vo` may run on.

    They follow from the tree of `tree_version`, at `mapped` (None = it has no mapping).
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
        """The order of the mappings of one pool: the later one replaces the earlier one."""
        return mapping_version(self.tree_version, self.mapped)


def mapping_version(tree_version: int, mapped: datetime | None) -> tuple[int, datetime]:
    """Return what orders mappings: the version of the tree, then the time; `mapped` None = never."""
    return tree_version, mapped or _NEVER


class PoolMappings:
    """The mappings of all pools; changed by one thread at a time, read by any without a lock."""

    __slots__ = ("_by_order", "_by_pool", "changes")

    def __init__(self, mappings: Iterable[PoolMapping] = ()) -> None:
        self.changes: ChangeLog[str] = ChangeLog()
        """The pools whose queues have changed."""

        self._by_pool: dict[str, PoolMapping] = {}
        # By the order of queues; nearly always there is only one.
        self._by_order: dict[QueueOrder, dict[str, bytes]] = {}
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

    def few_sites(self, pool_id: str, most: int) -> tuple[str, ...]:
        """Return the sites of the queues of a pool, in the order of the tree; none if they are more than `most`."""
        sites = tuple(islice(self.queues(pool_id).sites(), most + 1))
        return sites if len(sites) <= most else ()

    def pools(self, queue: QueueId, vos: Iterable[str] = ()) -> frozenset[str]:
        """Return the ids of the pools that may run on `queue`, only those of `vos` unless these are empty."""
        found: list[str] = []
        for order, pools in self._by_order.copy().items():
            number = order.number(queue)
            if number is not None:
                index, bit = number >> 3, 1 << (number & 7)
                found += [pool_id for pool_id, octets in pools.copy().items() if octets[index] & bit]
        served = folded_set(vos)
        if not served:
            return frozenset(found)
        mappings = (self._by_pool.get(pool_id) for pool_id in found)
        return frozenset(mapping.pool_id for mapping in mappings if mapping and fold(mapping.vo) in served)

    def put(self, mappings: Iterable[PoolMapping]) -> None:
        """Add new mappings; each replaces the former one of its pool unless that is newer."""
        for mapping in mappings:
            before = self._by_pool.get(mapping.pool_id)
            if before is None or mapping.stamp >= before.stamp:
                self._remove_from_order(before)
                self._by_pool[mapping.pool_id] = mapping
                self._by_order.setdefault(mapping.queues.order, {})[mapping.pool_id] = mapping.queues.octets()
                if before is None or not before.queues.is_same(mapping.queues):
                    self.changes.add(mapping.pool_id)

    def remove(self, mappings: Iterable[PoolMapping]) -> None:
        """Remove pools by their last mapping; a pool with a newer mapping stays."""
        for last in mappings:
            mapping = self._by_pool.get(last.pool_id)
            if mapping is not None and mapping.stamp <= last.stamp:
                del self._by_pool[last.pool_id]
                self._remove_from_order(mapping)
                self.changes.add(last.pool_id)

    def _remove_from_order(self, mapping: PoolMapping | None) -> None:
        if mapping is not None:
            pools = self._by_order[mapping.queues.order]
            del pools[mapping.pool_id]
            if not pools:
                del self._by_order[mapping.queues.order]
