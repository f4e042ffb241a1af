"""`why JOB`: which queues are excluded for a job, the pilots and slots at the others, and the jobs that go first.

The reasons are those of the eligibility evaluator and of the pool's mapping.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

from pilotage.classads.evaluation import Ad
from pilotage.errors import InvalidRequirementsError, Violation
from pilotage.job_description import JobDescription, Value
from pilotage.resources.eligibility import Refusal, Refused, Verdict, full_verdict, next_downtime
from pilotage.resources.inheritance import EffectiveQueue
from pilotage.resources.relaxations import QueuesOfJob, Relaxation, relaxations
from pilotage.resources.requirements import pool_id, read_requirements
from pilotage.resources.tree import MAX_WALL_TIME, QueueId
from pilotage.text import count_text, fold, folded_set
from pilotage.values.accounts import Account, OwnerId
from pilotage.values.isolation import Isolation
from pilotage.values.offers import SlotOffer
from pilotage.values.pilots import STOP_MARGIN_S, PilotState
from pilotage_server.core.accounting.limits import LimitRound
from pilotage_server.core.explain import (
    LEAST_STARTS,
    Exclusion,
    Obstacle,
    QueueOutlook,
    ResourceUse,
    SlotAnalysis,
    StartEstimate,
    WaitingFacts,
    count_of_vo,
    eligible,
    exclusions,
    policy_obstacles,
    slot_analysis,
    slots_obstacle,
    start_estimate,
    waiting_summary,
)
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.attributes import run_history_of
from pilotage_server.core.jobs.changes import summary
from pilotage_server.core.jobs.dependencies import Blocker
from pilotage_server.core.jobs.record import JobRecord, is_matchable
from pilotage_server.core.jobs.states import FINAL, JobState
from pilotage_server.core.jobs.usage import AttemptUsage
from pilotage_server.core.matching.demand import job_time_of_pilots_s
from pilotage_server.core.pilots.pilots import ARRIVING, PilotFilter, PilotRecord, SlotInfo
from pilotage_server.core.pilots.slot_listing import match_weight, slot_ads
from pilotage_server.core.queueing.job_ads import full_job_ad
from pilotage_server.core.queueing.slot_offers import obstacles, until
from pilotage_server.core.queueing.task_queue import TaskQueue, traits_of
from pilotage_server.core.queueing.waiting_jobs import QueueHead
from pilotage_server.operations.accounting.limits import running_counts
from pilotage_server.operations.jobs.dependencies import path_to_root_cause
from pilotage_server.operations.jobs.queries import few_sites, get_jobs
from pilotage_server.operations.jobs.workflows import workflow_of
from pilotage_server.operations.matching.trials import throttles_at
from pilotage_server.operations.resources.supply import pilot_problems
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import pilots as stored_pilots
from pilotage_server.storage import task_queues
from pilotage_server.storage.attempts import load_usages
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.pilots import load_slots
from pilotage_server.storage.queries.waits import recent_waits, task_queue_id
from pilotage_server.storage.submission.templates import load_description


def queue_verdicts(
    transaction: Transaction, state: ServerState, description: JobDescription, task_queue: TaskQueue
) -> dict[QueueId, Verdict]:
    """Return the verdict on a job of the task queue for every queue, in the order of the tree."""
    return _verdicts(transaction, state, description, task_queue, state.tree.view_for(task_queue.traits.account.vo))


def queue_verdict(
    transaction: Transaction, state: ServerState, description: JobDescription, task_queue: TaskQueue, queue: QueueId
) -> Verdict | None:
    """Return the verdict for one queue; None = the tree does not have it."""
    effective = state.tree.effective(queue, task_queue.traits.account.vo)
    return (
        None if effective is None else _verdicts(transaction, state, description, task_queue, {queue: effective})[queue]
    )


def _verdicts(
    transaction: Transaction,
    state: ServerState,
    description: JobDescription,
    task_queue: TaskQueue,
    view: Mapping[QueueId, EffectiveQueue],
) -> dict[QueueId, Verdict]:
    section, vo = description.requirements, task_queue.traits.account.vo
    try:
        requirements = read_requirements(section, vo, state.tree.declarations) if section else None
    except InvalidRequirementsError as error:
        # A later tree cannot interpret the requirements; then no queue satisfies them.
        return dict.fromkeys(view, Refused(tuple(_meaningless(violation) for violation in error.violations)))
    return {
        queue: full_verdict(
            requirements,
            task_queue.needs,
            effective,
            state.bans,
            transaction.now,
        )
        for queue, effective in view.items()
    }


def _meaningless(violation: Violation) -> Refusal:
    """Return the refusal by every queue of a requirement that cannot be interpreted."""
    return Refusal(violation.where, None, None, (), violation.why)


def mapping_obstacle(state: ServerState, task_queue: TaskQueue, queue: QueueId) -> str:
    """Return why the jobs of the task queue cannot go to a queue that is eligible otherwise; "" = they can."""
    mapping = state.mappings.get(task_queue.pool_id)
    if task_queue.pool_id and (mapping is None or mapping.mapped is None):
        return "its pool has no mapping at present"
    if not state.queue_access.admits(task_queue, queue):
        return "the pool's mapping, which is older than the tree, does not have this queue yet"
    return ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of a job's state.

    `exclusions` are over the `queues_of_vo` queues that the job's VO may use. `jobs_ahead` would go before it on a slot
    that fits both; `order` gives the reason. `pool_mapped` None = it has no pool. `ignored` are the statements of the
    job file that are not done. `pool_sites` are the sites of its pool if they are shown. `blockers` = the path from a
    blocked job to the parent that delays it most: each waits for the next one. `workflow` 0 = it is in none.
    """

    job: JobRecord
    summary: str
    queues_total: int
    queues_of_vo: int
    exclusions: tuple[Exclusion, ...]
    eligible_queues: tuple[QueueOutlook, ...]
    jobs_ahead: int
    order: str
    pool_mapped: datetime | None
    tree_version: int
    requirements: Mapping[str, Value]
    ignored: tuple[str, ...]
    relaxations: tuple[Relaxation, ...]
    slots: SlotAnalysis
    start: StartEstimate | None
    pool_sites: tuple[str, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    usage: AttemptUsage | None = None
    resources: tuple[ResourceUse, ...] = ()
    workflow: int = 0


def explain_job(transaction: Transaction, state: ServerState, identity: Identity, job_id: int) -> Explanation:
    """Return the explanation of a job; raises NotFoundError for one that the caller cannot see."""
    (job,) = get_jobs(transaction, identity, [job_id])
    description = load_description(transaction.session, job.template_id)
    task_queue = _task_queue(state, job, description)
    usage = load_usages(transaction.session, [job], transaction.now).get(job.id)
    explained = _explained(transaction, state, job, description, task_queue)
    return replace(
        explained,
        blockers=path_to_root_cause(transaction, job),
        usage=usage,
        resources=() if usage is None or job.started is None else tuple(_resources(task_queue, usage)),
        workflow=workflow_of(transaction, job),
    )


def explain_new_job(
    transaction: Transaction, state: ServerState, account: Account, description: JobDescription
) -> Explanation:
    """Return the explanation of a job that is not submitted yet, as if it waited behind all others; its id is 0."""
    section = description.requirements
    pool = pool_id(read_requirements(section, account.vo, state.tree.declarations)) if section else ""
    job = JobRecord(
        id=0,
        template_id=0,
        cluster=0,
        process=0,
        owner=account.owner,
        vo=account.vo,
        group=account.group,
        name=description.name,
        state=JobState.WAITING,
        reason="",
        priority=description.priority,
        task_queue_id=0,
        pool_id=pool,
        attempt=0,
        spent_attempts=0,
        lease=description.lease,
        lease_until=None,
        pilot_stamp="",
        queue=None,
        node="",
        slot="",
        exit_code=None,
        signal=None,
        submitted=transaction.now,
        started=None,
        ended=None,
    )
    task_queue = _task_queue(state, job, description)
    known = task_queue_id(transaction.session, task_queue.traits)
    return _explained(transaction, state, job, description, TaskQueue(known, task_queue.traits))


def _explained(
    transaction: Transaction, state: ServerState, job: JobRecord, description: JobDescription, task_queue: TaskQueue
) -> Explanation:
    """Return the explanation of a job, without what it waits for before the queue, and what it has used."""
    verdicts = queue_verdicts(transaction, state, description, task_queue)
    explained = _ExplainedJob(task_queue, _job_ad(transaction, state, job, description, task_queue), is_new=not job.id)
    outlooks, slots = _outlooks(transaction, state, explained, eligible(verdicts))
    waits = is_matchable(job)
    ahead, order = _order(transaction, state, job, task_queue, outlooks) if waits else (0, "")
    picture = WaitingFacts(job.vo, len(verdicts), count_of_vo(verdicts), exclusions(verdicts), outlooks, ahead)
    mapping = state.mappings.get(job.pool_id)
    queues = QueuesOfJob(state.tree.view_for(job.vo), state.tree.declarations, state.bans, transaction.now)
    return Explanation(
        job=job,
        summary=waiting_summary(picture) if waits else summary(job),
        queues_total=picture.queues_total,
        queues_of_vo=picture.queues_of_vo,
        exclusions=picture.exclusions,
        eligible_queues=outlooks,
        jobs_ahead=ahead,
        order=order,
        pool_mapped=mapping.mapped if mapping is not None else None,
        tree_version=state.tree.version,
        requirements=description.requirements or {},
        ignored=description.ignored,
        relaxations=() if job.state in FINAL else relaxations(description, job.vo, queues, verdicts),
        slots=slots,
        start=_start(transaction, job, task_queue, can_run=bool(outlooks)) if waits else None,
        pool_sites=few_sites(state, job.pool_id) if job.state not in FINAL else (),
    )


RECENT = timedelta(days=3)
"""The age of the oldest starts that an estimate is made from."""


def _start(transaction: Transaction, job: JobRecord, task_queue: TaskQueue, *, can_run: bool) -> StartEstimate:
    """Return when a waiting job may start, by the jobs like it of its owner, or else by those of its pool."""
    if not can_run:
        return StartEstimate("no queue can run it")
    waits = recent_waits(transaction.session, task_queue, transaction.now - RECENT)
    waited_s = (transaction.now - (job.state_since or job.submitted)).total_seconds()
    days = RECENT / timedelta(days=1)
    alike = start_estimate(waits.of_task_queue, waited_s, "jobs like it of its owner", days)
    if not alike.why_none or len(waits.of_task_queue) >= LEAST_STARTS:
        return alike
    basis = "jobs with the same requirements" if job.pool_id else "jobs of its VO without requirements"
    return start_estimate(waits.of_pool, waited_s, basis, days)


def _resources(task_queue: TaskQueue, usage: AttemptUsage) -> Iterator[ResourceUse]:
    """Yield what an attempt used against what the job asks for; resources without either are left out."""
    needs = task_queue.needs
    cores = usage.cpu_s / usage.wall_s if usage.wall_s else None
    for resource, unit, asked, used in (
        ("memory", "MiB", needs.memory_mib, usage.peak_memory_mib or None),
        ("disk", "MiB", needs.disk_mib, usage.peak_disk_mib or None),
        ("cores, on average", "", needs.cpus or usage.cpus, cores),
        ("GPUs", "", needs.gpus, None),
        ("wall time", "s", needs.wall_time_s, usage.wall_s),
        ("CPU time", "s", needs.cpu_time_s, usage.cpu_s),
    ):
        if asked is not None or used is not None:
            yield ResourceUse(resource, unit, asked, used)


def _task_queue(state: ServerState, job: JobRecord, description: JobDescription) -> TaskQueue:
    account = Account(job.vo, job.group, job.owner)
    names = state.significant_attributes | state.rules.key_attributes()
    return TaskQueue(job.task_queue_id, traits_of(account, job.pool_id, description, names, run_history_of(job)))


@dataclass(frozen=True, slots=True)
class _ExplainedJob:
    """The explained job: its task queue for queues, its ad for slots. `is_new` = it is not submitted yet."""

    task_queue: TaskQueue
    ad: Ad
    is_new: bool


def _job_ad(
    transaction: Transaction, state: ServerState, job: JobRecord, description: JobDescription, task_queue: TaskQueue
) -> Ad:
    with state.lock:
        priority = state.shares.user_priority(task_queue.account, transaction.now)
    return Ad(
        {**full_job_ad(job, description, transaction.now), "SubmittorPrio": priority, "SubmitterUserPrio": priority}
    )


def _outlooks(
    transaction: Transaction, state: ServerState, explained: _ExplainedJob, queues: Sequence[QueueId]
) -> tuple[tuple[QueueOutlook, ...], SlotAnalysis]:
    """Return the pilots and slots at each queue that serve the job's VO, the best queue first, and all slots."""
    serving = {
        pilot.stamp: pilot
        for pilot in stored_pilots.list_pilots(transaction.session, PilotFilter())
        if not pilot.vos or fold(explained.task_queue.account.vo) in folded_set(pilot.vos)
    }
    pilots: dict[QueueId, list[PilotRecord]] = {queue: [] for queue in queues}
    for pilot in serving.values():
        pilots.get(pilot.queue, []).append(pilot)
    slots: dict[QueueId, list[SlotInfo]] = {queue: [] for queue in queues}
    for info in load_slots(transaction.session) if serving else ():
        if info.pilot_stamp in serving:
            slots.get(info.queue, []).append(info)
    outlooks: list[QueueOutlook] = []
    seen: dict[str, tuple[Obstacle, ...]] = {}
    for queue in queues:
        at_queue = _slots_at(transaction, state, explained, queue, slots[queue])
        outlooks.append(_outlook(transaction, state, explained, queue, pilots[queue], at_queue))
        named = ((f"{queue} {each.info.slot.name}@{each.info.node} {each.info.pilot_stamp}", each) for each in at_queue)
        seen |= {name: each.obstacles for name, each in islice(named, MOST_SLOTS - len(seen))}
    view = state.tree.view_for(explained.task_queue.account.vo)
    bare = {each.queue: view[each.queue] for each in outlooks if not (each.pilots or each.obstacle)}
    problems = pilot_problems(transaction, bare) if bare else {}
    outlooks = [replace(each, obstacle=problems.get(each.queue, each.obstacle)) for each in outlooks]
    outlooks.sort(key=lambda each: (-each.free_slots, -each.pilots, -each.pilots_waiting))
    return tuple(outlooks), slot_analysis(seen)


MOST_SLOTS = 2000
"""The most slots whose obstacles are counted."""


@dataclass(frozen=True, slots=True)
class _SlotView:
    """A slot with what keeps the job out of it; of a busy slot only what would do so if it were free."""

    info: SlotInfo
    obstacles: tuple[Obstacle, ...]


def _slots_at(
    transaction: Transaction, state: ServerState, explained: _ExplainedJob, queue: QueueId, slots: Sequence[SlotInfo]
) -> list[_SlotView]:
    bound = _bound_pilots(transaction, slots)
    coming = next_downtime(state.bans, queue, transaction.now)
    left = None if coming is None or coming.downtime is None else coming.downtime - transaction.now
    views: list[_SlotView] = []
    for info, ad in slot_ads(slots, transaction.now):
        offer = info.offer(transaction.now)
        if info.asks_for_work:
            offer = offer._replace(bound_to=bound.get(info.pilot_stamp))
        else:
            offer = offer._replace(free=info.slot.amounts)
        offer = offer if left is None else until(offer, left)
        if info.asks_for_work or len(views) < MOST_SLOTS:
            views.append(_SlotView(info, tuple(_slot_obstacles(state, explained, info, ad, offer))))
    return views


def _outlook(
    transaction: Transaction,
    state: ServerState,
    explained: _ExplainedJob,
    queue: QueueId,
    pilots: Sequence[PilotRecord],
    slots: Sequence[_SlotView],
) -> QueueOutlook:
    return QueueOutlook(
        queue=queue,
        pilots=sum(pilot.state is PilotState.RUNNING for pilot in pilots),  # those that drain take no job
        pilots_waiting=sum(pilot.state in ARRIVING and not pilot.is_overdue(transaction.now) for pilot in pilots),
        free_slots=sum(each.info.asks_for_work for each in slots),
        obstacle=_obstacle(transaction, state, explained, queue, [each for each in slots if each.info.asks_for_work]),
    )


def _obstacle(
    transaction: Transaction, state: ServerState, explained: _ExplainedJob, queue: QueueId, free: Sequence[_SlotView]
) -> str:
    task_queue = explained.task_queue
    if not (explained.is_new and state.mappings.get(task_queue.pool_id) is None):  # its pool is made at submission
        why = mapping_obstacle(state, task_queue, queue)
        if why:
            return why
    reached = LimitRound(running_counts(transaction, state, [queue])).reached(task_queue.traits)
    if reached is not None:
        return f"the limit is reached: {reached}"
    throttles = throttles_at(state, queue)
    if throttles:
        return str(throttles[0])
    short = "" if free else _too_short_pilots(state, task_queue, queue)
    if short:
        return short
    if _is_barred(transaction, state, task_queue, [each.info for each in free]):
        return f"its group has a quota of {state.shares.settings.quota(task_queue.account.group_id)} and uses them"
    return slots_obstacle([each.obstacles for each in free])


def _too_short_pilots(state: ServerState, task_queue: TaskQueue, queue: QueueId) -> str:
    """Return why no pilot is sent to a queue for jobs that are nearly as long as its pilots live; "" = they are not."""
    effective, asked_s = state.tree.effective(queue, None), task_queue.needs.wall_time_s
    offered_s = None if effective is None else job_time_of_pilots_s(effective, state.rules.end_margin)
    if asked_s is None or offered_s is None or asked_s <= offered_s:
        return ""
    return (
        f"{MAX_WALL_TIME}: a pilot there ends jobs {STOP_MARGIN_S:.0f} s before its own end, so that it has "
        f"{offered_s:.0f} s for a job; {asked_s:.0f} s asked"
    )


def _bound_pilots(transaction: Transaction, slots: Sequence[SlotInfo]) -> dict[str, OwnerId]:
    """Return the owners whose jobs the pilots hold that isolate by owner, by stamp."""
    held = {info.slot.job_id: info.pilot_stamp for info in slots if info.isolation is Isolation.OWNER}
    held.pop(0, None)
    jobs = load_jobs(transaction.session, held) if held else {}
    return {stamp: OwnerId(jobs[id_].vo, jobs[id_].owner) for id_, stamp in held.items() if id_ in jobs}


def _slot_obstacles(
    state: ServerState, explained: _ExplainedJob, info: SlotInfo, ad: Ad, offer: SlotOffer
) -> Iterator[Obstacle]:
    weak = state.queue_access.too_weak(info.isolation, info.queue, explained.task_queue.account.vo)
    if weak:
        yield Obstacle(weak, clause="isolation")
    if info.draining:
        yield Obstacle("its pilot drains")
    for throttle in throttles_at(state, info.queue, info.node):
        yield Obstacle(str(throttle), clause="circuit breaker")
    for why in obstacles(explained.task_queue, offer, state.rules.end_margin):
        yield Obstacle(why, clause=why.partition(":")[0])
    yield from policy_obstacles(explained.task_queue.traits.requirements_expression, explained.ad, ad)


def _is_barred(transaction: Transaction, state: ServerState, task_queue: TaskQueue, free: Sequence[SlotInfo]) -> bool:
    """Return whether its group's quota admits none of the free slots or, without free slots, no job of its size."""
    account, asked = task_queue.account, task_queue.traits.amounts
    with state.lock:
        shares = state.shares.round(transaction.now)
        if not shares.can_bar(account):
            return False
        weights = [match_weight(info, asked, transaction.now) for info in free]
        return shares.bars(account, min(weights, default=float(asked.cpus)))


_LAST_ID = 2**63 - 1
"""The id of a job that is not submitted yet: it comes after all others of its priority."""


def _order(
    transaction: Transaction,
    state: ServerState,
    job: JobRecord,
    task_queue: TaskQueue,
    outlooks: Sequence[QueueOutlook],
) -> tuple[int, str]:
    """Return how many jobs go before this one on a slot that fits both, and the reason as text."""
    account, shares = task_queue.account, state.shares.round(transaction.now)
    with state.lock:
        rivals = [
            (shares.share(each.task_queue.account), each)
            for each in state.waiting.waiting()
            if any(state.queue_access.admits(each.task_queue, outlook.queue) for outlook in outlooks)
        ]
        own_share, used_s = shares.share(account), state.shares.use(account, transaction.now).core_s
    before = [each for share, each in rivals if share < own_share]
    equal = [each.task_queue.id for share, each in rivals if share == own_share]
    first = task_queues.count_before(transaction.session, equal, QueueHead(job.priority, job.id or _LAST_ID))
    accounts = len({each.task_queue.account for each in before})
    of_group = _group_order_text(state, account, transaction.now)
    return sum(each.count for each in before) + first, _order_text(account, used_s, of_group, accounts, first)


def _group_order_text(state: ServerState, account: Account, now: datetime) -> str:
    """Return the place of the account's group by the operators' order as text; "" = there is no such order."""
    if not state.shares.group_order.expression:
        return ""
    with state.lock:
        group = state.shares.priorities(now).group(account.group_id)
    place = f"goes last, because {group.goes_last}" if group.goes_last else f"has the value {group.sort_value.number:g}"
    return f"by group_sort_expression, which comes before shares, its group {place}"


def _order_text(account: Account, used_s: float, of_group: str, accounts_before: int, first: int) -> str:
    group = f" of group {account.group}" if account.group else ""
    used = f"{account.owner}{group} in VO {account.vo} has recently used {used_s / 3600:.2f} core hours"
    less = "" if of_group else " had less of {} fair share"
    if accounts_before == 0:
        others = "no account with work for the same queues" + (less.format("its") or " goes first")
    else:
        goes = "goes" if accounts_before == 1 else "go"
        rivals = count_text(accounts_before, "other account")
        others = f"{rivals} with work for the same queues{less.format('a')}{' and' if less else ''} {goes} first"
    own = f"; of equal rank, {count_text(first, 'job')} with higher priority or an earlier submission" if first else ""
    return "; ".join(part for part in (used, of_group, others) if part) + f"{own}."
