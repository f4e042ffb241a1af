"""RouteJobs and its companions: job routers take waiting jobs, read jobs, and publish their routes.

The rules for matches at a queue (bans, eligibility, limits, throttles) hold for routed jobs too: see `Gate`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cached_property

from pilotage.job_description import JobDescription
from pilotage.resources.eligibility import NoAccess, Refused, active_bans, ban_refusal
from pilotage.resources.requirements import JobNeeds
from pilotage.resources.tree import QueueId
from pilotage.text import fold, folded_set
from pilotage.values.isolation import Isolation
from pilotage.values.leadership import Leadership
from pilotage.values.routing import NewRoutedJob, PublishedRoutes, RoutableJob
from pilotage_server.core.accounting.limits import LimitRound
from pilotage_server.core.attempts.leases import AttemptRecord
from pilotage_server.core.audit import AuditKind, line_difference
from pilotage_server.core.identity import UNBOUND, AgentBounds, Identity, may_use_turn
from pilotage_server.core.jobs.descriptions import render
from pilotage_server.core.jobs.record import JobRecord, is_matchable, location_name, router_of, router_stamp
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.core.queueing.job_ads import full_job_ad
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.core.routing import NO_END, RouteAnswer, RoutedJobRecord, RouterRoutes, table_lines, target_queue
from pilotage_server.operations.accounting.limits import limits_at_present, running_counts
from pilotage_server.operations.attempts.transitions import Transition, apply_transitions
from pilotage_server.operations.audit import record_change
from pilotage_server.operations.explain import mapping_obstacle, queue_verdict
from pilotage_server.operations.leadership import lock_leadership
from pilotage_server.operations.matching.trials import claim_trials, throttles_at
from pilotage_server.operations.queueing.placement import task_queues_of
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import routing as stored
from pilotage_server.storage.attempts import AttemptKey, insert_attempts, mark_trials
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.leases import lock_jobs
from pilotage_server.storage.routing import insert_routed_jobs


def gates_of(transaction: Transaction, state: ServerState, wanted: Sequence[QueueId]) -> dict[QueueId, Gate]:
    """Return the gates of the targets of routed jobs; `wanted` has a target once for each job that goes there."""
    return _gates(transaction, state, wanted, limits_at_present(transaction, state, set(wanted), len(wanted)))


def read_only_gates(transaction: Transaction, state: ServerState, targets: Collection[QueueId]) -> dict[QueueId, Gate]:
    """Return gates for `obstacle` only; nothing is locked for them."""
    return _gates(transaction, state, targets, LimitRound(running_counts(transaction, state, targets)))


def _gates(
    transaction: Transaction, state: ServerState, targets: Iterable[QueueId], limits: LimitRound
) -> dict[QueueId, Gate]:
    return {
        target: Gate(transaction, state, target, limits.at(state.limits.at(target)))
        for target in dict.fromkeys(targets)
    }


class Gate:
    """Decides which jobs may go to one target; jobs that it has admitted count for the next ones.

    `trial` is the attempt that probes a throttled target, None = there is none.
    """

    def __init__(self, transaction: Transaction, state: ServerState, target: QueueId, limits: LimitRound) -> None:
        self._transaction = transaction
        self._state = state
        self._target = target
        self._limits = limits
        self._throttles = throttles_at(state, target)
        self._is_tried = False
        self.trial: AttemptKey | None = None
        self._unfit: dict[int, str] = {}

    def enter(self, job: JobRecord, task_queue: TaskQueue) -> str:
        """Admit the job and return "", or return why it may not go here."""
        why = self._closed_or_full(job, task_queue) or self._throttled(job)
        if not why:
            self._limits.add(task_queue.traits)
        return why

    def obstacle(self, job: JobRecord, task_queue: TaskQueue) -> str:
        """Return why the job could not go here, "" = it could; it reserves nothing."""
        return self._closed_or_full(job, task_queue) or (str(self._throttles[0]) if self._throttles else "")

    def _closed_or_full(self, job: JobRecord, task_queue: TaskQueue) -> str:
        return self._closed or self._why_unfit(job, task_queue) or self._full(task_queue)

    @cached_property
    def _closed(self) -> str:
        """Why no job may go here."""
        if self._target.queue and not self._state.tree.knows(self._target):
            return f"the active tree has no queue {self._target}"
        ban = next(iter(active_bans(self._state.bans, self._target, self._transaction.now)), None)
        return ban_refusal(ban).why if ban is not None else ""

    def _why_unfit(self, job: JobRecord, task_queue: TaskQueue) -> str:
        """Return why no job of the task queue may go here."""
        if not self._target.queue:
            return self._why_not_there(task_queue.needs)
        if task_queue.traits.in_container:
            return "a routed job runs in no container image"
        access = self._state.queue_access
        if access.admits(task_queue, self._target):
            weak = access.too_weak(Isolation.NONE, self._target, task_queue.account.vo)
            return f"no pilot isolates a routed job ({weak})" if weak else ""
        if task_queue.id not in self._unfit:
            self._unfit[task_queue.id] = self._refusal(job, task_queue)
        return self._unfit[task_queue.id]

    def _why_not_there(self, needs: JobNeeds) -> str:
        """Return why no job with these needs may go to the other server, which checks everything else itself.

        Requested sites that the active tree has are meant here; other sites may be known to the other server.
        """
        server = fold(self._target.site)
        if server in needs.banned_sites:
            return f"the job wants to avoid {location_name(self._target)}"
        are_here = needs.sites and server not in needs.sites and self._own_sites.issuperset(needs.sites)
        return "the job wants sites that are here" if are_here else ""

    @cached_property
    def _own_sites(self) -> frozenset[str]:
        return folded_set(site.name for site in self._state.tree.tree.sites)

    def _refusal(self, job: JobRecord, task_queue: TaskQueue) -> str:
        description = self._state.descriptions.load(self._transaction, [job.template_id])[job.template_id]
        verdict = queue_verdict(self._transaction, self._state, description, task_queue, self._target)
        if isinstance(verdict, NoAccess):
            return f"VO {job.vo} may not use queue {self._target}"
        if isinstance(verdict, Refused):
            return f"queue {self._target} cannot run it: {verdict.refusals[0]}"
        return mapping_obstacle(self._state, task_queue, self._target) or "what may go where has just changed"

    def _full(self, task_queue: TaskQueue) -> str:
        reached = self._limits.reached(task_queue.traits)
        return f"the limit is reached: {reached}" if reached is not None else ""

    def _throttled(self, job: JobRecord) -> str:
        """Return why the target is throttled; "" for the first job when a probe is due."""
        if not self._throttles:
            return ""
        if not self._is_tried:
            self._is_tried = True
            if claim_trials(self._transaction, self._state, self._throttles):
                self.trial = (job.id, job.next_attempt)
                return ""
        return str(self._throttles[0])


def route_jobs(
    transaction: Transaction,
    state: ServerState,
    leadership: Leadership,
    copies: Sequence[NewRoutedJob],
    bounds: AgentBounds = UNBOUND,
) -> tuple[RouteAnswer, ...]:
    """Begin an attempt, held by the router, of each job that its target admits; return the answers in order.

    The jobs are different ones, and only jobs of VOs in the bounds are routed. Raises LeadershipLostError.
    """
    lock_leadership(transaction, leadership)
    ids = [copy.job_id for copy in copies]
    lock_jobs(transaction.session, ids)
    jobs = load_jobs(transaction.session, ids)
    task_queues = task_queues_of(transaction, state, {job.task_queue_id for job in jobs.values()})
    gates = gates_of(transaction, state, [target_queue(copy) for copy in copies])
    taken: list[tuple[NewRoutedJob, JobRecord]] = []
    refusals: dict[int, str] = {}
    for copy in copies:
        job = jobs.get(copy.job_id)
        why = routing_refusal(copy.job_id, job if job is not None and bounds.has_vo(job.vo) else None)
        if job is not None and not why:
            why = gates[target_queue(copy)].enter(job, task_queues[job.task_queue_id])
        if job is None or why:
            refusals[copy.job_id] = why
        else:
            taken.append((copy, job))
    _take(transaction, state, leadership, taken, task_queues)
    mark_trials(transaction.session, [gate.trial for gate in gates.values() if gate.trial is not None])
    attempts = {job.id: job.next_attempt for _, job in taken}
    return tuple(RouteAnswer(id_, attempts.get(id_, 0), refusals.get(id_, "")) for id_ in ids)


def routing_refusal(job_id: int, job: JobRecord | None) -> str:
    """Return why the job cannot be routed to any target; "" = it can."""
    if job is None:
        return f"there is no job {job_id}"
    if is_matchable(job):
        return ""
    return "its last attempt may still be running" if job.state is JobState.WAITING else f"it is {job.state}"


def _take(
    transaction: Transaction,
    state: ServerState,
    leadership: Leadership,
    taken: Sequence[tuple[NewRoutedJob, JobRecord]],
    task_queues: dict[int, TaskQueue],
) -> None:
    """Begin the attempts of locked jobs."""
    if not taken:
        return
    moved = apply_transitions(transaction, state, [_move(transaction, leadership, copy, job) for copy, job in taken])
    after = [job for job in moved if job is not None]
    assert len(after) == len(taken), "nobody moves jobs that are locked"
    insert_attempts(transaction.session, [_attempt(transaction, job, task_queues[job.task_queue_id]) for job in after])
    records = [
        RoutedJobRecord(job.id, job.attempt, leadership.agent, copy.route, copy.target, "", transaction.now)
        for (copy, _), job in zip(taken, after, strict=True)
    ]
    insert_routed_jobs(transaction.session, records)


def _move(transaction: Transaction, leadership: Leadership, copy: NewRoutedJob, job: JobRecord) -> Transition:
    stamp = router_stamp(leadership.agent)
    changes = {
        "attempt": job.next_attempt,
        "lease_until": transaction.now + NO_END,
        "pilot_stamp": stamp,
        "queue": target_queue(copy),
        "node": "",
        "slot": copy.route,
    }
    return Transition(job, JobCause.MATCHED, stamp, f"route {copy.route} to {copy.target}", changes)


def _attempt(transaction: Transaction, job: JobRecord, task_queue: TaskQueue) -> AttemptRecord:
    """Return the attempt that has begun; it is not charged before its payload starts."""
    assert job.queue is not None, "a job that was just routed has a target"
    cpus = task_queue.traits.amounts.cpus
    return AttemptRecord(
        job_id=job.id,
        attempt=job.attempt,
        pilot_stamp=job.pilot_stamp,
        queue=job.queue,
        node=job.node,
        slot=job.slot,
        cpus=cpus,
        gpus=task_queue.traits.amounts.gpus,
        weight=float(cpus),
        account=task_queue.account,
        matched=transaction.now,
    )


def load_routable_jobs(
    transaction: Transaction, state: ServerState, job_ids: Sequence[int], identity: Identity | None = None
) -> Iterator[RoutableJob]:
    """Yield the jobs that exist and that the router may read, in the order asked; they may be large.

    `identity` None = no restriction.
    """
    found = load_jobs(transaction.session, job_ids)
    jobs = {id_: job for id_, job in found.items() if identity is None or _may_route(identity, job)}
    descriptions = state.descriptions.load(transaction, {job.template_id for job in jobs.values()})
    existing = (jobs[id_] for id_ in job_ids if id_ in jobs)
    return (_routable(job, descriptions[job.template_id], transaction.now) for job in existing)


def _may_route(identity: Identity, job: JobRecord) -> bool:
    """Whether the caller may read the whole description of a job: it waits, or a router of the caller has it."""
    if identity.sees_everything:
        return True
    if not identity.bounds.has_vo(job.vo):
        return False
    return job.state is JobState.WAITING or (bool(router_of(job)) and may_use_turn(identity, router_of(job)))


def _routable(job: JobRecord, description: JobDescription, now: datetime) -> RoutableJob:
    numbered = job._replace(attempt=job.next_attempt) if is_matchable(job) else job
    return RoutableJob(
        job.id,
        job.state.value,
        full_job_ad(job, description, now),
        render(description, numbered),
        job.owner,
        job.vo,
        job.group,
    )


def put_routes(transaction: Transaction, identity: Identity, leadership: Leadership, table: PublishedRoutes) -> None:
    """Replace the published routes of a router; raises LeadershipLostError."""
    lock_leadership(transaction, leadership)
    router = leadership.agent
    before = (each.table for each in stored.load_routers(transaction.session) if each.router == router)
    changed = line_difference((line for old in before for line in table_lines(old)), table_lines(table))
    if changed:
        record_change(transaction, identity, AuditKind.ROUTES, router, difference=changed, agent=router)
    stored.put_router(transaction.session, RouterRoutes(leadership.agent, transaction.now, table))


def list_routes(transaction: Transaction) -> tuple[RouterRoutes, ...]:
    """Return the published routes of all routers, by name."""
    return stored.load_routers(transaction.session)
