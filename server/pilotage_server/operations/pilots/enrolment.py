"""Enrolment: a pilot uses its enrolment secret once, and has a key in its memory from then on.

The first call with the secret decides which key belongs to the stamp. A repeated call with the same nonce, after a lost
answer, changes nothing. Another nonce means that two hold the secret: the pilot gets an alarm, for people.
"""

from __future__ import annotations

from dataclasses import dataclass

from pilotage.values.pilots import PilotState
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.pilots.pilots import OVER, PilotRecord, SecondUse
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
    nonce_hash: str,
    caller_address: str,
    second_use: SecondUse,
) -> PilotCredential | EnrolmentRefused:
    """Bind a pilot to the nonce with this hash, unless it is bound to another; return its bound credential."""
    pilot = load_pilots(transaction.session, [credential.stamp]).get(credential.stamp)
    if pilot is None or pilot.queue != credential.queue:
        return EnrolmentRefused("the server does not know this pilot")
    if bind_pilot(transaction.session, pilot.stamp, nonce_hash, transaction.now):
        return _bound(pilot, nonce_hash)
    present = load_pilots(transaction.session, [pilot.stamp]).get(pilot.stamp)
    if present is not None and present.is_revoked(transaction.now):
        return EnrolmentRefused("its credential has ended")
    if present is None or present.nonce_hash in {"", nonce_hash}:
        return EnrolmentRefused("the pilot has ended")
    alarm = f"its enrolment secret was used again at {transaction.now:%Y-%m-%d %H:%M:%S} UTC, by {caller_address}"
    change_pilots(transaction.session, [pilot.stamp], {"alarm": alarm})
    if second_use is not SecondUse.REPORT and pilot.state not in OVER:
        drain_pilots(transaction, state, [pilot.stamp], alarm, evict=second_use is SecondUse.EVICT)
    return EnrolmentRefused("the enrolment secret has been used", is_alarm=True)


def renew_pilot(transaction: Transaction, credential: PilotCredential) -> PilotCredential | EnrolmentRefused:
    """Return the present credential of an enrolled pilot that has not ended."""
    pilot = load_pilots(transaction.session, [credential.stamp]).get(credential.stamp)
    if pilot is None:
        return EnrolmentRefused("the server does not know this pilot")
    if pilot.state is PilotState.ENDED or pilot.is_revoked(transaction.now):
        return EnrolmentRefused("its credential has ended")
    return _bound(pilot, credential.nonce_hash)


def _bound(pilot: PilotRecord, nonce_hash: str) -> PilotCredential:
    return PilotCredential(pilot.stamp, pilot.queue, pilot.vos, nonce_hash)
