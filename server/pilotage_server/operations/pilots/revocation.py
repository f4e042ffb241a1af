"""Revocation of pilots: their credentials end now, and their leases run out.

A revoked pilot may be out of reach, stopped or hostile, so nothing shows that its processes have ended. Its jobs
return to the queue when their leases run out: by then its watchdog has killed them (docs/decisions/0028).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pilotage.errors import InvalidInputError, Violation
from pilotage_server.core.audit import AuditKind, line_difference
from pilotage_server.core.identity import Identity
from pilotage_server.core.resources.bans import TreeNode
from pilotage_server.core.revocations import Revocation, RevocationKind
from pilotage_server.operations.audit import record_change
from pilotage_server.operations.pilots.pilots import stamps_at
from pilotage_server.operations.revocations import checked_reason, publish_ended_credentials, record_revocation
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import pilots as stored
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.pilots import remove_slots

_MOST_SHOWN = 5
"""Stamps that the record of a revocation names."""


@dataclass(frozen=True, slots=True)
class PilotsToRevoke:
    """Pilots by their stamps, or all that a site, a CE or a queue has now."""

    stamps: Sequence[str] = ()
    node: TreeNode | None = None


@dataclass(frozen=True, slots=True)
class RevokedPilots:
    """The revoked pilots, and the named stamps that are unknown or have ended."""

    stamps: tuple[str, ...]
    unknown: tuple[str, ...]


def revoke_pilots(
    transaction: Transaction, state: ServerState, identity: Identity, wanted: PilotsToRevoke, reason: str
) -> RevokedPilots:
    """End the credentials of pilots, and their enrolment secrets; later registrations are not affected.

    Raises
    ------
    InvalidInputError
        There is no reason, or the tree has no such node and no pilot is registered there.
    """
    why = checked_reason(reason)
    named = tuple(dict.fromkeys(wanted.stamps))
    subject = ", ".join(named[:_MOST_SHOWN]) + (f" and {len(named) - _MOST_SHOWN} more" if named[_MOST_SHOWN:] else "")
    if wanted.node is not None:
        subject, named = stamps_at(transaction, state, wanted.node)
    elif not named:
        raise InvalidInputError(Violation("stamps", "names nothing: give stamps, or a site, a CE or a queue"))
    shown = f"revoked by {identity.owner}: {why}"
    revoked = stored.revoke_pilots(transaction.session, named, shown, transaction.now)
    remove_slots(transaction.session, revoked)
    publish_ended_credentials(transaction, state, revoked, transaction.now)
    for stamp in revoked:
        transaction.after_commit(partial(state.publish_command, stamp))
    if revoked:
        expires = transaction.now + state.rules.longest_token
        kind = RevocationKind.PILOTS
        revocation = Revocation(kind, subject, why, identity.owner, transaction.now, expires)
        record_revocation(transaction, state, revocation)
        changed = line_difference([], (f"{stamp}: revoked" for stamp in revoked))
        record_change(transaction, identity, AuditKind.REVOCATION, subject, difference=changed, reason=why)
    return RevokedPilots(revoked, tuple(stamp for stamp in named if stamp not in set(revoked)))
