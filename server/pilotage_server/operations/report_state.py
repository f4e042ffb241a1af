"""ReportState: the heartbeat that renews a pilot's leases, brings its news, and takes commands back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from pilotage_server.core.identity import Identity
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobCause, JobState
from pilotage_server.core.leases import AttemptRecord, gone_reason, is_adoptable
from pilotage_server.core.node_json import node_to_json
from pilotage_server.core.node_settings import NodeSettings
from pilotage_server.core.pilots import PilotRecord, PilotState
from pilotage_server.core.reports import HeldLease, JobReport, NodeState
from pilotage_server.operations.job_steps import Move, steps
from pilotage_server.operations.lingering import pilots_over
from pilotage_server.operations.node_settings import news_of_node
from pilotage_server.operations.pilot_calls import Command, commands_for, credential_of, heard
from pilotage_server.operations.reports import ReportResult, record_reports
from pilotage_server.operations.world import World
from pilotage_server.storage import leases
from pilotage_server.storage.attempts import AttemptKey, load_attempts, load_unreported
from pilotage_server.storage.claims import lock_jobs
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.pilots import change_pilots, node_text
from pilotage_server.storage.slots import remove_slots, store_slots


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a pilot sends: leases to be renewed, reports, its node when that is new or has changed, its good-bye."""

    leases: tuple[HeldLease, ...] = ()
    reports: tuple[JobReport, ...] = ()
    node: NodeState | None = None
    ending: bool = False
    ending_reason: str = ""
    node_settings_version: int = 0

    def said_again(self) -> Heartbeat:
        """Return what still counts when it comes a second time: the leases, but no news, for that may be old."""
        return Heartbeat(self.leases)


@dataclass(frozen=True, slots=True)
class RenewedLease:
    """A lease that goes on for `lease`, counted from the sending of the heartbeat."""

    job_id: int
    attempt: int
    lease: timedelta


@dataclass(frozen=True, slots=True)
class LostLease:
    """An attempt that the pilot no longer holds, and why."""

    job_id: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What a pilot gets back.

    `next_in` = when the next heartbeat is due; `node_wanted` = with the whole node; `node_settings` = what operators
    have set on its node, None = it has them.
    """

    renewed: tuple[RenewedLease, ...]
    lost: tuple[LostLease, ...]
    results: tuple[ReportResult, ...]
    commands: tuple[Command, ...]
    next_in: timedelta
    node_wanted: bool
    node_settings: NodeSettings | None = None


def report_state(unit: Unit, world: World, identity: Identity, heartbeat: Heartbeat) -> HeartbeatAnswer:
    """Record a heartbeat; an attempt that was given up for silence and is still held is adopted again."""
    credential = credential_of(identity)
    lock_jobs(unit.session, _named_jobs(heartbeat))
    results = record_reports(unit, world, identity, (*heartbeat.reports, *_signs_of_life(unit, heartbeat)))
    pilot = heard(unit, credential, draining=heartbeat.node.draining if heartbeat.node is not None else None)
    if pilot is not None and heartbeat.node is not None:
        _store_node(unit, credential.stamp, heartbeat.node)
    if heartbeat.ending:
        end_pilot_leases(unit, world, credential.stamp, heartbeat.ending_reason or "its pilot has ended")
        end_pilot(unit, world, credential.stamp, heartbeat.ending_reason)
        renewed: tuple[RenewedLease, ...] = ()
    else:
        renewed = _renew(unit, world, credential.stamp, heartbeat.leases)
    held = frozenset(heartbeat.leases)
    return HeartbeatAnswer(
        renewed=renewed,
        lost=_lost(unit, held - {HeldLease(lease.job_id, lease.attempt) for lease in renewed}),
        results=results[: len(heartbeat.reports)],
        commands=commands_for(unit, world, credential, pilot, held),
        next_in=world.rules.heartbeat_within(min((lease.lease for lease in renewed), default=world.rules.lease)),
        node_wanted=heartbeat.node is None and _lacks_node(unit, pilot),
        node_settings=news_of_node(unit, credential, _node_name(heartbeat, pilot), heartbeat.node_settings_version),
    )


def _node_name(heartbeat: Heartbeat, pilot: PilotRecord | None) -> str:
    if heartbeat.node is not None:
        return heartbeat.node.name
    return pilot.node if pilot is not None else ""


def _named_jobs(heartbeat: Heartbeat) -> list[int]:
    return [lease.job_id for lease in heartbeat.leases] + [report.job_id for report in heartbeat.reports]


def _signs_of_life(unit: Unit, heartbeat: Heartbeat) -> list[JobReport]:
    """Return a report for each held attempt that was given up: that it is held says that it lives."""
    reported = {(report.job_id, report.attempt) for report in heartbeat.reports}
    keys = [
        (lease.job_id, lease.attempt) for lease in heartbeat.leases if (lease.job_id, lease.attempt) not in reported
    ]
    attempts = load_attempts(unit.session, keys)
    ended = {key: attempt for key, attempt in attempts.items() if attempt.ended is not None}
    jobs = load_jobs(unit.session, [job_id for job_id, _ in ended])
    return [
        JobReport(job_id, number, state=JobState.RUNNING)
        for (job_id, number), attempt in ended.items()
        if job_id in jobs and is_adoptable(jobs[job_id], attempt)
    ]


def _store_node(unit: Unit, stamp: str, node: NodeState) -> None:
    text = node_to_json(node)
    if text != node_text(unit.session, stamp):
        change_pilots(unit.session, [stamp], {"node": node.name, "node_json": text, "ends": node.ends})
    store_slots(unit.session, stamp, node.slots)


def _lacks_node(unit: Unit, pilot: PilotRecord | None) -> bool:
    """Whether the server has no picture of the node: never had one, or dropped its slots with the pilot."""
    return pilot is not None and (pilot.state is PilotState.LOST or not node_text(unit.session, pilot.stamp))


def _renew(unit: Unit, world: World, stamp: str, held: Sequence[HeldLease]) -> tuple[RenewedLease, ...]:
    jobs = load_jobs(unit.session, [lease.job_id for lease in held])
    by_length: dict[timedelta, list[JobRecord]] = defaultdict(list)
    for lease in held:
        job = jobs.get(lease.job_id)
        if job is not None and job.is_leased and job.attempt == lease.attempt and job.pilot_stamp == stamp:
            by_length[job.lease or world.rules.lease].append(job)
    renewed: list[RenewedLease] = []
    for length, alike in by_length.items():  # one UPDATE a length, and nearly all leases have the same
        mine = leases.renew(unit.session, stamp, [job.id for job in alike], unit.now + length)
        renewed += (RenewedLease(job.id, job.attempt, length) for job in alike if job.id in mine)
    return tuple(renewed)


def _lost(unit: Unit, gone: frozenset[HeldLease]) -> tuple[LostLease, ...]:
    """Return the held attempts that are no longer the pilot's; those whose end it told itself need no word."""
    keys = sorted((lease.job_id, lease.attempt) for lease in gone)
    attempts = load_attempts(unit.session, keys)
    return tuple(
        LostLease(*key, _why_lost(key, attempts.get(key)))
        for key in keys
        if key not in attempts or not attempts[key].reported
    )


def _why_lost(key: AttemptKey, attempt: AttemptRecord | None) -> str:
    if attempt is None:
        return f"the server knows no attempt {key[1]} of job {key[0]}"
    return gone_reason(attempt) if attempt.ended is not None else "the attempt is another pilot's"


def end_pilot_leases(unit: Unit, world: World, stamp: str, reason: str) -> None:
    """Let the jobs that a pilot gives back wait again at once; nothing is spent, for nothing was lost."""
    live = [attempt for attempt in load_unreported(unit.session, stamp) if attempt.ended is None]
    jobs = load_jobs(unit.session, [attempt.job_id for attempt in live])
    moves = [Move(jobs[attempt.job_id], JobCause.EVICTED, reason) for attempt in live]
    steps(unit, world, moves, actor=f"pilot:{stamp}")


def end_pilot(unit: Unit, world: World, stamp: str, reason: str) -> None:
    """Close the record of a pilot that is no more; what was taken from it runs no longer."""
    change_pilots(unit.session, [stamp], {"state": PilotState.ENDED.value, "reason": reason, "ended": unit.now})
    remove_slots(unit.session, [stamp])
    pilots_over(unit, world, [stamp])
