"""Submit pools: made when their first job comes, refreshed, and removed when they have long been idle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from pilotage.pacing import Pace, at_once
from pilotage.requirements import Requirements, read_requirements
from pilotage_server.core.pool_mappings import PoolMapping, PoolMappings
from pilotage_server.core.pools import (
    Cleaning,
    Pool,
    PoolIdClashError,
    cleaning,
    due_for_refresh,
    mapping_in_force,
    mapping_of,
    new_pool,
    stamped,
    without_queues,
)
from pilotage_server.core.tree_in_force import TreeInForce
from pilotage_server.operations.tree_loading import hold_tree_in_force, take_tree, tree_in_force
from pilotage_server.operations.world import World
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
        _join(unit, world, pool, wanted, tree)
    return pool.id


def _join(unit: Unit, world: World, pool: Pool, wanted: Pool, tree: TreeInForce) -> None:
    """Let a job come to a pool that is there already."""
    if pool.canonical != wanted.canonical:
        raise PoolIdClashError(pool.id)
    if pool.idle_since is not None:
        stored.note_job(unit.session, pool.id)
    # Another server on the same database may have mapped it since this one last heard of it.
    (mapping,) = mappings_in_force(world, tree, [pool])
    if mapping is not world.mappings.get(pool.id):
        unit.after_commit(lambda: _take_mappings(world, [mapping]))


def _make_pool(unit: Unit, world: World, wanted: Pool, tree: TreeInForce) -> Pool:
    """Store `wanted` with its mapping, and return it, or the one that somebody else has just stored."""
    mapping = mapping_of(wanted, tree, unit.now)
    while not stored.insert_pool(unit.session, stamped(wanted, mapping)):
        # The other's row may be gone again before it can be held; then this one is stored after all.
        found = stored.hold_pool(unit.session, wanted.id)
        if found is not None:
            return found
    unit.after_commit(lambda: _take_mappings(world, [mapping]))
    return wanted


def load_mappings(unit: Unit, tree: TreeInForce) -> PoolMappings:
    """Return the mappings of all pools by `tree`, which is in force."""
    return PoolMappings(mapping_in_force(pool, tree) for pool in stored.load_pools(unit.session))


def mappings_in_force(
    world: World, tree: TreeInForce, pools: Sequence[Pool], pace: Pace = at_once
) -> list[PoolMapping]:
    """Return the mappings of `pools` as their rows say, in their order, by `tree`, which is in force.

    Those that this server knows already are not worked out again: the stamp in the pool's row tells.
    """
    known = (world.mappings.get(pool.id) for pool in pools)
    return [
        mapping if mapping is not None and mapping.stamp == pool.stamp else mapping_in_force(pool, tree)
        for pool, mapping in pace(zip(pools, known, strict=True))
    ]


def plan_refresh(unit: Unit, world: World, older_than: timedelta) -> tuple[PoolMapping, ...]:
    """Return new mappings for the pools whose mappings have that age, are missing, or are of another tree.

    It costs what the pools cost, however many jobs they have, and nothing waits for it.
    """
    tree = tree_in_force(unit, world)
    due = due_for_refresh(stored.load_pools(unit.session), older_than, tree.version, unit.now)
    return tuple(mapping_of(pool, tree, unit.now) for pool in due)


def refresh_pools(unit: Unit, world: World, planned: Sequence[PoolMapping]) -> tuple[str, ...]:
    """Put the planned mappings in force, and return the ids of their pools.

    Those that somebody else has mapped or removed meanwhile are left out, and all of them when a new tree has come,
    for it has mapped all pools.
    """
    if not planned or hold_tree(unit.session) != planned[0].tree_version:
        return ()
    times = [mapping.mapped for mapping in planned if mapping.mapped is not None]
    ids = [mapping.pool_id for mapping in planned if mapping.mapped is not None]
    fresh = set(stored.stamp(unit.session, ids, max(times), planned[0].tree_version)) if times else set()
    taken = [mapping for mapping in planned if mapping.pool_id in fresh]
    unit.after_commit(lambda: _take_mappings(world, taken))
    if any(mapping.queues - world.mappings.queues(mapping.pool_id) for mapping in taken):
        unit.after_commit(world.reach_changed)
    return tuple(mapping.pool_id for mapping in planned if mapping.pool_id in fresh or mapping.mapped is None)


def plan_cleaning(unit: Unit, grace: timedelta) -> Cleaning:
    """Return what a cleanup would do now; nothing waits for it."""
    pools = stored.load_pools(unit.session)
    live = stored.pools_with_live_jobs(unit.session, [pool.id for pool in pools])
    return cleaning(pools, live, grace, unit.now)


def clean_pools(unit: Unit, world: World, grace: timedelta, planned: Cleaning) -> tuple[str, ...]:
    """Remove those of the pools of the plan that have had no job in a non-final state for `grace`; return their ids.

    The time counts from the first cleanup that saw the pool idle, so it takes two of them, unless `grace` is 0.
    """
    session = unit.session
    hold_tree(session)
    # A pool to which a job is just coming is held by its transaction and passed over. What is asked after the
    # lock is what has been committed before it, so no job is overlooked.
    pools = stored.lock_for_removal(session, planned.touched)
    live = stored.pools_with_live_jobs(session, [pool.id for pool in pools])
    found = cleaning(pools, live, grace, unit.now)
    stored.set_idle_since(session, found.fell_idle, unit.now)
    stored.set_idle_since(session, found.came_alive, None)
    remove_pools(unit, world, [pool for pool in pools if pool.id in set(found.removable)])
    return found.removable


def remove_pools(unit: Unit, world: World, pools: Iterable[Pool]) -> None:
    """Remove pools that no live job belongs to, with their task queues."""
    gone = tuple(pools)
    ids = [pool.id for pool in gone]
    last = [without_queues(pool) for pool in gone]
    task_queues = stored.delete_task_queues(unit.session, ids)
    stored.delete_pools(unit.session, ids)
    unit.after_commit(lambda: _forget(world, last, task_queues))


def exchange_mappings(world: World, tree: TreeInForce, mappings: PoolMappings) -> None:
    """Let the matcher decide by `tree` and the mappings of all pools by it from now on.

    They come in the place of those there are: at this moment nobody waits for 10,000 to be taken in.
    """
    with world.lock:
        take_tree(world, tree)
        # Who has committed later may have been quicker to tell of it.
        mappings.put(mapping for mapping in world.mappings.all() if mapping.tree_version >= tree.version)
        world.mappings = mappings


def _take_mappings(world: World, mappings: Iterable[PoolMapping]) -> None:
    with world.lock:
        world.mappings.put(mappings)


def _forget(world: World, last: Iterable[PoolMapping], task_queues: Iterable[int]) -> None:
    with world.lock:
        world.mappings.remove(last)
        world.waiting.forget(task_queues)
