"""Planned downtimes: operators plan, list and cancel them; the bans that they are begin and end by the clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from pilotage.errors import InvalidInputError, NotFoundError, Violation
from pilotage_server.core.audit import AuditKind
from pilotage_server.core.identity import Identity
from pilotage_server.core.resources.bans import find_node
from pilotage_server.core.resources.downtimes import Downtime
from pilotage_server.operations.audit import record_change
from pilotage_server.operations.resources.bans import load_bans
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import resources as stored
from pilotage_server.storage.database.transaction import Transaction


def plan_downtime(transaction: Transaction, state: ServerState, identity: Identity, wanted: Downtime) -> Downtime:
    """Plan a downtime and return it.

    Raises
    ------
    InvalidInputError
        For an unknown node, a missing reason, or an end that has passed or is not after the start.
    """
    _validate(wanted, transaction.now)
    node = find_node(state.tree.queues, wanted.node)
    ordered = replace(wanted, node=node, reason=wanted.reason.strip(), by=identity.owner)
    planned = stored.insert_downtime(transaction.session, ordered, transaction.now)
    record_change(transaction, identity, AuditKind.DOWNTIME, str(node), difference=f"+ {planned}")
    _publish(transaction, state)
    return planned


def list_downtimes(transaction: Transaction) -> tuple[Downtime, ...]:
    """Return the downtimes that are not over, by their starts."""
    return stored.load_downtimes(transaction.session, transaction.now)


def cancel_downtime(transaction: Transaction, state: ServerState, identity: Identity, downtime_id: int) -> Downtime:
    """Cancel a downtime, also one that has started, and return it; raises NotFoundError for one that is over."""
    found = next((each for each in list_downtimes(transaction) if each.id == downtime_id), None)
    if found is None:
        raise NotFoundError("downtime", str(downtime_id))
    stored.delete_downtime(transaction.session, found)
    record_change(transaction, identity, AuditKind.DOWNTIME, str(found.node), difference=f"- {found}")
    _publish(transaction, state)
    return found


def _validate(wanted: Downtime, now: datetime) -> None:
    violations: list[Violation] = []
    if not wanted.reason.strip():
        violations.append(Violation("reason", "a downtime needs a reason, which users see"))
    if wanted.end <= wanted.start:
        violations.append(Violation("end", "is not later than the start"))
    elif wanted.end <= now:
        violations.append(Violation("end", f"{wanted.end.isoformat()} has passed"))
    if violations:
        raise InvalidInputError(*violations)


def _publish(transaction: Transaction, state: ServerState) -> None:
    """Apply the stored bans and downtimes to this server after the commit; other servers follow within seconds."""
    bans = load_bans(transaction)

    def apply() -> None:
        with state.lock:
            state.bans = bans
        state.publish_access_change()

    transaction.after_commit(apply)
