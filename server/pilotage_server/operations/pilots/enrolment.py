"""Enrolment: a pilot uses its enrolment secret once, and has a key in its memory from then on.

The first call with the secret decides which key belongs to the stamp. A repeated call with the same nonce, after a lost
answer, changes nothing. Another nonce means that two hold the secret: the pilot gets an alarm, for people.

A secret for a set of queues is bound to the queue that the first call names. No later call changes the queue.
"""

from __future__ import annotations

from dataclasses import dataclass

from pilotage.resources.queue_patterns import matches_any
from pilotage.resources.tree import QueueId
from pilotage.values.pilots import PilotState
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.pilots.pilots import OVER, PilotRecord, SecondUse
from pilotage_server.operations.attempts.pilot_calls import may_know_queue
from pilotage_server.operations.pilots.pilots import drain_pilots
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.pilots import bind_pilot, change_pilots, load_pilots


@dataclass(frozen=True, slots=True)
class EnrolmentRefused:
    """Why a pilot is not enrolled; `is_alarm` = its secret was used a second time."""

    why: str
    is_alarm: bool = False


def enrol_pilot(
    transaction: Transaction,
    state: ServerState,
    credential: PilotCredential,
    landed: QueueId | None,
    nonce_hash: str,
    caller_address: str,
    second_use: SecondUse,
    release: str = "",
) -> PilotCredential | EnrolmentRefused:
    """Bind a pilot to the nonce with this hash, unless it is bound to another; return its bound credential.

    `landed` = the queue that the pilot says it is in, which it is bound to if its secret is for a set of queues; None =
    it says none. `release` = that of its program, "" = not known.
    """
    pilot = load_pilots(transaction.session, [credential.stamp]).get(credential.stamp)
    if pilot is None or not _is_of(pilot, credential):
        return EnrolmentRefused("the server does not know this pilot")
    if not pilot.nonce_hash and (fault := _queue_fault(transaction, state, credential, landed)):
        return EnrolmentRefused(fault)
    queue = landed or credential.queue
    if bind_pilot(transaction.session, pilot.stamp, nonce_hash, queue, transaction.now, release):
        return PilotCredential(pilot.stamp, queue, pilot.vos, nonce_hash)
    present = load_pilots(transaction.session, [pilot.stamp]).get(pilot.stamp)
    if present is not None and present.is_revoked(transaction.now):
        return EnrolmentRefused("its credential has ended")
    if present is not None and present.nonce_hash == nonce_hash and present.queue != queue:
        return EnrolmentRefused(f"it is bound to the queue {present.queue}")
    if present is None or present.nonce_hash in {"", nonce_hash}:
        return EnrolmentRefused("the pilot has ended")
    alarm = f"its enrolment secret was used again at {transaction.now:%Y-%m-%d %H:%M:%S} UTC, by {caller_address}"
    change_pilots(transaction.session, [pilot.stamp], {"alarm": alarm})
    if second_use is not SecondUse.REPORT and pilot.state not in OVER:
        drain_pilots(transaction, state, None, [pilot.stamp], alarm, evict=second_use is SecondUse.EVICT)
    return EnrolmentRefused("the enrolment secret has been used", is_alarm=True)


def _is_of(pilot: PilotRecord, credential: PilotCredential) -> bool:
    """Whether the secret is that of the pilot's registration."""
    return pilot.queue_set == credential.queue_set and (bool(pilot.queue_set) or pilot.queue == credential.queue)


def _queue_fault(
    transaction: Transaction, state: ServerState, credential: PilotCredential, landed: QueueId | None
) -> str:
    """Return why the pilot may not enrol in the queue where it says it is; "" = it may."""
    if not credential.queue_set:
        other = landed is not None and landed != credential.queue
        return f"its enrolment secret is for the queue {credential.queue}, not {landed}" if other else ""
    queues = ", ".join(credential.queue_set)
    if landed is None:
        return f"its enrolment secret is for the queues {queues}, and it does not say in which it is"
    if not matches_any(landed, credential.queue_set):
        return f"it is in the queue {landed}, but its enrolment secret is for the queues {queues}"
    if not may_know_queue(transaction, state, landed):
        return f"it is in the queue {landed}, which is not in the resource tree"
    return ""


def renew_pilot(transaction: Transaction, credential: PilotCredential) -> PilotCredential | EnrolmentRefused:
    """Return the present credential of an enrolled pilot that has not ended."""
    pilot = load_pilots(transaction.session, [credential.stamp]).get(credential.stamp)
    if pilot is None:
        return EnrolmentRefused("the server does not know this pilot")
    if pilot.state is PilotState.ENDED or pilot.is_revoked(transaction.now):
        return EnrolmentRefused("its credential has ended")
    return PilotCredential(pilot.stamp, pilot.queue, pilot.vos, credential.nonce_hash)
