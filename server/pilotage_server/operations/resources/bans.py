"""Bans: operators take a site, a computing element or a queue out of use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from pilotage.errors import InvalidInputError, NotFoundError, Violation
from pilotage.resources.eligibility import Ban
from pilotage.text import fold
from pilotage_server.core.audit import AuditKind, line_difference
from pilotage_server.core.identity import Identity
from pilotage_server.core.resources.bans import BanRecord, TreeNode, find_node
from pilotage_server.operations.audit import record_change
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import resources as stored
from pilotage_server.storage.database.transaction import Transaction


@dataclass(frozen=True, slots=True)
class BanOrder:
    """The node to ban, the reason, and the end (aware; None = until it is removed)."""

    node: TreeNode
    reason: str
    until: datetime | None = None


def load_bans(transaction: Transaction) -> tuple[Ban, ...]:
    """Return the current bans for the server state, with those of planned downtimes."""
    session, now = transaction.session, transaction.now
    ordered = (record.ban for record in stored.load_bans(session, now))
    return (*ordered, *(downtime.ban for downtime in stored.load_downtimes(session, now)))


def list_bans(transaction: Transaction) -> tuple[BanRecord, ...]:
    """Return the current bans in the order of their nodes."""
    return stored.load_bans(transaction.session, transaction.now)


def ban(transaction: Transaction, state: ServerState, identity: Identity, order: BanOrder) -> BanRecord:
    """Ban a node, replacing its present ban if it has one, and return the ban.

    Raises
    ------
    InvalidInputError
        For an unknown node, a missing reason, or an end in the past.
    """
    _validate(order, transaction.now)
    node = find_node(state.tree.queues, order.node)
    stored.remove_ended_bans(transaction.session, transaction.now)
    replaced = stored.remove_bans(transaction.session, node)
    ordered = Ban(node.site, node.ce, node.queue, order.reason.strip(), order.until)
    record = stored.insert_ban(transaction.session, ordered, identity.owner, transaction.now)
    changed = line_difference(map(_described, replaced), [_described(record)])
    record_change(transaction, identity, AuditKind.BAN, str(node), difference=changed)
    transaction.after_commit(lambda: _change(state, lambda kept: not _is_of(kept, node), ordered))
    return record


def unban(transaction: Transaction, state: ServerState, identity: Identity, node: TreeNode) -> tuple[BanRecord, ...]:
    """Remove the ban of exactly this node, which need not be in the tree any more, and return it.

    Raises
    ------
    NotFoundError
        When the node has no ban; a ban of a level above or below is another one.
    """
    held = [record for record in list_bans(transaction) if _is_of(record.ban, node)]
    if not held:
        raise NotFoundError("ban of", str(node))
    for record in held:
        stored.remove_bans(transaction.session, TreeNode(record.ban.site, record.ban.ce, record.ban.queue))
    transaction.after_commit(lambda: _change(state, lambda kept: not _is_of(kept, node)))
    changed = line_difference(map(_described, held), [])
    record_change(transaction, identity, AuditKind.BAN, str(node), difference=changed)
    return tuple(held)


def _described(record: BanRecord) -> str:
    until = f"until {record.ban.until:%Y-%m-%d %H:%M:%S} UTC" if record.ban.until else "until it is removed"
    return f"banned {until} by {record.by}: {record.ban.reason}"


def _validate(order: BanOrder, now: datetime) -> None:
    violations: list[Violation] = []
    if not order.reason.strip():
        violations.append(Violation("reason", "a ban needs a reason, which users see"))
    if order.until is not None and order.until <= now:
        violations.append(Violation("until", f"{order.until.isoformat()} has passed"))
    if violations:
        raise InvalidInputError(*violations)


def _is_of(ban_: Ban, node: TreeNode) -> bool:
    return _folded(ban_.site, ban_.ce, ban_.queue) == _folded(node.site, node.ce, node.queue)


def _folded(*names: str | None) -> tuple[str, ...]:
    return tuple(fold(name or "") for name in names)


def _change(state: ServerState, stays: Callable[[Ban], bool], *new: Ban) -> None:
    """Replace bans by operators; those of downtimes stay."""
    with state.lock:
        state.bans = (*(kept for kept in state.bans if kept.downtime is not None or stays(kept)), *new)
    state.publish_access_change()
