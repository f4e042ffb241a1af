"""Submit pools: what the server keeps of them, whose mapping is due for a refresh, and which may be removed.

Rules
-----
A pool lives as long as a job of it is in a non-final state, and for a grace period after that. No job costs a
write for this: the cleanup notes when it first sees a pool idle, and the next job that comes takes the note
back. So the grace may begin late, by the time between two cleanups, but never early.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pilotage.errors import InvalidRequirementsError, StateConflictError
from pilotage.job_description import Value
from pilotage.requirements import Requirements, pool_id, short_pool_id
from pilotage_server.core.pool_mappings import PoolMapping, stamp_of
from pilotage_server.core.tree_in_force import TreeInForce


@dataclass(frozen=True, slots=True)
class Pool:
    """A submit pool as it is stored.

    `canonical` is the text that its id is the hash of, `section` the requirements as first typed. Its mapping was
    made at `mapped` by the tree of `tree_version`, from which it follows (None = it has no mapping). `idle_since` is
    when the cleanup first saw it without a live job (None = it has one).
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
        """The stamp of its mapping, see there."""
        return stamp_of(self.tree_version, self.mapped)


class PoolIdClashError(StateConflictError):
    """Two canonical texts have one id; the newcomer is refused."""

    def __init__(self, pool_id: str) -> None:
        super().__init__(f"pool {short_pool_id(pool_id)} is stored with other requirements than these")
        self.pool_id = pool_id


def stamped(pool: Pool, mapping: PoolMapping) -> Pool:
    """Return the pool with its new mapping noted."""
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


def mapping_of(pool: Pool, tree: TreeInForce, now: datetime) -> PoolMapping:
    """Return the mapping of `pool` by `tree`; none when its requirements have no meaning there."""
    try:
        requirements = tree.requirements_of(pool.id, pool.section, pool.vo)
    except InvalidRequirementsError:
        return PoolMapping(pool.id, pool.vo, tree_version=tree.version)
    return PoolMapping(pool.id, pool.vo, tree.mapper.queues_of(requirements), now, tree.version)


def mapping_in_force(pool: Pool, tree: TreeInForce) -> PoolMapping:
    """Return the mapping that `pool` has by its stamp, worked out again by `tree`, which is in force.

    A pool that was last mapped by another tree may run nowhere until it is mapped by this one.
    """
    if pool.mapped is None or pool.tree_version != tree.version:
        return without_queues(pool)
    return mapping_of(pool, tree, pool.mapped)


def without_queues(pool: Pool) -> PoolMapping:
    """Return the mapping of `pool` as far as its stamp says; its queues are left out."""
    return PoolMapping(pool.id, pool.vo, mapped=pool.mapped, tree_version=pool.tree_version)


def due_for_refresh(pools: Iterable[Pool], older_than: timedelta, tree_version: int, now: datetime) -> tuple[Pool, ...]:
    """Return the pools without a mapping, and those whose mapping has that age or is of another tree."""
    return tuple(
        pool
        for pool in pools
        if pool.mapped is None or pool.tree_version != tree_version or now - pool.mapped >= older_than
    )


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What a cleanup does, as pool ids: note that they are idle, take that note back, remove."""

    fell_idle: tuple[str, ...]
    came_alive: tuple[str, ...]
    removable: tuple[str, ...]

    @property
    def touched(self) -> tuple[str, ...]:
        """All pools that change, in a fixed order so that two cleanups lock them alike."""
        return tuple(sorted((*self.fell_idle, *self.came_alive, *self.removable)))


def cleaning(pools: Iterable[Pool], live: Collection[str], grace: timedelta, now: datetime) -> Cleaning:
    """Return what to do with `pools`, of which `live` have a job in a non-final state."""
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
    return Cleaning(tuple(fell_idle), tuple(came_alive), tuple(removable))
