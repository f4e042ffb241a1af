"""Submit pools: created with their first job, refreshed, removed when idle, and listed for people and pilots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pilotage.errors import PermissionDeniedError
from pilotage.job_description import Value
from pilotage.pacing import Pace, at_once
from pilotage.resources.requirements import Requirements, read_requirements
from pilotage.resources.tree import QueueId
from pilotage.text import fold
from pilotage_server.core.identity import Identity, check_queues
from pilotage_server.core.resources.mappings import PoolMapping, PoolMappings
from pilotage_server.core.resources.pools import (
    CleanupPlan,
    Pool,
    PoolIdClashError,
    active_mapping,
    cleanup_plan,
    due_for_refresh,
    mapping_of,
    new_pool,
    with_mapping,
    without_queues,
)
from pilotage_server.core.resources.tree import ActiveTree
from pilotage_server.operations.resources.tree import activate_tree, active_tree, lock_active_tree
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import pools as stored
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.leases import running_by_pool
from pilotage_server.storage.pools import load_pools
from pilotage_server.storage.resources import hold_tree


def ensure_pool(transaction: Transaction, state: ServerState, requirements: Requirements | None) -> str:
    """Return the id of the pool of `requirements`, "" for none, and lock the pool until the commit.

    Every placement of a job calls this, so that a pool that is being removed at the same time is either kept or created
    again with its mapping. The id follows from the active tree, which may declare parameters differently from the tree
    that `requirements` were read with.

    Raises
    ------
    InvalidRequirementsError
        When a new tree of another server cannot interpret the requirements.
    PoolIdClashError
        When the id belongs to other requirements.
    """
    if requirements is None or not requirements.items:
        return ""
    tree = lock_active_tree(transaction, state)
    now_means = read_requirements(requirements.section, requirements.vo, tree.declarations)
    wanted = new_pool(now_means, transaction.now)
    pool = stored.hold_pool(transaction.session, wanted.id) or _make_pool(transaction, state, wanted, tree)
    if pool is not wanted:
        _use_pool(transaction, state, pool, wanted, tree)
    return pool.id


def _use_pool(transaction: Transaction, state: ServerState, pool: Pool, wanted: Pool, tree: ActiveTree) -> None:
    """Add a job to an existing pool."""
    if pool.canonical != wanted.canonical:
        raise PoolIdClashError(pool.id)
    if pool.idle_since is not None:
        stored.note_job(transaction.session, pool.id)
    # Another server on the same database may have mapped it since this one last read it.
    (mapping,) = active_mappings(state, tree, [pool])
    if mapping is not state.mappings.get(pool.id):
        transaction.after_commit(lambda: _put_mappings(state, [mapping]))


def _make_pool(transaction: Transaction, state: ServerState, wanted: Pool, tree: ActiveTree) -> Pool:
    """Store `wanted` with its mapping and return it, or return the one that a concurrent transaction has stored."""
    mapping = mapping_of(wanted, tree, transaction.now)
    while not stored.insert_pool(transaction.session, with_mapping(wanted, mapping)):
        # That row may be removed again before it can be locked; then this one is stored after all.
        found = stored.hold_pool(transaction.session, wanted.id)
        if found is not None:
            return found
    transaction.after_commit(lambda: _put_mappings(state, [mapping]))
    return wanted


def load_mappings(transaction: Transaction, tree: ActiveTree) -> PoolMappings:
    """Return the mappings of all pools by the active tree."""
    return PoolMappings(active_mapping(pool, tree) for pool in stored.load_pools(transaction.session))


def active_mappings(
    state: ServerState, tree: ActiveTree, pools: Sequence[Pool], pace: Pace = at_once
) -> list[PoolMapping]:
    """Return the mappings of `pools` that their rows stand for, in order, by the active tree.

    Mappings that the server state has in the same version are not computed again.
    """
    known = (state.mappings.get(pool.id) for pool in pools)
    return [
        mapping if mapping is not None and mapping.stamp == pool.stamp else active_mapping(pool, tree)
        for pool, mapping in pace(zip(pools, known, strict=True))
    ]


def plan_refresh(transaction: Transaction, state: ServerState, older_than: timedelta) -> tuple[PoolMapping, ...]:
    """Return new mappings for the pools whose mappings are as old as `older_than`, missing, or of another tree.

    The cost depends on the pools, not on their jobs; nothing is locked.
    """
    tree = active_tree(transaction, state)
    due = due_for_refresh(stored.load_pools(transaction.session), older_than, tree.version, transaction.now)
    return tuple(mapping_of(pool, tree, transaction.now) for pool in due)


def refresh_pools(transaction: Transaction, state: ServerState, planned: Sequence[PoolMapping]) -> tuple[str, ...]:
    """Store and activate the planned mappings, and return the ids of their pools.

    Pools that were mapped or removed meanwhile are left out; all are left out after a new tree, which has mapped them.
    """
    if not planned or hold_tree(transaction.session) != planned[0].tree_version:
        return ()
    times = [mapping.mapped for mapping in planned if mapping.mapped is not None]
    ids = [mapping.pool_id for mapping in planned if mapping.mapped is not None]
    fresh = set(stored.set_mapped(transaction.session, ids, max(times), planned[0].tree_version)) if times else set()
    taken = [mapping for mapping in planned if mapping.pool_id in fresh]
    transaction.after_commit(lambda: _put_mappings(state, taken))
    if any(mapping.queues - state.mappings.queues(mapping.pool_id) for mapping in taken):
        transaction.after_commit(state.publish_access_change)
    return tuple(mapping.pool_id for mapping in planned if mapping.pool_id in fresh or mapping.mapped is None)


def plan_cleaning(transaction: Transaction, grace: timedelta) -> CleanupPlan:
    """Return the steps of a cleanup now; nothing is locked."""
    pools = stored.load_pools(transaction.session)
    live = stored.pools_with_live_jobs(transaction.session, [pool.id for pool in pools])
    return cleanup_plan(pools, live, grace, transaction.now)


def clean_pools(
    transaction: Transaction, state: ServerState, grace: timedelta, planned: CleanupPlan
) -> tuple[str, ...]:
    """Remove those of the pools of the plan that have had no job in a non-final state for `grace`; return their ids.

    The time counts from the first cleanup that saw the pool idle, so it takes two of them, unless `grace` is 0.
    """
    session = transaction.session
    hold_tree(session)
    # A pool that is locked by the placement of a job is skipped. The live jobs are read after the lock, so that
    # all committed jobs are seen.
    pools = stored.lock_for_removal(session, planned.touched)
    live = stored.pools_with_live_jobs(session, [pool.id for pool in pools])
    found = cleanup_plan(pools, live, grace, transaction.now)
    stored.set_idle_since(session, found.fell_idle, transaction.now)
    stored.set_idle_since(session, found.came_alive, None)
    remove_pools(transaction, state, [pool for pool in pools if pool.id in set(found.removable)])
    return found.removable


def remove_pools(transaction: Transaction, state: ServerState, pools: Iterable[Pool]) -> None:
    """Remove pools without live jobs, with their task queues."""
    gone = tuple(pools)
    ids = [pool.id for pool in gone]
    last = [without_queues(pool) for pool in gone]
    task_queues = stored.delete_task_queues(transaction.session, ids)
    stored.delete_pools(transaction.session, ids)

    def apply() -> None:
        with state.lock:
            state.mappings.remove(last)
            state.waiting.remove(task_queues)

    transaction.after_commit(apply)


def replace_mappings(state: ServerState, tree: ActiveTree, mappings: PoolMappings) -> None:
    """Activate `tree` together with the mappings of all pools by it.

    The mappings are replaced as a whole, because adding 10,000 of them would block matching.
    """
    with state.lock:
        activate_tree(state, tree)
        # A transaction that committed later may have changed the server state earlier.
        mappings.put(mapping for mapping in state.mappings.all() if mapping.tree_version >= tree.version)
        state.mappings = mappings


def _put_mappings(state: ServerState, mappings: Iterable[PoolMapping]) -> None:
    with state.lock:
        state.mappings.put(mappings)


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool with its numbers of waiting jobs and of jobs with a lease; `queues` are sorted.

    `requirements` are those of the job that created the pool, as typed. `mapped` None = the pool has no mapping and may
    run nowhere.
    """

    id: str
    vo: str
    requirements: Mapping[str, Value]
    waiting: int
    running: int
    queues: tuple[QueueId, ...]
    mapped: datetime | None
    tree_version: int
    created: datetime


@dataclass(frozen=True, slots=True)
class QueuePools:
    """The pools that may run on a queue, sorted by id; none for a queue that the tree does not have."""

    queue: QueueId
    known: bool
    pool_ids: tuple[str, ...]


def list_pools(transaction: Transaction, state: ServerState, identity: Identity, vo: str = "") -> tuple[PoolView, ...]:
    """Return the pools of `vo`, or all that the caller may see; those with most waiting jobs come first.

    Raises
    ------
    PermissionDeniedError
        When a user asks for the pools of another VO.
    """
    shown = visible_vo(identity, vo)
    pools = [pool for pool in load_pools(transaction.session) if shown is None or fold(pool.vo) == fold(shown)]
    running = running_by_pool(transaction.session)
    views = [_view(pool, state, running.get(pool.id, 0)) for pool in pools]
    return tuple(sorted(views, key=lambda view: (-view.waiting, view.id)))


def visible_vo(identity: Identity, vo: str) -> str | None:
    """Return the VO whose resources a caller sees for the filter `vo` ("" = all that is allowed); None = all VOs.

    Raises
    ------
    PermissionDeniedError
        When the caller may not see that VO.
    """
    if identity.is_shown_everything:
        return vo or None
    if vo and fold(vo) != fold(identity.vo):
        raise PermissionDeniedError(f"only operators can see other VOs than their own, such as {vo}")
    return identity.vo


def _view(pool: Pool, state: ServerState, running: int) -> PoolView:
    with state.lock:
        waiting = sum(max(0, wait.count) for wait in state.waiting.of_pool(pool.id))
        mapping = state.mappings.get(pool.id)
    return PoolView(
        id=pool.id,
        vo=pool.vo,
        requirements=pool.section,
        waiting=waiting,
        running=running,
        queues=tuple(sorted(mapping.queues)) if mapping else (),
        mapped=mapping.mapped if mapping else None,
        tree_version=mapping.tree_version if mapping else 0,
        created=pool.created,
    )


def get_submit_pools_for_queue(
    state: ServerState, identity: Identity, queues: Sequence[QueueId]
) -> tuple[QueuePools, ...]:
    """Return the pools of each queue, in the order asked, by the active mappings.

    A disabled queue is known and has no pools. A banned queue keeps its pools, because the ban may end before the pilot
    starts; until then it gets no match. A pilot gets only the queue that it is bound to, and pools of its own VOs.

    Raises
    ------
    PermissionDeniedError
        When a pilot or a bound agent asks for another queue.
    """
    credential = identity.pilot
    if credential is not None:
        foreign = next((queue for queue in queues if queue != credential.queue), None)
        if foreign is not None:
            raise PermissionDeniedError(f"pilot {credential.stamp} is bound to {credential.queue}, not {foreign}")
    check_queues(identity, queues)
    vos = credential.vos if credential else identity.bounds.vos
    return tuple(QueuePools(queue, state.tree.knows(queue), _pools_of(state, queue, vos)) for queue in queues)


def _pools_of(state: ServerState, queue: QueueId, vos: Sequence[str]) -> tuple[str, ...]:
    # A mapping that is older than the tree may still have a queue that is gone.
    return tuple(sorted(state.mappings.pools(queue, vos))) if state.tree.knows(queue) else ()
