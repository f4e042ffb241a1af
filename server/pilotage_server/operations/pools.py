"""Submit pools: made when their first job comes, refreshed, and removed when they have long been idle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from pilotage.requirements import Requirements, read_requirements
from pilotage_server.core.pool_mappings import NOWHERE, PoolMapping
from pilotage_server.core.pools import (
    Pool,
    PoolIdClashError,
    cleaning,
    due_for_refresh,
    mapping_of,
    new_pool,
    stored_mapping,
)
from pilotage_server.core.tree_in_force import TreeInForce
from pilotage_server.operations.tree_loading import hold_tree_in_force
from pilotage_server.operations.world import World
from pilotage_server.storage import mappings as stored_mappings
from pilotage_server.storage import pools as stored
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.trees import hold_tree


def ensure_pool(unit: Unit, world: World, requirements: Requirements | None) -> str:
    """Return the id of the pool that `requirements` belong to, "" for none, and keep it until the commit.

    Every placement of a job comes here, so that a pool that is being removed at the same time is either kept,
    or made anew with its mapping. The id is that of the tree in force, which may declare otherwise than the
    tree that `requirements` were read with.

    Raises
    ------
    InvalidRequirementsError
        When a tree that another server has just brought leaves the requirements without a meaning.
    PoolIdClashError
        When the id belongs to other requirements.
    """
    if requirements is None or not requirements.items:
        return ""
    tree = hold_tree_in_force(unit, world)
    now_means = read_requirements(requirements.section, requirements.vo, tree.declarations)
    wanted = new_pool(now_means, unit.now)
    pool = stored.hold_pool(unit.session, wanted.id) or _make_pool(unit, world, wanted, tree)
    if pool is not wanted:
        _join(unit, world, pool, wanted)
    return pool.id


def _join(unit: Unit, world: World, pool: Pool, wanted: Pool) -> None:
    """Let a job come to a pool that is there already."""
    if pool.canonical != wanted.canonical:
        raise PoolIdClashError(pool.id)
    if pool.idle_since is not None:
        stored.note_job(unit.session, pool.id)
    # Another server on the same database may have mapped it since this one last heard of it.
    (mapping,) = stored_mappings_of(unit, world, [pool])
    if mapping is not world.mappings.get(pool.id):
        unit.after_commit(lambda: _take_mappings(world, [mapping]))


def _make_pool(unit: Unit, world: World, pool: Pool, tree: TreeInForce) -> Pool:
    """Store `pool` with its mapping, and return it, or the one that somebody else has just stored."""
    while not stored.insert_pool(unit.session, pool):
        # The other's row may be gone again before it can be held; then this one is stored after all.
        found = stored.hold_pool(unit.session, pool.id)
        if found is not None:
            return found
    mapping = mapping_of(pool, tree, unit.now)
    stored_mappings.replace_mappings(unit.session, [mapping], {})
    unit.after_commit(lambda: _take_mappings(world, [mapping]))
    return pool


def stored_mappings_of(unit: Unit, world: World, pools: Sequence[Pool]) -> list[PoolMapping]:
    """Return the mappings of `pools` that the database has, in their order.

    Those that this server knows already are not read again: the stamp in the pool's row tells.
    """
    known: dict[str, PoolMapping] = {}
    for pool in pools:
        mapping = world.mappings.get(pool.id)
        if mapping is not None and mapping.stamp == stored_mapping(pool).stamp:
            known[pool.id] = mapping
    unknown = [pool.id for pool in pools if pool.id not in known]
    queues = stored_mappings.load_queues(unit.session, unknown)
    return [known.get(pool.id) or stored_mapping(pool, queues.get(pool.id, NOWHERE)) for pool in pools]


def refresh_pools(unit: Unit, world: World, older_than: timedelta) -> tuple[str, ...]:
    """Make the mappings anew that have that age, are missing, or are of another tree; return their pools' ids.

    Costs what the pools cost, however many jobs they have.
    """
    tree = hold_tree_in_force(unit, world)
    due = due_for_refresh(stored.load_pools(unit.session), older_than, tree.version, unit.now)
    # What somebody else has just mapped or removed need not be refreshed.
    pools = stored.lock_for_mapping(unit.session, [pool.id for pool in due])
    pools = due_for_refresh(pools, older_than, tree.version, unit.now)
    mappings = [mapping_of(pool, tree, unit.now) for pool in pools]
    before = {mapping.pool_id: mapping.queues for mapping in stored_mappings_of(unit, world, pools)}
    stored_mappings.replace_mappings(unit.session, mappings, before)
    unit.after_commit(lambda: _take_mappings(world, mappings))
    if any(mapping.queues - before[mapping.pool_id] for mapping in mappings):
        unit.after_commit(world.reach_changed)
    return tuple(pool.id for pool in pools)


def clean_pools(unit: Unit, world: World, grace: timedelta) -> tuple[str, ...]:
    """Remove the pools that have had no job in a non-final state for `grace`; return their ids.

    The time counts from the first cleanup that saw the pool idle, so it takes two of them, unless `grace` is 0.
    """
    session = unit.session
    hold_tree(session)
    seen = cleaning(stored.load_pools(session), stored.pools_with_live_jobs(session), grace, unit.now)
    # A pool to which a job is just coming is held by its transaction and passed over. What is asked after the
    # lock is what has been committed before it, so no job is overlooked.
    pools = stored.lock_for_removal(session, seen.touched)
    found = cleaning(pools, stored.pools_with_live_jobs(session), grace, unit.now)
    stored.set_idle_since(session, found.fell_idle, unit.now)
    stored.set_idle_since(session, found.came_alive, None)
    remove_pools(unit, world, [pool for pool in pools if pool.id in set(found.removable)])
    return found.removable


def remove_pools(unit: Unit, world: World, pools: Iterable[Pool]) -> None:
    """Remove pools that no live job belongs to, with their task queues."""
    gone = tuple(pools)
    ids = [pool.id for pool in gone]
    last = [stored_mapping(pool) for pool in gone]
    task_queues = stored.delete_task_queues(unit.session, ids)
    stored_mappings.delete_mappings(unit.session, ids)
    stored.delete_pools(unit.session, ids)
    unit.after_commit(lambda: _forget(world, last, task_queues))


def _take_mappings(world: World, mappings: Iterable[PoolMapping]) -> None:
    with world.lock:
        world.mappings.put(mappings)


def _forget(world: World, last: Iterable[PoolMapping], task_queues: Iterable[int]) -> None:
    with world.lock:
        world.mappings.remove(last)
        world.waiting.forget(task_queues)
