"""AuditService: which operators and agents have changed what."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pilotage.errors import InvalidInputError, Violation
from pilotage.rpc.wire import text_from_wire, time_to_wire
from pilotage.v1 import audit_service_pb2, audit_service_pb2_grpc
from pilotage.values.wire.fields import Fields
from pilotage_server.core.audit import AuditEntry, AuditKind
from pilotage_server.operations.audit import list_audit
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.storage.identity.audit import AuditQuery

DEFAULT_PAGE, LARGEST_PAGE = 100, 1000


def audit_query_from_wire(message: audit_service_pb2.ListAuditRequest) -> tuple[AuditQuery, int]:
    """Return the selection of entries and the size of a page."""
    fields = Fields(message)
    since = fields.time("since") or datetime.min.replace(tzinfo=UTC)
    query = AuditQuery(since, fields.text("who"), fields("what", _kind))
    size = fields.count("page_size") or DEFAULT_PAGE
    fields.faults.unless(size <= LARGEST_PAGE, "page_size", f"is more than {LARGEST_PAGE}")
    fields.done()
    return query, size


def _kind(text: str) -> str:
    if text and text not in list(AuditKind):
        raise InvalidInputError(Violation("", f"is {text_from_wire(text)[:80]!r}, not one of {', '.join(AuditKind)}"))
    return text


def audit_entry_to_wire(entry: AuditEntry) -> audit_service_pb2.AuditEntry:
    """Return the message of an entry."""
    return audit_service_pb2.AuditEntry(
        id=entry.id,
        time=time_to_wire(entry.time),
        who=entry.who,
        vo=entry.vo,
        roles=entry.roles,
        agent=entry.agent,
        what=entry.what,
        subject=entry.subject,
        difference=entry.difference,
        reason=entry.reason,
    )


class AuditServicer(audit_service_pb2_grpc.AuditServiceServicer):
    """Shows the audit."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def ListAudit(
        self, request: audit_service_pb2.ListAuditRequest, context: Any
    ) -> audit_service_pb2.ListAuditResponse:
        query, size = audit_query_from_wire(request)
        page = await self._transactions.read(
            lambda transaction, _: list_audit(transaction, query, size, request.page_token)
        )
        return audit_service_pb2.ListAuditResponse(
            entries=map(audit_entry_to_wire, page.entries), next_page_token=page.next_page_token
        )
