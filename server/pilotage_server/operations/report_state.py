"""ReportState: the heartbeat that renews a pilot's leases, brings its news, and takes commands back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from pilotage_server.core.identity import Identity, PilotCredential
from pilotage_server.core.jobs import JobCause, JobState
from pilotage_server.core.leases import AttemptRecord, gone_reason, is_adoptable
from pilotage_server.core.node_json import node_to_json
from pilotage_server.core.node_settings import NodeId, NodeSettings
from pilotage_server.core.pilots import PilotRecord, PilotState
from pilotage_server.core.reports import HeldLease, JobReport, NodeState
from pilotage_server.core.rounds import rounds
from pilotage_server.operations.job_steps import Move, steps
from pilotage_server.operations.lingering import pilots_over
from pilotage_server.operations.pilot_calls import Command, commands_of, credential_of, heard_of
from pilotage_server.operations.reports import ReportResult, record_reports
from pilotage_server.operations.world import World
from pilotage_server.storage import leases
from pilotage_server.storage.attempts import AttemptKey, load_attempts, load_unreported
from pilotage_server.storage.claims import lock_jobs
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.job_rows import load_jobs
from pilotage_server.storage.leases import LiveLease
from pilotage_server.storage.node_settings import load_node_settings
from pilotage_server.storage.pilots import change_pilots, node_text, without_node
from pilotage_server.storage.slots import remove_slots, store_slots


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a pilot sends: leases to be renewed, reports, its node when that is new or has changed, its good-bye.

    `came_back_empty` = it ends for want of work or of time, and never ran a job.
    """

    leases: tuple[HeldLease, ...] = ()
    reports: tuple[JobReport, ...] = ()
    node: NodeState | None = None
    ending: bool = False
    ending_reason: str = ""
    node_settings_version: int = 0
    came_back_empty: bool = False

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


@dataclass(slots=True)
class _Beat:
    """A heartbeat on its way; `live` and `gone` are the held leases that are the pilot's, and those that are not."""

    identity: Identity
    credential: PilotCredential
    heartbeat: Heartbeat
    results: tuple[ReportResult, ...] = ()
    pilot: PilotRecord | None = None
    live: list[LiveLease] = field(default_factory=list)
    gone: list[HeldLease] = field(default_factory=list)

    @property
    def node(self) -> NodeId | None:
        """The pilot's node, None = it has not told it."""
        told = self.heartbeat.node
        name = told.name if told is not None else self.pilot.node if self.pilot is not None else ""
        return NodeId(self.credential.queue.site, name) if name else None


def report_states(unit: Unit, world: World, calls: Sequence[tuple[Identity, Heartbeat]]) -> list[HeartbeatAnswer]:
    """Record heartbeats; an attempt that was given up for silence and is still held is adopted again.

    Of one pilot each heartbeat comes after the one before.
    """
    beats = [_Beat(identity, credential_of(identity), heartbeat) for identity, heartbeat in calls]
    lock_jobs(unit.session, _named_jobs([heartbeat for _, heartbeat in calls]), rivals=unit.again)
    answers: dict[int, HeartbeatAnswer] = {}
    for round_ in rounds(beat.credential.stamp for beat in beats):
        answers.update(zip(round_, _record(unit, world, [beats[place] for place in round_]), strict=True))
    return [answers[place] for place in range(len(beats))]


def _record(unit: Unit, world: World, beats: Sequence[_Beat]) -> list[HeartbeatAnswer]:
    """Record heartbeats of different pilots."""
    results = record_reports(unit, world, [(beat.identity, beat.heartbeat.reports) for beat in beats])
    for beat, told in zip(beats, results, strict=True):
        beat.results = told
    _tell_apart(unit, beats)
    _adopt(unit, world, beats)
    _hear(unit, beats)
    for beat in beats:
        if beat.heartbeat.ending:
            _end(unit, world, beat)
    leases.renew(unit.session, [lease for beat in beats for lease in beat.live], unit.now, world.rules.lease)
    return _answers(unit, world, beats)


def _named_jobs(heartbeats: Sequence[Heartbeat]) -> list[int]:
    held = [lease.job_id for heartbeat in heartbeats for lease in heartbeat.leases]
    return held + [report.job_id for heartbeat in heartbeats for report in heartbeat.reports]


def _tell_apart(unit: Unit, beats: Sequence[_Beat]) -> None:
    """Tell the leases that are still the pilots' from the others."""
    held = {lease.job_id for beat in beats for lease in beat.heartbeat.leases}
    there = leases.load_live(unit.session, held) if held else {}
    for beat in beats:
        beat.live, beat.gone = [], []
        for lease in beat.heartbeat.leases:
            live = there.get(lease.job_id)
            if live is not None and (live.attempt, live.pilot_stamp) == (lease.attempt, beat.credential.stamp):
                beat.live.append(live)
            else:
                beat.gone.append(lease)


def _adopt(unit: Unit, world: World, beats: Sequence[_Beat]) -> None:
    """Take back attempts that were given up for silence and are still held, for that says that they live."""
    beats = [beat for beat in beats if beat.gone]
    ended = load_attempts(unit.session, [lease for beat in beats for lease in beat.gone])
    jobs = load_jobs(unit.session, [job_id for job_id, _ in ended])
    signs: list[tuple[Identity, list[JobReport]]] = []
    for beat in beats:
        told = {(report.job_id, report.attempt) for report in beat.heartbeat.reports}
        given_up = [ended[key] for key in beat.gone if key in ended and key not in told]
        adoptable = [each for each in given_up if each.job_id in jobs and is_adoptable(jobs[each.job_id], each)]
        signs.append((beat.identity, [JobReport(*each.key, state=JobState.RUNNING) for each in adoptable]))
    if any(reports for _, reports in signs):
        record_reports(unit, world, signs)
        _tell_apart(unit, beats)


def _hear(unit: Unit, beats: Sequence[_Beat]) -> None:
    """Take note that the pilots live, and of what they say of their nodes."""
    nodes = {beat.credential.stamp: beat.heartbeat.node for beat in beats}
    heard = heard_of(unit, {stamp: None if node is None else node.draining for stamp, node in nodes.items()})
    for beat in beats:
        beat.pilot = heard.get(beat.credential.stamp)
        if beat.pilot is not None and beat.heartbeat.node is not None:
            _store_node(unit, beat.credential.stamp, beat.heartbeat.node)


def _store_node(unit: Unit, stamp: str, node: NodeState) -> None:
    text = node_to_json(node)
    if text != node_text(unit.session, stamp):
        change_pilots(unit.session, [stamp], {"node": node.name, "node_json": text, "ends": node.ends})
    store_slots(unit.session, stamp, node.slots)


def _end(unit: Unit, world: World, beat: _Beat) -> None:
    """Take note that a pilot is no more."""
    reason = beat.heartbeat.ending_reason
    end_pilot_leases(unit, world, beat.credential.stamp, reason or "its pilot has ended")
    end_pilot(unit, world, beat.credential.stamp, reason, came_back_empty=beat.heartbeat.came_back_empty)
    beat.live, beat.gone = [], list(beat.heartbeat.leases)


def _answers(unit: Unit, world: World, beats: Sequence[_Beat]) -> list[HeartbeatAnswer]:
    gone = load_attempts(unit.session, [lease for beat in beats for lease in beat.gone])
    held = [frozenset(beat.heartbeat.leases) for beat in beats]
    asking = [(beat.credential, beat.pilot, mine) for beat, mine in zip(beats, held, strict=True)]
    commands = commands_of(unit, world, asking)
    bare = _lack_nodes(unit, beats)
    nodes = {beat.node for beat in beats} - {None}
    settings = load_node_settings(unit.session, [node for node in nodes if node is not None]) if nodes else {}
    return [
        HeartbeatAnswer(
            renewed=_renewed(world, beat),
            lost=_lost(beat.gone, gone),
            results=beat.results,
            commands=wanted,
            next_in=_next_in(world, beat),
            node_wanted=beat.credential.stamp in bare,
            node_settings=_news(beat, settings),
        )
        for beat, wanted in zip(beats, commands, strict=True)
    ]


def _renewed(world: World, beat: _Beat) -> tuple[RenewedLease, ...]:
    return tuple(RenewedLease(each.job_id, each.attempt, each.lease or world.rules.lease) for each in beat.live)


def _lack_nodes(unit: Unit, beats: Sequence[_Beat]) -> set[str]:
    """Return which pilots' nodes the server has no picture of: never had, or dropped the slots of with the pilot."""
    silent = [beat.pilot for beat in beats if beat.pilot is not None and beat.heartbeat.node is None]
    lost = {pilot.stamp for pilot in silent if pilot.state is PilotState.LOST}
    return lost | without_node(unit.session, [pilot.stamp for pilot in silent])


def _next_in(world: World, beat: _Beat) -> timedelta:
    shortest = min((each.lease for each in beat.live if each.lease is not None), default=world.rules.lease)
    return world.rules.heartbeat_within(shortest)


def _news(beat: _Beat, settings: Mapping[NodeId, NodeSettings]) -> NodeSettings | None:
    """Return what is set on the pilot's node, None where that is the version that it has."""
    known = settings.get(beat.node) if beat.node is not None else None
    return None if known is None or known.version == beat.heartbeat.node_settings_version else known


def _lost(gone: Sequence[HeldLease], attempts: Mapping[AttemptKey, AttemptRecord]) -> tuple[LostLease, ...]:
    """Return the held attempts that are no longer the pilot's; those whose end it told itself need no word."""
    return tuple(
        LostLease(*key, _why_lost(key, attempts.get(key)))
        for key in sorted(set(gone))
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
    steps(unit, world, [Move(jobs[each.job_id], JobCause.EVICTED, f"pilot:{stamp}", reason) for each in live])


def end_pilot(unit: Unit, world: World, stamp: str, reason: str, *, came_back_empty: bool = False) -> None:
    """Close the record of a pilot that is no more; what was taken from it runs no longer."""
    values = {"state": PilotState.ENDED.value, "reason": reason, "ended": unit.now, "came_back_empty": came_back_empty}
    change_pilots(unit.session, [stamp], values)
    remove_slots(unit.session, [stamp])
    pilots_over(unit, world, [stamp])
