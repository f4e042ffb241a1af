"""The audit: an entry for each change by an operator or an agent, in the transaction of the change."""

from __future__ import annotations

from dataclasses import dataclass

from pilotage_server.core.audit import AuditEntry, AuditKind
from pilotage_server.core.identity import Identity
from pilotage_server.core.paging import position_of, token_of
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.identity import audit as stored
from pilotage_server.storage.identity.audit import AuditQuery

MOST_CHARACTERS = 1024 * 1024
"""A page ends once its entries are this long together."""


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Entries, the newest first; `next_page_token` "" = there are no more."""

    entries: tuple[AuditEntry, ...]
    next_page_token: str


def record_change(
    transaction: Transaction,
    identity: Identity,
    what: AuditKind,
    subject: str,
    *,
    difference: str = "",
    reason: str = "",
    agent: str = "",
) -> None:
    """Store that the caller makes a change, under the leadership `agent` if it is one."""
    roles = tuple(sorted(identity.roles))
    entry = AuditEntry(
        transaction.now, identity.owner, identity.vo, roles, what, subject, difference, reason.strip(), agent
    )
    stored.insert_entry(transaction.session, entry)


def list_audit(transaction: Transaction, query: AuditQuery, page_size: int, page_token: str = "") -> AuditPage:
    """Return the next page of entries; raises InvalidInputError for a token of another query."""
    key = ("audit", query.since.isoformat(), query.who, query.what)
    before = position_of(page_token, key) if page_token else 0
    found = stored.find_entries(transaction.session, query, before, page_size + 1)
    page: list[AuditEntry] = []
    length = 0
    for entry in found[:page_size]:
        page.append(entry)
        length += len(entry.difference)
        if length >= MOST_CHARACTERS:
            break
    more = token_of(page[-1].id, key) if len(page) < len(found) else ""
    return AuditPage(tuple(page), more)
