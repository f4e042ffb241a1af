"""`why JOB`: what excludes queues from a job, who is at those that are left, and who goes first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pilotage.classad_evaluation import Ad
from pilotage.folding import fold, folded_set
from pilotage.job_description import JobDescription, Value
from pilotage.resource_tree import QueueId
from pilotage_server.core.accounting import Account
from pilotage_server.core.explain import (
    Exclusion,
    Obstacle,
    Picture,
    QueueOutlook,
    count_of_vo,
    count_text,
    eligible,
    exclusions,
    policy_obstacles,
    slots_obstacle,
    waiting_summary,
)
from pilotage_server.core.identity import Identity
from pilotage_server.core.job_ads import full_job_ad
from pilotage_server.core.job_attributes import past_of
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.job_steps import waits
from pilotage_server.core.job_summary import summary
from pilotage_server.core.limits import LimitRound
from pilotage_server.core.pie import weight_given
from pilotage_server.core.pilots import ARRIVING, PilotRecord, PilotState, SlotInfo
from pilotage_server.core.slot_listing import slot_ads
from pilotage_server.core.slots import obstacles
from pilotage_server.core.task_queues import TaskQueue, traits_of
from pilotage_server.core.waiting import Head
from pilotage_server.operations.query_jobs import get_jobs
from pilotage_server.operations.queue_verdicts import mapping_obstacle, queue_verdicts
from pilotage_server.operations.running_counts import running_counts
from pilotage_server.operations.trials import closed_at
from pilotage_server.operations.world import World
from pilotage_server.storage import pilots as stored_pilots
from pilotage_server.storage import task_queues
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.slots import load_slots
from pilotage_server.storage.templates import load_description


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job is where it is.

    `exclusions` are over the `queues_of_vo` queues that the job's VO may use. `jobs_ahead` would go before it on
    a slot that fits both, and `order` says why. `pool_mapped` None = it has no pool.
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


def explain_job(unit: Unit, world: World, identity: Identity, job_id: int) -> Explanation:
    """Return why a job is where it is; raises NotFoundError for one that the caller cannot see."""
    (job,) = get_jobs(unit, identity, [job_id])
    description = load_description(unit.session, job.template_id)
    task_queue = _task_queue(world, job, description)
    verdicts = queue_verdicts(unit, world, description, task_queue)
    asking = _Asking(task_queue, _job_ad(unit, world, job, description, task_queue))
    outlooks = _outlooks(unit, world, asking, eligible(verdicts))
    ahead, order = _order(unit, world, job, task_queue, outlooks) if waits(job) else (0, "")
    picture = Picture(job.vo, len(verdicts), count_of_vo(verdicts), exclusions(verdicts), outlooks, ahead)
    mapping = world.mappings.get(job.pool_id)
    return Explanation(
        job=job,
        summary=waiting_summary(picture) if waits(job) else summary(job),
        queues_total=picture.queues_total,
        queues_of_vo=picture.queues_of_vo,
        exclusions=picture.exclusions,
        eligible_queues=outlooks,
        jobs_ahead=ahead,
        order=order,
        pool_mapped=mapping.mapped if mapping is not None else None,
        tree_version=world.tree.version,
        requirements=description.requirements or {},
    )


def _task_queue(world: World, job: JobRecord, description: JobDescription) -> TaskQueue:
    account = Account(job.vo, job.group, job.owner)
    names = world.significant | world.rules.key_attributes()
    return TaskQueue(job.task_queue_id, traits_of(account, job.pool_id, description, names, past_of(job)))


@dataclass(frozen=True, slots=True)
class _Asking:
    """The job that is explained, as queues and as slots see it."""

    task_queue: TaskQueue
    ad: Ad


def _job_ad(unit: Unit, world: World, job: JobRecord, description: JobDescription, task_queue: TaskQueue) -> Ad:
    with world.lock:
        priority = world.shares.user_priority(task_queue.account, unit.now)
    return Ad({**full_job_ad(job, description, unit.now), "SubmittorPrio": priority, "SubmitterUserPrio": priority})


def _outlooks(unit: Unit, world: World, asking: _Asking, queues: Sequence[QueueId]) -> tuple[QueueOutlook, ...]:
    """Return who is at each of the queues, as far as he serves the job's VO, the best outlook first."""
    serving = {
        pilot.stamp: pilot
        for pilot in stored_pilots.list_pilots(unit.session, None, ended=False)
        if not pilot.vos or fold(asking.task_queue.account.vo) in folded_set(pilot.vos)
    }
    pilots: dict[QueueId, list[PilotRecord]] = {queue: [] for queue in queues}
    for pilot in serving.values():
        pilots.get(pilot.queue, []).append(pilot)
    slots: dict[QueueId, list[SlotInfo]] = {queue: [] for queue in queues}
    for info in load_slots(unit.session) if serving else ():
        if info.pilot_stamp in serving:
            slots.get(info.queue, []).append(info)
    outlooks = [_outlook(unit, world, asking, pilots[queue], (queue, slots[queue])) for queue in queues]
    return tuple(sorted(outlooks, key=lambda each: (-each.free_slots, -each.pilots, -each.pilots_waiting)))


def _outlook(
    unit: Unit,
    world: World,
    asking: _Asking,
    pilots: Sequence[PilotRecord],
    at: tuple[QueueId, Sequence[SlotInfo]],
) -> QueueOutlook:
    queue, there = at
    return QueueOutlook(
        queue=queue,
        pilots=sum(pilot.state is PilotState.RUNNING for pilot in pilots),  # those that drain take no job
        pilots_waiting=sum(pilot.state in ARRIVING for pilot in pilots),
        free_slots=sum(info.asks_for_work for info in there),
        obstacle=_obstacle(unit, world, asking, queue, there),
    )


def _obstacle(unit: Unit, world: World, asking: _Asking, queue: QueueId, there: Sequence[SlotInfo]) -> str:
    task_queue = asking.task_queue
    why = mapping_obstacle(world, task_queue, queue)
    if why:
        return why
    reached = LimitRound(running_counts(unit, world, [queue])).reached(task_queue.traits)
    if reached is not None:
        return f"the limit is reached: {reached}"
    throttles = closed_at(world, queue)
    if throttles:
        return str(throttles[0])
    free = [(info, ad) for info, ad in slot_ads(there, unit.now) if info.asks_for_work]
    if _is_barred(unit, world, task_queue, [info for info, _ in free]):
        return f"its group has a quota of {world.shares.settings.quota(task_queue.account.group_id)} and uses them"
    return slots_obstacle([tuple(_slot_obstacles(unit, world, asking, info, ad)) for info, ad in free])


def _slot_obstacles(unit: Unit, world: World, asking: _Asking, info: SlotInfo, ad: Ad) -> Iterator[Obstacle]:
    for throttle in closed_at(world, info.queue, info.node):
        yield Obstacle(str(throttle))
    for why in obstacles(asking.task_queue, info.offer(unit.now), world.rules.end_margin):
        yield Obstacle(why)
    yield from policy_obstacles(asking.task_queue.traits.requirements_expression, asking.ad, ad)


def _is_barred(unit: Unit, world: World, task_queue: TaskQueue, free: Sequence[SlotInfo]) -> bool:
    """Return whether its group's quota leaves none of the free slots, or where none is free, no job of its size."""
    account, asked = task_queue.account, task_queue.traits.amounts
    with world.lock:
        shares = world.shares.round(unit.now)
        if not shares.can_bar(account):
            return False
        weights = [weight_given(info, asked, unit.now) for info in free]
        return shares.bars(account, min(weights, default=float(asked.cpus)))


def _order(
    unit: Unit, world: World, job: JobRecord, task_queue: TaskQueue, outlooks: Sequence[QueueOutlook]
) -> tuple[int, str]:
    """Return how many jobs go before this one on a slot that fits both, and why."""
    account, shares = task_queue.account, world.shares.round(unit.now)
    with world.lock:
        rivals = [
            (shares.share(each.task_queue.account), each)
            for each in world.waiting.waiting()
            if any(world.reach.can_go(each.task_queue, outlook.queue) for outlook in outlooks)
        ]
        mine, used_s = shares.share(account), world.shares.use(account, unit.now).core_s
    before = [each for share, each in rivals if share < mine]
    equal = [each.task_queue.id for share, each in rivals if share == mine]
    first = task_queues.count_before(unit.session, equal, Head(job.priority, job.id))
    accounts = len({each.task_queue.account for each in before})
    return sum(each.count for each in before) + first, _order_text(account, used_s, accounts, first)


def _order_text(account: Account, used_s: float, accounts_before: int, first: int) -> str:
    group = f" of group {account.group}" if account.group else ""
    used = f"{account.owner}{group} in VO {account.vo} has used {used_s / 3600:.2f} core hours of late"
    if accounts_before == 0:
        others = "no account with work for the same queues had less of its fair share"
    else:
        goes = "goes" if accounts_before == 1 else "go"
        rivals = count_text(accounts_before, "other account")
        others = f"{rivals} with work for the same queues had less of a fair share and {goes} first"
    own = f"; of equal rank, {count_text(first, 'job')} with higher priority or an earlier submission" if first else ""
    return f"{used}; {others}{own}."
