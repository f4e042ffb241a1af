"""New versions of the resource tree: dry runs, and activation with all its consequences in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pilotage.errors import InvalidInputError, Violation
from pilotage.pacing import Pace, at_once
from pilotage.resources.formats import tree_format
from pilotage.resources.inheritance import effective_queues
from pilotage.resources.tree import QueueId
from pilotage_server.core.audit import AuditKind, text_difference
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.core.queueing.task_queue import TaskQueue, with_pool
from pilotage_server.core.queueing.tree_plan import (
    Rekeyed,
    TreeEffect,
    TreePlan,
    TreeState,
    plan_tree,
    touched_pools,
    with_new_pools,
)
from pilotage_server.core.resources.mappings import PoolMappings
from pilotage_server.core.resources.tree import ActiveTree
from pilotage_server.operations.attempts.transitions import Transition, apply_transitions
from pilotage_server.operations.audit import record_change
from pilotage_server.operations.cooperative import cooperative
from pilotage_server.operations.queueing.arrivals import recount
from pilotage_server.operations.resources.pools import active_mappings, remove_pools, replace_mappings
from pilotage_server.operations.resources.tree import NewTree, active_tree, parse_tree
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import pools as stored_holdings
from pilotage_server.storage import pools as stored_pools
from pilotage_server.storage import resources as stored
from pilotage_server.storage import task_queues as stored_task_queues
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.pools import Destination
from pilotage_server.storage.task_queues import share_lock_significant


def get_tree(transaction: Transaction) -> stored.TreeText:
    """Return the text of the active tree as it was uploaded; version 0 = there is none yet."""
    return stored.load_tree_text(transaction.session)


def try_tree(transaction: Transaction, state: ServerState, new: NewTree) -> TreePlan:
    """Return what the tree would change; it changes and locks nothing."""
    return _plan(transaction, state, new, active_tree(transaction, state), cooperative)


FIRST_JOBS = 10
"""The jobs that are named of those that become runnable, and of those that become stuck."""


@dataclass(frozen=True, slots=True)
class AffectedJobs:
    """The ids of the first waiting jobs that a tree makes runnable, and of those that it makes stuck."""

    runnable: tuple[int, ...] = ()
    stuck: tuple[int, ...] = ()


NO_JOBS = AffectedJobs()


def first_affected_jobs(transaction: Transaction, effect: TreeEffect) -> AffectedJobs:
    """Return the first jobs concerned; to be called before the tree is active."""
    return AffectedJobs(_first_jobs(transaction, effect.runnable), _first_jobs(transaction, effect.stuck))


def _first_jobs(transaction: Transaction, task_queues: Sequence[int]) -> tuple[int, ...]:
    ids: list[int] = []
    for task_queue in task_queues[:FIRST_JOBS]:
        ids += (job.id for job in stored_task_queues.load_first_waiting(transaction.session, task_queue, FIRST_JOBS))
    return tuple(sorted(ids)[:FIRST_JOBS])


@dataclass(frozen=True, slots=True)
class TreeDifference:
    """The difference of a new tree and the active one, which has this version."""

    before: int
    text: str


def compare_tree(active: stored.TreeText, new: NewTree) -> TreeDifference:
    """Return the difference of a new tree and the active one; for long trees call it before the transaction."""
    names = (f"version {active.version}", f"version {active.version + 1}")
    return TreeDifference(active.version, text_difference(active.text, new.text, names))


def put_tree(
    transaction: Transaction,
    state: ServerState,
    identity: Identity,
    new: NewTree,
    tried: TreePlan,
    difference: TreeDifference | None = None,
) -> TreeEffect:
    """Activate a tree that has just been tried, and return what it changes.

    `difference` is that of this tree when it was tried; it is made again if another tree has become active since.

    All pools are mapped again. When the tree declares a parameter differently, jobs move to the pools of their new
    requirements. Jobs with a lease keep it. A waiting job whose requirements cannot be interpreted any more is held.
    """
    version = stored.lock_tree(transaction.session)
    if difference is None or difference.before != version:
        difference = compare_tree(get_tree(transaction), new)
    record_change(transaction, identity, AuditKind.TREE, f"version {version + 1}", difference=difference.text)
    holds = not tried.touches_jobs and tried.tree.version == version + 1
    plan = _plan_for_present_pools(transaction, state, tried) if holds else None
    if plan is None:
        share_lock_significant(transaction.session)  # adding significant attributes moves jobs too
        plan = _plan(transaction, state, new, active_tree(transaction, state), at_once)
    text = stored.TreeText(plan.tree.version, new.text, new.format, plan.made, identity.owner)
    stored.insert_tree(transaction.session, text)
    _hold_orphaned(transaction, state, plan)
    _store_pools(transaction, state, plan)
    transaction.after_commit(lambda: _activate(state, plan))
    return plan.effect


WORKER_SITE, WORKER_CE_TYPE, WORKER_QUEUE = "workers", "worker", "default"
"""Where the queues of joined machines are: one CE for each, whose own director alone serves this CEType."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A joined machine that runs jobs; sizes in MiB."""

    name: str
    cpus: int
    memory_mib: int
    disk_mib: int

    @property
    def queue(self) -> QueueId:
        """The queue of its own."""
        return QueueId(WORKER_SITE, self.name, WORKER_QUEUE)


def tree_with_worker(present: stored.TreeText, worker: Worker) -> NewTree | None:
    """Return the tree with a queue for the machine; None = it has one. Call it outside of transactions.

    Raises
    ------
    InvalidInputError
        The tree is in another format than TOML, or states the site of workers in a way that cannot be continued, or
        its queue of this name is not of a worker: a machine that joins must not get the pilots of a cluster.
    """
    known = effective_queues(parse_tree(present.text, present.format).tree, None) if present.version else ()
    for queue in known:
        if queue.id == worker.queue:
            ce_type = queue.get("CEType")
            if ce_type is None or ce_type.value != WORKER_CE_TYPE:
                why = f"the queue {worker.queue} is not of a joined machine: its CEType is not {WORKER_CE_TYPE}"
                raise InvalidInputError(Violation("machine", f"{why}; join with another name"))
            return None
    ce = f'sites.{WORKER_SITE}.ces."{worker.name}"'
    added = f"""\
# A machine that has joined.
[{ce}]
CEType = "{WORKER_CE_TYPE}"

[{ce}.queues.{WORKER_QUEUE}]
CPUs = {worker.cpus}
Memory = {worker.memory_mib}
Disk = {worker.disk_mib}
MaxTotalJobs = 1
"""
    if not present.version:
        return parse_tree(added, "toml")
    why = f"the tree cannot be continued: an operator adds the queue {worker.queue} with CEType = {WORKER_CE_TYPE}"
    if tree_format(present.format) != "toml":
        raise InvalidInputError(Violation("machine", f"{why}; the tree is in {present.format}, not TOML"))
    try:
        return parse_tree(f"{present.text.rstrip()}\n\n{added}", present.format)
    except InvalidInputError as error:
        raise InvalidInputError(Violation("machine", f"{why} ({error.violations[0]})")) from error


def put_tree_after(
    transaction: Transaction,
    state: ServerState,
    identity: Identity,
    new: NewTree,
    tried: TreePlan,
    difference: TreeDifference,
) -> bool:
    """Activate a tree that was made from the tree it is compared with; return whether that was the active one."""
    if stored.lock_tree(transaction.session) != difference.before:
        return False
    put_tree(transaction, state, identity, new, tried, difference)
    return True


def _plan(transaction: Transaction, state: ServerState, new: NewTree, before: ActiveTree, pace: Pace) -> TreePlan:
    after = before.successor(new.tree, pace)
    pools = stored_pools.load_pools(transaction.session, pace)
    mappings = PoolMappings(active_mappings(state, before, pools, pace))
    present = TreeState(before, pools, mappings, _waits(state, pace))
    holdings = stored_holdings.load_job_groups(transaction.session, touched_pools(pools, before, after))
    return plan_tree(present, holdings, after, new.warnings, transaction.now, pace)


def _waits(state: ServerState, pace: Pace) -> tuple[tuple[TaskQueue, int], ...]:
    """Return the task queues with their numbers of waiting jobs; matching goes on meanwhile."""
    with state.lock:
        ids = list(state.waiting.ids())
    lines = (state.waiting.get(task_queue_id) for task_queue_id in pace(ids))
    return tuple((line.task_queue, line.summary.count) for line in lines if line is not None and line.count > 0)


def _plan_for_present_pools(transaction: Transaction, state: ServerState, plan: TreePlan) -> TreePlan | None:
    """Return the plan adapted to the present pools: some may have been added or removed since it was made.

    None = a new pool requires a parameter that the tree declares differently, so the plan moves jobs after all.
    """
    ids = stored_pools.pool_ids(transaction.session)
    planned = {pool.id for pool in plan.kept}
    if ids == planned:
        return plan
    came = stored_pools.find_pools(transaction.session, ids - planned)
    if came and touched_pools(came, active_tree(transaction, state), plan.tree):
        return None
    return with_new_pools(plan, ids, came)


def _hold_orphaned(transaction: Transaction, state: ServerState, plan: TreePlan) -> None:
    transitions: list[Transition] = []
    for unreadable in plan.unreadable:
        reason = f"its requirements have no meaning in tree version {plan.tree.version}: {unreadable.why}"
        jobs = stored_holdings.load_waiting_jobs(transaction.session, unreadable.group)
        transitions += (Transition(job, JobCause.HELD, "server", reason) for job in jobs)
    apply_transitions(transaction, state, transitions)


def _store_pools(transaction: Transaction, state: ServerState, plan: TreePlan) -> None:
    for pool in plan.new:
        stored_pools.insert_pool(transaction.session, pool)
    stored_pools.set_sections(transaction.session, plan.respelled)
    # The tree maps all pools except those without a mapping before and after it.
    stored_pools.set_mapped(transaction.session, plan.newly_mapped, plan.made, plan.tree.version)
    stored_pools.unmap(transaction.session, plan.unmapped)
    _move_jobs(transaction, state, plan.rekeyed)
    remove_pools(transaction, state, plan.removed)


def _move_jobs(transaction: Transaction, state: ServerState, moves: Sequence[Rekeyed]) -> None:
    if not moves:
        return
    session = transaction.session
    left = {move.group.task_queue_id for move in moves}
    traits = {queue.id: queue.traits for queue in stored_task_queues.load_task_queues(session, left)}
    joined: set[int] = set()
    for move in moves:
        moved = with_pool(traits[move.group.task_queue_id], move.pool_id)
        queue = stored_task_queues.find_or_insert(session, moved, transaction.now)
        joined.add(queue.id)
        stored_holdings.move_job_group(session, move.group, Destination(move.pool_id, queue.id))
    recount(transaction, state, left | joined)


def _activate(state: ServerState, plan: TreePlan) -> None:
    replace_mappings(state, plan.tree, plan.mappings)
    state.publish_access_change()
