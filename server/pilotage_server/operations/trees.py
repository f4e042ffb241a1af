"""New versions of the resource tree: tried, or taken with all that follows from them in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

from pilotage.pacing import Pace, at_once
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs import JobCause
from pilotage_server.core.pool_mappings import PoolMappings
from pilotage_server.core.task_queues import TaskQueue, with_pool
from pilotage_server.core.tree_changes import Reread, TreeEffect
from pilotage_server.core.tree_in_force import TreeInForce
from pilotage_server.core.tree_plan import Present, TreePlan, plan_tree, touched_pools, with_newcomers
from pilotage_server.operations.job_steps import Move, steps
from pilotage_server.operations.pools import exchange_mappings, mappings_in_force, remove_pools
from pilotage_server.operations.recounting import recount
from pilotage_server.operations.tree_loading import NewTree, tree_in_force
from pilotage_server.operations.unhurried import unhurried
from pilotage_server.operations.world import World
from pilotage_server.storage import holdings as stored_holdings
from pilotage_server.storage import pools as stored_pools
from pilotage_server.storage import task_queues as stored_task_queues
from pilotage_server.storage import trees as stored
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.holdings import Destination
from pilotage_server.storage.significant_attributes import hold_significant


def get_tree(unit: Unit) -> stored.TreeText:
    """Return the tree in force as it was given; version 0 when none was yet."""
    return stored.load_tree_text(unit.session)


def try_tree(unit: Unit, world: World, new: NewTree) -> TreePlan:
    """Return what the tree would change; nothing changes, and nothing waits for it."""
    return _plan(unit, world, new, tree_in_force(unit, world), unhurried)


def put_tree(unit: Unit, world: World, identity: Identity, new: NewTree, tried: TreePlan) -> TreeEffect:
    """Put a tree in force that has been tried just before, and return what it changes.

    All pools are mapped anew and, where a parameter is declared otherwise, their jobs come to the pools of what
    they now mean. Jobs that hold a lease keep it. A job that waits and whose requirements no longer have a
    meaning is held with the reason.
    """
    version = stored.lock_tree(unit.session)
    holds = not tried.touches_jobs and tried.tree.version == version + 1
    plan = _for_those_there_are(unit, world, tried) if holds else None
    if plan is None:
        hold_significant(unit.session)  # who lets more attributes tell jobs apart moves them too
        plan = _plan(unit, world, new, tree_in_force(unit, world), at_once)
    text = stored.TreeText(plan.tree.version, new.text, new.format, plan.made, identity.owner)
    stored.insert_tree(unit.session, text)
    _hold_stranded(unit, world, plan)
    _store_pools(unit, world, plan)
    unit.after_commit(lambda: _take(world, plan))
    return plan.effect


def _plan(unit: Unit, world: World, new: NewTree, before: TreeInForce, pace: Pace) -> TreePlan:
    after = before.successor(new.tree, pace)
    pools = stored_pools.load_pools(unit.session, pace)
    mappings = PoolMappings(mappings_in_force(world, before, pools, pace))
    present = Present(before, pools, mappings, _waits(world, pace))
    holdings = stored_holdings.load_holdings(unit.session, touched_pools(pools, before, after))
    return plan_tree(present, holdings, after, new.warnings, unit.now, pace)


def _waits(world: World, pace: Pace) -> tuple[tuple[TaskQueue, int], ...]:
    """Return the task queues with how many jobs wait; matches go on meanwhile."""
    with world.lock:
        ids = list(world.waiting.ids())
    lines = (world.waiting.line(task_queue_id) for task_queue_id in pace(ids))
    return tuple((line.task_queue, line.shown.count) for line in lines if line is not None and line.count > 0)


def _for_those_there_are(unit: Unit, world: World, plan: TreePlan) -> TreePlan | None:
    """Return the plan for the pools that there are now: some have come or gone since it was made.

    None = one that came asks for something that the tree declares otherwise, so the plan touches jobs after all.
    """
    ids = stored_pools.pool_ids(unit.session)
    planned = {pool.id for pool in plan.kept}
    if ids == planned:
        return plan
    came = stored_pools.find_pools(unit.session, ids - planned)
    if came and touched_pools(came, tree_in_force(unit, world), plan.tree):
        return None
    return with_newcomers(plan, ids, came)


def _hold_stranded(unit: Unit, world: World, plan: TreePlan) -> None:
    moves: list[Move] = []
    for stranded in plan.stranded:
        reason = f"its requirements have no meaning in tree version {plan.tree.version}: {stranded.why}"
        jobs = stored_holdings.load_waiting_jobs(unit.session, stranded.holding)
        moves += (Move(job, JobCause.HELD, "server", reason) for job in jobs)
    steps(unit, world, moves)


def _store_pools(unit: Unit, world: World, plan: TreePlan) -> None:
    for pool in plan.new:
        stored_pools.insert_pool(unit.session, pool)
    stored_pools.set_sections(unit.session, plan.reread)
    # The tree maps all pools but those that have no mapping before it or after it.
    stored_pools.stamp(unit.session, plan.came_on, plan.made, plan.tree.version)
    stored_pools.unmap(unit.session, plan.came_off)
    _move_jobs(unit, world, plan.moves)
    remove_pools(unit, world, plan.gone)


def _move_jobs(unit: Unit, world: World, moves: Sequence[Reread]) -> None:
    if not moves:
        return
    session = unit.session
    left = {move.holding.task_queue_id for move in moves}
    traits = {queue.id: queue.traits for queue in stored_task_queues.load_task_queues(session, left)}
    joined: set[int] = set()
    for move in moves:
        moved = with_pool(traits[move.holding.task_queue_id], move.pool_id)
        queue = stored_task_queues.find_or_insert(session, moved, unit.now)
        joined.add(queue.id)
        stored_holdings.move_holding(session, move.holding, Destination(move.pool_id, queue.id))
    recount(unit, world, left | joined)


def _take(world: World, plan: TreePlan) -> None:
    exchange_mappings(world, plan.tree, plan.mappings)
    world.reach_changed()
