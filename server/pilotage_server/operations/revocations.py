"""Revocations: operators and owners revoke tokens, and the credentials of pilots end before their tokens.

Each server checks calls against a snapshot in its memory. The server that revokes changes its own at the commit, the
others read theirs again every few seconds (`startup.sync`). The rows of pilots are checked too where a credential is
given or renewed, so that none slips through in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from pilotage.errors import InvalidInputError, PermissionDeniedError, Violation
from pilotage_server.core.audit import AuditKind, line_difference
from pilotage_server.core.identity import Identity
from pilotage_server.core.revocations import Revocation, RevocationKind, Revocations
from pilotage_server.operations.audit import record_change
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.identity import revocations as stored
from pilotage_server.storage.pilots import change_pilots, load_credential_ends


@dataclass(frozen=True, slots=True)
class TokensToRevoke:
    """One token by issuer and id, or all tokens of an owner that were issued until now.

    `token_id` "" = all of the owner's; `owner` "" = the owner of the token is not known. `vo` "" = in all VOs.
    `expires` = the end of the token, None = not known.
    """

    owner: str = ""
    vo: str = ""
    issuer: str = ""
    token_id: str = ""
    expires: datetime | None = None


def load_snapshot(transaction: Transaction) -> Revocations:
    """Return the present revocations for the server state."""
    records = stored.load_revocations(transaction.session, transaction.now)
    return Revocations(records, load_credential_ends(transaction.session))


def sync_revocations(transaction: Transaction, state: ServerState) -> None:
    """Read the revocations of all servers again."""
    before = state.revocations
    found = load_snapshot(transaction)
    with state.lock:
        if state.revocations is before:  # else this server has revoked something meanwhile: the next sync has all
            state.revocations = found


def list_revocations(transaction: Transaction, identity: Identity) -> tuple[Revocation, ...]:
    """Return the revocations that have not expired, the newest first; users see those of their own tokens."""
    found = stored.load_revocations(transaction.session, transaction.now)
    return tuple(each for each in found if identity.sees_everything or _is_own(identity, each.owner, each.vo))


def revoke_tokens(
    transaction: Transaction, state: ServerState, identity: Identity, wanted: TokensToRevoke, reason: str
) -> Revocation:
    """Revoke tokens and return the revocation.

    Raises
    ------
    PermissionDeniedError
        A user names tokens that are not known to be its own.
    InvalidInputError
        There is no reason.
    """
    if not identity.sees_everything and not _is_own(identity, wanted.owner, wanted.vo):
        why = "you may revoke your own tokens only: give the token itself, or revoke all of yours"
        raise PermissionDeniedError(why)
    kind = RevocationKind.TOKEN if wanted.token_id else RevocationKind.OWNER
    revocation = Revocation(
        kind,
        wanted.token_id or wanted.owner,
        checked_reason(reason),
        identity.owner,
        transaction.now,
        wanted.expires or transaction.now + state.rules.longest_token,
        wanted.issuer,
        wanted.owner,
        wanted.vo,
    )
    record_revocation(transaction, state, revocation)
    subject = f"{kind.value} {revocation.subject}" + (f" of the VO {wanted.vo}" if wanted.vo else "")
    record_change(
        transaction, identity, AuditKind.REVOCATION, subject, difference="+ revoked", reason=revocation.reason
    )
    return revocation


def record_token(
    transaction: Transaction, identity: Identity, made: Identity, token_id: str, expires: datetime
) -> None:
    """Store in the audit that the caller makes a token; the token itself is not stored."""
    facts = [f"token {token_id}", f"roles {', '.join(sorted(made.roles))}", f"expires {expires:%Y-%m-%d %H:%M:%S} UTC"]
    for name, values in (("queues", made.bounds.queues), ("VOs", made.bounds.vos), ("turns", made.bounds.turns)):
        if values:
            facts.append(f"bound to the {name} {', '.join(values)}")
    if made.invitation is not None:
        roles, lifetime = ", ".join(sorted(made.invitation.roles)), made.invitation.lifetime.total_seconds()
        facts.append(f"lets machines join with the roles {roles} for {lifetime:.0f} s")
    subject = f"{made.owner} of the VO {made.vo}" if made.vo else made.owner
    record_change(transaction, identity, AuditKind.TOKEN, subject, difference=line_difference([], facts))


def record_revocation(transaction: Transaction, state: ServerState, revocation: Revocation) -> None:
    """Store a revocation, which holds at this server from the commit on."""
    stored.insert_revocation(transaction.session, revocation)

    def apply() -> None:
        with state.lock:
            state.revocations = state.revocations.with_records(revocation)

    transaction.after_commit(apply)


def end_credentials(transaction: Transaction, state: ServerState, stamps: Collection[str], end: datetime) -> None:
    """End the credentials of pilots at a time, at this server from the commit on."""
    change_pilots(transaction.session, stamps, {"credential_ends": end})
    publish_ended_credentials(transaction, state, stamps, end)


def publish_ended_credentials(
    transaction: Transaction, state: ServerState, stamps: Iterable[str], end: datetime
) -> None:
    """Apply the stored ends of these pilots' credentials to this server after the commit."""
    ended = tuple(stamps)

    def apply() -> None:
        with state.lock:
            state.revocations = state.revocations.with_pilots(ended, end)

    transaction.after_commit(apply)


def checked_reason(reason: str) -> str:
    """Return the reason; raises InvalidInputError if it is empty."""
    if not reason.strip():
        raise InvalidInputError(Violation("reason", "is empty: a revocation needs a reason, which its holder sees"))
    return reason.strip()


def _is_own(identity: Identity, owner: str, vo: str) -> bool:
    return bool(owner) and (owner, vo) == (identity.owner, identity.vo)
