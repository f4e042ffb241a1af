"""ReportState, the heartbeat of a pilot: it renews leases, records reports and the node, and returns commands.

The heartbeats that wait at a time are recorded in one transaction, each with one effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from pilotage.errors import PilotageError
from pilotage.values.attempts import AttemptKey, LostLease, RenewedLease, ReportResult, TailStream
from pilotage.values.pilots import PilotState
from pilotage_server.core.attempts.leases import AttemptRecord, gone_reason, is_adoptable
from pilotage_server.core.attempts.reports import JobReport, NodeState, RunningUsage
from pilotage_server.core.containers import batch_by_key
from pilotage_server.core.identity import Identity, PilotCredential
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.core.pilots.nodes import NodeId, NodeSettings, node_to_json
from pilotage_server.core.pilots.pilots import PilotRecord
from pilotage_server.operations.attempts.pilot_calls import PilotCommand, commands_of, credential_of, record_contact
from pilotage_server.operations.attempts.reports import record_reports
from pilotage_server.operations.attempts.transitions import Transition, apply_transitions, release_fences_of_pilots
from pilotage_server.operations.idempotency import IdempotentRequest, ServedRequest, run_each_once
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import leases
from pilotage_server.storage.attempts import load_attempts, load_unreported, store_running
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.leases import LiveLease, lock_jobs
from pilotage_server.storage.pilots import (
    change_pilots,
    load_node_settings,
    node_text,
    remove_slots,
    store_slots,
    without_node,
)


@dataclass(frozen=True, slots=True)
class ReceivedHeartbeat:
    """A heartbeat: the held leases, reports, the node if it has changed, and whether the pilot ends.

    `usages` = what held attempts have used so far. `came_back_empty` = it ends for lack of work or time and has never
    run a job.
    """

    leases: tuple[AttemptKey, ...] = ()
    reports: tuple[JobReport, ...] = ()
    node: NodeState | None = None
    ending: bool = False
    ending_reason: str = ""
    node_settings_version: int = 0
    came_back_empty: bool = False
    usages: tuple[RunningUsage, ...] = ()

    def renewal_only(self) -> ReceivedHeartbeat:
        """Return the part that a repeated call may apply again: the leases. Its reports may be outdated."""
        return ReceivedHeartbeat(self.leases)


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The answer to a heartbeat.

    `next_in` = when the next heartbeat is due; `node_wanted` = it must contain the whole node; `node_settings` = the
    attributes that operators have set on its node, None = unchanged. `tails` = the streams that somebody follows.
    """

    renewed: tuple[RenewedLease, ...]
    lost: tuple[LostLease, ...]
    results: tuple[ReportResult, ...]
    commands: tuple[PilotCommand, ...]
    next_in: timedelta
    node_wanted: bool
    node_settings: NodeSettings | None = None
    tails: tuple[TailStream, ...] = ()


@dataclass(slots=True)
class _HeartbeatState:
    """A heartbeat in progress; `live` and `gone` are the held leases that are still and no longer the pilot's."""

    identity: Identity
    credential: PilotCredential
    heartbeat: ReceivedHeartbeat
    results: tuple[ReportResult, ...] = ()
    pilot: PilotRecord | None = None
    live: list[LiveLease] = field(default_factory=list)
    gone: list[AttemptKey] = field(default_factory=list)

    @property
    def node(self) -> NodeId | None:
        """The pilot's node, None = not reported yet."""
        node = self.heartbeat.node
        name = node.name if node is not None else self.pilot.node if self.pilot is not None else ""
        return NodeId(self.credential.queue.site, name) if name else None


def report_states(
    transaction: Transaction, state: ServerState, calls: Sequence[tuple[Identity, ReceivedHeartbeat]]
) -> list[HeartbeatAnswer]:
    """Record heartbeats. An attempt that was lost by silence and is still held is re-adopted.

    Heartbeats of one pilot are recorded in order.
    """
    beats = [_HeartbeatState(identity, credential_of(identity), heartbeat) for identity, heartbeat in calls]
    held = [lease.job_id for _, heartbeat in calls for lease in heartbeat.leases]
    reported = [report.job_id for _, heartbeat in calls for report in heartbeat.reports]
    # All jobs are locked at once, in the order of their ids, so that concurrent transactions cannot deadlock.
    lock_jobs(transaction.session, held + reported, rivals=transaction.is_retry)
    answers: dict[int, HeartbeatAnswer] = {}
    for batch in batch_by_key(beat.credential.stamp for beat in beats):
        answers.update(zip(batch, _record(transaction, state, [beats[index] for index in batch]), strict=True))
    return [answers[index] for index in range(len(beats))]


def _record(transaction: Transaction, state: ServerState, beats: Sequence[_HeartbeatState]) -> list[HeartbeatAnswer]:
    """Record heartbeats of different pilots."""
    results = record_reports(transaction, state, [(beat.identity, beat.heartbeat.reports) for beat in beats])
    for beat, beat_results in zip(beats, results, strict=True):
        beat.results = beat_results
    _split_leases(transaction, beats)
    _adopt(transaction, state, beats)
    _store_usages(transaction, beats)
    _record_contacts(transaction, beats)
    for beat in beats:
        if beat.heartbeat.ending:
            _handle_end(transaction, state, beat)
    leases.renew(
        transaction.session, [lease for beat in beats for lease in beat.live], transaction.now, state.rules.lease
    )
    return _answers(transaction, state, beats)


def _split_leases(transaction: Transaction, beats: Sequence[_HeartbeatState]) -> None:
    """Separate the leases that are still the pilots' from the others."""
    held = {lease.job_id for beat in beats for lease in beat.heartbeat.leases}
    leases_by_job = leases.load_live(transaction.session, held) if held else {}
    for beat in beats:
        beat.live, beat.gone = [], []
        for lease in beat.heartbeat.leases:
            live = leases_by_job.get(lease.job_id)
            if live is not None and (live.attempt, live.pilot_stamp) == (lease.attempt, beat.credential.stamp):
                beat.live.append(live)
            else:
                beat.gone.append(lease)


def _adopt(transaction: Transaction, state: ServerState, beats: Sequence[_HeartbeatState]) -> None:
    """Re-adopt attempts that were lost by silence and are still held."""
    beats = [beat for beat in beats if beat.gone]
    ended = load_attempts(transaction.session, [lease for beat in beats for lease in beat.gone])
    jobs = load_jobs(transaction.session, [job_id for job_id, _ in ended])
    implied: list[tuple[Identity, list[JobReport]]] = []
    for beat in beats:
        reported = {(report.job_id, report.attempt) for report in beat.heartbeat.reports}
        given_up = [ended[key] for key in beat.gone if key in ended and key not in reported]
        adoptable = [each for each in given_up if each.job_id in jobs and is_adoptable(jobs[each.job_id], each)]
        implied.append((beat.identity, [JobReport(*each.key, state=JobState.RUNNING) for each in adoptable]))
    if any(reports for _, reports in implied):
        record_reports(transaction, state, implied)
        _split_leases(transaction, beats)


def _store_usages(transaction: Transaction, beats: Sequence[_HeartbeatState]) -> None:
    """Store what the attempts have used whose leases are still the pilots'."""
    live = {(lease.job_id, lease.attempt) for beat in beats for lease in beat.live}
    usages = {usage.key: usage for beat in beats for usage in beat.heartbeat.usages if usage.key in live}
    store_running(transaction.session, list(usages.values()))


def _record_contacts(transaction: Transaction, beats: Sequence[_HeartbeatState]) -> None:
    """Record the contacts with the pilots, and their nodes."""
    nodes = {beat.credential.stamp: beat.heartbeat.node for beat in beats}
    contacted = record_contact(
        transaction, {stamp: None if node is None else node.draining for stamp, node in nodes.items()}
    )
    for beat in beats:
        beat.pilot = contacted.get(beat.credential.stamp)
        if beat.pilot is None or beat.heartbeat.node is None:
            continue
        _store_node(transaction, beat.credential.stamp, beat.heartbeat.node)
        if beat.pilot.report_requested is not None:
            answered = {"report_requested": None, "report_answered": transaction.now}
            change_pilots(transaction.session, [beat.pilot.stamp], answered)
            beat.pilot = replace(beat.pilot, report_requested=None)


def _store_node(transaction: Transaction, stamp: str, node: NodeState) -> None:
    text = node_to_json(node)
    if text != node_text(transaction.session, stamp):
        known = {"node": node.name, "node_json": text, "isolation": node.isolation.value, "ends": node.ends}
        change_pilots(transaction.session, [stamp], known)
    store_slots(transaction.session, stamp, node.slots)


def _handle_end(transaction: Transaction, state: ServerState, beat: _HeartbeatState) -> None:
    reason = beat.heartbeat.ending_reason
    end_pilot_leases(transaction, state, beat.credential.stamp, reason or "its pilot has ended")
    end_pilot(transaction, state, beat.credential.stamp, reason, came_back_empty=beat.heartbeat.came_back_empty)
    beat.live, beat.gone = [], list(beat.heartbeat.leases)


def _answers(transaction: Transaction, state: ServerState, beats: Sequence[_HeartbeatState]) -> list[HeartbeatAnswer]:
    gone = load_attempts(transaction.session, [lease for beat in beats for lease in beat.gone])
    held = [frozenset(beat.heartbeat.leases) for beat in beats]
    callers = [(beat.credential, beat.pilot, keys) for beat, keys in zip(beats, held, strict=True)]
    commands = commands_of(transaction, state, callers)
    without_node_state = _pilots_without_node(transaction, beats)
    nodes = {beat.node for beat in beats} - {None}
    settings = load_node_settings(transaction.session, [node for node in nodes if node is not None]) if nodes else {}
    return [
        HeartbeatAnswer(
            renewed=tuple(
                RenewedLease(live.job_id, live.attempt, live.lease or state.rules.lease) for live in beat.live
            ),
            lost=_lost(beat.gone, gone),
            results=beat.results,
            commands=wanted,
            next_in=_next_in(state, beat),
            node_wanted=beat.credential.stamp in without_node_state,
            node_settings=_new_settings(beat, settings),
            tails=state.tails.of_pilot(beat.credential.stamp, transaction.now) if state.tails else (),
        )
        for beat, wanted in zip(beats, commands, strict=True)
    ]


def _pilots_without_node(transaction: Transaction, beats: Sequence[_HeartbeatState]) -> set[str]:
    """Return the pilots whose nodes the server must ask for: never reported, or removed when the pilot was lost."""
    silent = [beat.pilot for beat in beats if beat.pilot is not None and beat.heartbeat.node is None]
    lost = {pilot.stamp for pilot in silent if pilot.state is PilotState.LOST}
    return lost | without_node(transaction.session, [pilot.stamp for pilot in silent])


def _next_in(state: ServerState, beat: _HeartbeatState) -> timedelta:
    shortest = min((each.lease for each in beat.live if each.lease is not None), default=state.rules.lease)
    return state.rules.heartbeat_within(shortest)


def _new_settings(beat: _HeartbeatState, settings: Mapping[NodeId, NodeSettings]) -> NodeSettings | None:
    """Return the settings of the pilot's node; None = the pilot has this version."""
    known = settings.get(beat.node) if beat.node is not None else None
    return None if known is None or known.version == beat.heartbeat.node_settings_version else known


def _lost(gone: Sequence[AttemptKey], attempts: Mapping[tuple[int, int], AttemptRecord]) -> tuple[LostLease, ...]:
    """Return the held attempts that are no longer the pilot's, without those whose end it has reported itself."""
    return tuple(
        LostLease(*key, _why_lost(key, attempts.get(key)))
        for key in sorted(set(gone))
        if key not in attempts or not attempts[key].reported
    )


def _why_lost(key: AttemptKey, attempt: AttemptRecord | None) -> str:
    if attempt is None:
        return f"attempt {key[1]} of job {key[0]} is unknown"
    return gone_reason(attempt) if attempt.ended is not None else "the attempt is another pilot's"


def end_pilot_leases(transaction: Transaction, state: ServerState, stamp: str, reason: str) -> None:
    """Requeue the jobs of a pilot that ends; the attempts do not count as lost."""
    live = [attempt for attempt in load_unreported(transaction.session, stamp) if attempt.ended is None]
    jobs = load_jobs(transaction.session, [attempt.job_id for attempt in live])
    apply_transitions(
        transaction, state, [Transition(jobs[each.job_id], JobCause.EVICTED, f"pilot:{stamp}", reason) for each in live]
    )


def end_pilot(
    transaction: Transaction, state: ServerState, stamp: str, reason: str, *, came_back_empty: bool = False
) -> None:
    """Close the record of a pilot that has ended, and release the fences of jobs that it may have run."""
    values = {
        "state": PilotState.ENDED.value,
        "reason": reason,
        "ended": transaction.now,
        "came_back_empty": came_back_empty,
    }
    change_pilots(transaction.session, [stamp], values)
    remove_slots(transaction.session, [stamp])
    release_fences_of_pilots(transaction, state, [stamp])


MAX_HEARTBEATS = 64
"""Heartbeats of one transaction: a bound on how long others wait."""


@dataclass(frozen=True, slots=True)
class HeartbeatCall:
    """A heartbeat and its idempotency key."""

    asked: IdempotentRequest
    heartbeat: ReceivedHeartbeat


Write = Callable[[HeartbeatAnswer, datetime, bytes], bytes]
"""Serialises an answer. The bytes are those of the answer to the first call, whose results are used, or b""."""


class HeartbeatBatch:
    """Records heartbeats in group commits."""

    most = MAX_HEARTBEATS

    def __init__(self, state: ServerState, write: Write) -> None:
        self._state = state
        self._write = write

    def run(self, transaction: Transaction, items: Sequence[HeartbeatCall]) -> list[bytes | PilotageError]:
        """Record the heartbeats and return their answers; a repeated one only renews its leases."""
        return run_each_once(
            transaction,
            [item.asked for item in items],
            lambda fresh: self._serve(transaction, [items[index] for index in fresh]),
            lambda index, kept: self._answer_replay(transaction, items[index], kept),
        )

    def _serve(self, transaction: Transaction, items: Sequence[HeartbeatCall]) -> list[ServedRequest[bytes]]:
        """Record new heartbeats. The answer to a mere renewal is not stored: it may be recorded twice."""
        answers = report_states(transaction, self._state, [(item.asked.identity, item.heartbeat) for item in items])
        responses = [self._write(answer, transaction.now, b"") for answer in answers]
        return [
            ServedRequest(response, response if item.heartbeat.reports or item.heartbeat.ending else None)
            for item, response in zip(items, responses, strict=True)
        ]

    def _answer_replay(self, transaction: Transaction, item: HeartbeatCall, kept: bytes) -> bytes:
        if item.heartbeat.ending:
            return kept
        (answer,) = report_states(transaction, self._state, [(item.asked.identity, item.heartbeat.renewal_only())])
        return self._write(answer, transaction.now, kept)
