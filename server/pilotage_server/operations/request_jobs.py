"""RequestJobs: a pilot brings reports and free slots, and takes jobs away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from pilotage.bans import active_bans
from pilotage.job_description import JobDescription
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.identity import Identity, PilotCredential
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobCause
from pilotage_server.core.leases import AttemptRecord
from pilotage_server.core.limits import LimitRound
from pilotage_server.core.macros import render
from pilotage_server.core.matching import Candidates, Choice, MatchRound
from pilotage_server.core.reach import Door
from pilotage_server.core.reports import HeldLease, JobReport
from pilotage_server.core.slots import SlotOffer, fits
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.operations.job_steps import step
from pilotage_server.operations.load_world import freshen_waiting
from pilotage_server.operations.pilot_calls import (
    Command,
    commands_for,
    credential_of,
    heard,
    no_work_reason,
)
from pilotage_server.operations.pool_views import get_submit_pools_for_queue
from pilotage_server.operations.reports import ReportResult, record_reports
from pilotage_server.operations.running_counts import locked_running_counts
from pilotage_server.operations.world import World
from pilotage_server.storage import claims
from pilotage_server.storage.attempts import insert_attempts
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.task_queues import read_heads
from pilotage_server.storage.templates import load_descriptions


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """What a pilot asks: slots in the order to be served, reports, and the pools that it was given."""

    slots: tuple[SlotOffer, ...] = ()
    reports: tuple[JobReport, ...] = ()
    pool_ids: tuple[str, ...] = ()

    def after(self, waited: timedelta) -> WorkRequest:
        """Return what is asked after a wait: the slots have less time left, and the reports have been told."""
        return replace(self, slots=tuple(slot.after(waited) for slot in self.slots), reports=())


@dataclass(frozen=True, slots=True)
class Match:
    """A job with a lease for a slot; `description` is what to run, `amounts` what it may use."""

    slot: str
    job_id: int
    attempt: int
    lease: timedelta
    description: JobDescription
    amounts: Amounts
    task_queue_id: int
    owner: str
    vo: str
    group: str
    cluster: int
    process: int


@dataclass(frozen=True, slots=True)
class WorkAnswer:
    """What a pilot gets: matches with slots in order, and what became of its reports, in order."""

    matches: tuple[Match, ...] = ()
    results: tuple[ReportResult, ...] = ()
    pools_changed: bool = False
    commands: tuple[Command, ...] = ()


def request_jobs(unit: Unit, world: World, identity: Identity, request: WorkRequest) -> WorkAnswer:
    """Record the reports, then bind waiting jobs to the slots.

    Of the caller only its credential is believed: stamp, queue and VOs. A pilot that drains, has ended, is not
    known, or whose queue is gone from the tree gets no work, and is told to drain.
    """
    credential = credential_of(identity)
    freshen_waiting(unit, world)
    results = record_reports(unit, world, identity, request.reports)
    pilot = heard(unit, credential)
    commands = commands_for(unit, world, credential, pilot, frozenset())
    matches: tuple[Match, ...] = ()
    if pilot is not None and request.slots and not no_work_reason(world, credential, pilot):
        matches = _match(unit, world, credential, pilot.node, request.slots)
    (mine,) = get_submit_pools_for_queue(world, identity, [credential.queue])
    # a request without a list claims nothing: pilots send theirs only now and then
    pools_changed = bool(request.pool_ids) and frozenset(request.pool_ids) != frozenset(mine.pool_ids)
    return WorkAnswer(matches, results, pools_changed, commands)


def could_take(world: World, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]) -> bool:
    """Whether a pilot that waits with these slots might get jobs of the task queue; the match itself decides."""
    return _door(world, credential).can_go(task_queue) and any(
        fits(task_queue, slot, world.rules.end_margin) for slot in slots
    )


def leases_left(unit: Unit, identity: Identity, matches: Sequence[HeldLease]) -> dict[HeldLease, timedelta]:
    """Return how long the leases of earlier matches still run, for an answer that is given again; 0 = it has ended."""
    stamp = credential_of(identity).stamp
    jobs = load_jobs(unit.session, [match.job_id for match in matches])
    return {match: _left(jobs.get(match.job_id), match, stamp, unit.now) for match in matches}


def _left(job: JobRecord | None, match: HeldLease, stamp: str, now: datetime) -> timedelta:
    mine = job is not None and job.is_leased and (job.attempt, job.pilot_stamp) == (match.attempt, stamp)
    if job is None or job.lease_until is None or not mine:
        return timedelta(0)
    return max(timedelta(0), job.lease_until - now)


@dataclass(frozen=True, slots=True)
class _Claim:
    """A choice that succeeded, with the job as it is now."""

    choice: Choice
    job: JobRecord


def _match(
    unit: Unit, world: World, credential: PilotCredential, node: str, slots: Sequence[SlotOffer]
) -> tuple[Match, ...]:
    if active_bans(world.bans, credential.queue, unit.now):
        return ()
    claims_made: list[_Claim] = []
    round_ = _open_round(unit, world, credential, slots)
    while (choice := _next_choice(world, round_)) is not None:
        job = claims.lock_first_waiting(unit.session, choice.task_queue.id)
        if job is None:
            round_.missed(choice)
            continue
        claims_made.append(_Claim(choice, _bind(unit, world, credential, node, choice, job)))
        _next_head(unit, world, round_, choice)
    insert_attempts(unit.session, [_attempt(unit, claim) for claim in claims_made])
    return _matches(unit, world, claims_made)


def _open_round(unit: Unit, world: World, credential: PilotCredential, slots: Sequence[SlotOffer]) -> MatchRound:
    limits = LimitRound(locked_running_counts(unit, world, credential.queue))
    candidates = Candidates(world.waiting, _door(world, credential).can_go)
    with world.lock:
        return MatchRound(slots, candidates, world.shares.round(unit.now), limits, world.rules.end_margin)


def _next_choice(world: World, round_: MatchRound) -> Choice | None:
    with world.lock:  # held while deciding, never while the database is asked
        return round_.next_choice()


def _next_head(unit: Unit, world: World, round_: MatchRound, choice: Choice) -> None:
    head = read_heads(unit.session, [choice.task_queue.id]).get(choice.task_queue.id)
    round_.claimed(choice, head)
    unit.after_commit(partial(world.renew_head, choice.task_queue.id, head))


def _bind(
    unit: Unit, world: World, credential: PilotCredential, node: str, choice: Choice, job: JobRecord
) -> JobRecord:
    unit.after_commit(partial(world.run_started, choice.task_queue.account, choice.amounts.cpus, unit.now))
    return step(
        unit,
        world,
        job,
        JobCause.MATCHED,
        reason="",
        actor=f"pilot:{credential.stamp}",
        attempt=job.attempt + 1,
        lease_until=unit.now + (job.lease or world.rules.lease),
        pilot_stamp=credential.stamp,
        queue=credential.queue,
        node=node,
        slot=choice.slot,
    )


def _attempt(unit: Unit, claim: _Claim) -> AttemptRecord:
    job = claim.job
    assert job.queue is not None, "a job that was just matched has a queue"
    return AttemptRecord(
        job_id=job.id,
        attempt=job.attempt,
        pilot_stamp=job.pilot_stamp,
        queue=job.queue,
        node=job.node,
        slot=job.slot,
        cpus=claim.choice.amounts.cpus,
        matched=unit.now,
    )


def _matches(unit: Unit, world: World, made: Sequence[_Claim]) -> tuple[Match, ...]:
    descriptions = load_descriptions(unit.session, {claim.job.template_id for claim in made})
    return tuple(
        Match(
            slot=claim.choice.slot,
            job_id=claim.job.id,
            attempt=claim.job.attempt,
            lease=claim.job.lease or world.rules.lease,
            description=render(descriptions[claim.job.template_id], claim.job),
            amounts=claim.choice.amounts,
            task_queue_id=claim.choice.task_queue.id,
            owner=claim.job.owner,
            vo=claim.job.vo,
            group=claim.job.group,
            cluster=claim.job.cluster,
            process=claim.job.process,
        )
        for claim in made
    )


def _door(world: World, credential: PilotCredential) -> Door:
    return Door(world.reach, credential.queue, credential.vos)
