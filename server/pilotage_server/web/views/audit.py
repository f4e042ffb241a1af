"""The audit: which operators and agents have changed what."""

from __future__ import annotations

from urllib.parse import urlencode

from pilotage.rpc.wire import time_to_wire
from pilotage.v1 import audit_service_pb2
from pilotage_server.web.pages import PageView, Shown, Visit
from pilotage_server.web.views.job_filters import PERIODS

PAGE = 50
"""Entries on a page."""


async def collect_audit(visit: Visit) -> Shown:
    """Return a page of the entries that the fields of the address select, the newest first."""
    wanted = {"who": visit.query("who"), "what": visit.query("what"), "since": visit.choice("since", PERIODS)}
    since = time_to_wire(visit.clock() - PERIODS[wanted["since"]]) if wanted["since"] else None
    request = audit_service_pb2.ListAuditRequest(
        since=since, who=wanted["who"], what=wanted["what"], page_size=PAGE, page_token=visit.query("page")
    )
    found = await visit.calls("AuditService/ListAudit", request)
    token = found.next_page_token
    further = urlencode({**{name: text for name, text in wanted.items() if text}, "page": token}) if token else ""
    return {"entries": found.entries, "wanted": wanted, "periods": PERIODS, "further": further}


AUDIT = PageView("/audit", "Audit", ("AuditService/ListAudit",), "audit.html", collect_audit)
