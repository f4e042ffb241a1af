"""Submit pools: their records, the refresh of their mappings, and their removal.

Rules
-----
A pool lives as long as one of its jobs is not in a final state, and for a grace period after that. To save a write for
each job, the cleanup marks a pool when it first finds it idle, and the next job clears the mark. So the grace period
may begin late, by the time between two cleanups, but never early.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pilotage.errors import InvalidRequirementsError, StateConflictError
from pilotage.job_description import Value
from pilotage.resources.requirements import Requirements, pool_id, short_pool_id
from pilotage_server.core.resources.mappings import PoolMapping, mapping_version
from pilotage_server.core.resources.tree import ActiveTree


@dataclass(frozen=True, slots=True)
class Pool:
    """A stored submit pool.

    Its id is the hash of `canonical`; `section` has the requirements as first typed. Its mapping follows from the tree
    of `tree_version`, at `mapped` (None = it has no mapping). `idle_since` is when the cleanup first saw it without a
    live job (None = it has one).
    """

    id: str
    vo: str
    canonical: str
    section: Mapping[str, Value]
    created: datetime
    mapped: datetime | None = None
    tree_version: int = 0
    idle_since: datetime | None = None

    @property
    def stamp(self) -> tuple[int, datetime]:
        """The version of its mapping."""
        return mapping_version(self.tree_version, self.mapped)


class PoolIdClashError(StateConflictError):
    """Two canonical texts have the same id; the second one is rejected."""

    def __init__(self, pool_id: str) -> None:
        super().__init__(f"pool {short_pool_id(pool_id)} is stored with other requirements than these")
        self.pool_id = pool_id


def with_mapping(pool: Pool, mapping: PoolMapping) -> Pool:
    """Return the pool with the version of its new mapping."""
    return replace(pool, mapped=mapping.mapped, tree_version=mapping.tree_version)


def new_pool(requirements: Requirements, now: datetime) -> Pool:
    """Return the pool of `requirements`, not mapped yet."""
    return Pool(
        id=pool_id(requirements),
        vo=requirements.vo,
        canonical=requirements.canonical_form(),
        section=requirements.section,
        created=now,
    )


def mapping_of(pool: Pool, tree: ActiveTree, now: datetime) -> PoolMapping:
    """Return the mapping of `pool` by `tree`; unmapped when the tree cannot interpret its requirements."""
    try:
        requirements = tree.requirements_of(pool.id, pool.section, pool.vo)
    except InvalidRequirementsError:
        return PoolMapping(pool.id, pool.vo, tree_version=tree.version)
    return PoolMapping(pool.id, pool.vo, tree.mapper.queues_of(requirements), now, tree.version)


def active_mapping(pool: Pool, tree: ActiveTree) -> PoolMapping:
    """Return the mapping that the row of `pool` stands for, computed again by the active tree.

    A pool that was last mapped by another tree may run nowhere until this one maps it.
    """
    if pool.mapped is None or pool.tree_version != tree.version:
        return without_queues(pool)
    return mapping_of(pool, tree, pool.mapped)


def without_queues(pool: Pool) -> PoolMapping:
    """Return the mapping of `pool` with its version but without queues."""
    return PoolMapping(pool.id, pool.vo, mapped=pool.mapped, tree_version=pool.tree_version)


def due_for_refresh(pools: Iterable[Pool], older_than: timedelta, tree_version: int, now: datetime) -> tuple[Pool, ...]:
    """Return the pools without a mapping, and those whose mapping is as old as `older_than` or of another tree."""
    return tuple(
        pool
        for pool in pools
        if pool.mapped is None or pool.tree_version != tree_version or now - pool.mapped >= older_than
    )


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """The steps of a cleanup, as pool ids: pools to mark idle, pools to unmark, pools to remove."""

    fell_idle: tuple[str, ...]
    came_alive: tuple[str, ...]
    removable: tuple[str, ...]

    @property
    def touched(self) -> tuple[str, ...]:
        """All pools that change, sorted, so that concurrent cleanups lock them in one order."""
        return tuple(sorted((*self.fell_idle, *self.came_alive, *self.removable)))


def cleanup_plan(pools: Iterable[Pool], live: Collection[str], grace: timedelta, now: datetime) -> CleanupPlan:
    """Return the steps for `pools`, of which `live` have a job that is not in a final state."""
    fell_idle: list[str] = []
    came_alive: list[str] = []
    removable: list[str] = []
    for pool in pools:
        if pool.id in live:
            if pool.idle_since is not None:
                came_alive.append(pool.id)
        elif now - (pool.idle_since or now) >= grace:
            removable.append(pool.id)
        elif pool.idle_since is None:
            fell_idle.append(pool.id)
    return CleanupPlan(tuple(fell_idle), tuple(came_alive), tuple(removable))
