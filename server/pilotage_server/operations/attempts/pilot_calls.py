"""The start of every call of a pilot: its credential, the record of the contact, and commands for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pilotage.errors import PermissionDeniedError
from pilotage.resources.tree import QueueId
from pilotage.values.attempts import AttemptKey
from pilotage_server.core.attempts.leases import AttemptRecord, gone_reason, is_adoptable
from pilotage_server.core.identity import Identity, PilotCredential
from pilotage_server.core.pilots.pilots import PilotRecord, state_after_contact, why_no_work
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.attempts import load_taken
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.pilots import change_pilots, load_pilots, store_contact
from pilotage_server.storage.resources import active_tree_version

_CONTACT_WRITE_INTERVAL = timedelta(seconds=5)
"""A contact within this time after the last one is not written, so that busy pilots cost no extra writes."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Stop one attempt; the pilot reports it as killed."""

    job_id: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class DrainPilot:
    """Take no new jobs and end; `evict` = evict the running jobs, too."""

    reason: str
    evict: bool


@dataclass(frozen=True, slots=True)
class ReportNode:
    """Report the whole state of the node at once."""


PilotCommand = Kill | DrainPilot | ReportNode


def credential_of(identity: Identity) -> PilotCredential:
    """Return the pilot's credential; raises PermissionDeniedError if the caller is not a pilot."""
    if identity.pilot is None:
        raise PermissionDeniedError("only a pilot, with a credential for its queue, may do this")
    return identity.pilot


def record_contact(transaction: Transaction, pilots: Mapping[str, bool | None]) -> dict[str, PilotRecord]:
    """Record contacts with pilots; return their former records by stamp, without unknown pilots.

    The values are whether the pilot reports that it takes no new jobs; None = not reported.
    """
    found = load_pilots(transaction.session, pilots)
    silent: list[str] = []
    for stamp, pilot in found.items():
        state = state_after_contact(pilot, transaction.now, draining=pilots[stamp])
        if state is not pilot.state:
            store_contact(transaction.session, stamp, state, transaction.now)
        elif pilot.last_seen is None or transaction.now - pilot.last_seen >= _CONTACT_WRITE_INTERVAL:
            silent.append(stamp)
    if silent:
        change_pilots(transaction.session, silent, {"last_seen": transaction.now})
    return found


def no_work_reason(
    transaction: Transaction, state: ServerState, credential: PilotCredential, pilot: PilotRecord | None
) -> str:
    """Return why the pilot gets no work and must drain; "" = it may get some."""
    return why_no_work(pilot, transaction.now, queue_known=may_know_queue(transaction, state, credential.queue))


def may_know_queue(transaction: Transaction, state: ServerState, queue: QueueId) -> bool:
    """Return whether the active tree has the queue, or a newer tree of another server may have it."""
    tree = state.tree
    return tree.knows(queue) or active_tree_version(transaction.session) != tree.version


def commands_of(
    transaction: Transaction,
    state: ServerState,
    callers: Sequence[tuple[PilotCredential, PilotRecord | None, frozenset[AttemptKey]]],
) -> list[tuple[PilotCommand, ...]]:
    """Return the commands for each pilot. The attempts in its set need no Kill: the answer reports them as lost."""
    owing = {pilot.stamp for _, pilot, _ in callers if pilot is not None and pilot.has_unreported_ends}
    taken = taken_attempts(transaction, state, owing) if owing else {}
    found: list[tuple[PilotCommand, ...]] = []
    for credential, pilot, held in callers:
        kills = [
            Kill(attempt.job_id, attempt.attempt, gone_reason(attempt))
            for attempt in taken.get(credential.stamp, ())
            if AttemptKey(attempt.job_id, attempt.attempt) not in held
        ]
        reason = no_work_reason(transaction, state, credential, pilot)
        drain = [DrainPilot(reason, pilot.drain_evicts if pilot is not None else False)] if reason else []
        report = [ReportNode()] if pilot is not None and pilot.report_requested is not None else []
        found.append((*kills, *drain, *report))
    return found


def taken_attempts(
    transaction: Transaction, state: ServerState, stamps: Iterable[str]
) -> dict[str, list[AttemptRecord]]:
    """Return the attempts that were recently taken from the pilots for good and whose end they have not reported."""
    since = transaction.now - state.rules.pilot_silence
    ended = load_taken(transaction.session, stamps, since)
    jobs = load_jobs(transaction.session, [attempt.job_id for attempt in ended])
    taken: dict[str, list[AttemptRecord]] = {}
    for attempt in ended:
        if attempt.job_id not in jobs or not is_adoptable(jobs[attempt.job_id], attempt):
            taken.setdefault(attempt.pilot_stamp, []).append(attempt)
    return taken
