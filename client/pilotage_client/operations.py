"""Calls of operators about the service itself: its agents, the audit, downtimes, and pilots that died."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from pilotage.v1 import agent_service_pb2, audit_service_pb2, pilot_service_pb2, resource_service_pb2
from pilotage_client import models
from pilotage_client.connection import Connection, new_request_id
from pilotage_client.models.reading import moment_to_wire, value_of


def node_parts(node: Sequence[str]) -> tuple[str, str, str]:
    """Return site, CE and queue of 1 to 3 names, or of a text such as "SITE/CE"; "" = all below."""
    if isinstance(node, str):
        node = node.split("/", 2)
    site, ce, queue = (*node, "", "", "")[:3]
    return site, ce, queue


class OperationsCalls(Connection):
    """Calls about the service itself."""

    def plan_downtime(
        self, node: Sequence[str], *, start: datetime, end: datetime, reason: str, drain_s: float = 0
    ) -> models.operations.DowntimeInfo:
        """Plan a downtime of a site, CE or queue (1 to 3 names); for `drain_s` before it no job starts at all.

        Raises InvalidInputError.
        """
        site, ce, queue = node_parts(node)
        downtime = resource_service_pb2.Downtime(
            site=site,
            ce=ce,
            queue=queue,
            reason=reason,
            start=moment_to_wire("start", start),
            end=moment_to_wire("end", end),
            drain_s=drain_s,
        )
        request = resource_service_pb2.PlanDowntimeRequest(request_id=new_request_id(), downtime=downtime)
        return value_of(models.operations.DowntimeInfo, self._resources.PlanDowntime(request).downtime)

    def cancel_downtime(self, downtime_id: int) -> models.operations.DowntimeInfo:
        """Cancel a downtime, or end it, and return it; raises NotFoundError."""
        request = resource_service_pb2.CancelDowntimeRequest(request_id=new_request_id(), id=downtime_id)
        return value_of(models.operations.DowntimeInfo, self._resources.CancelDowntime(request).downtime)

    def downtimes(self) -> list[models.operations.DowntimeInfo]:
        """Return the downtimes that are not over, by their starts."""
        found = self._resources.ListDowntimes(resource_service_pb2.ListDowntimesRequest()).downtimes
        return [value_of(models.operations.DowntimeInfo, each) for each in found]

    def agents(self) -> list[models.operations.AgentInfo]:
        """Return the replicas of all agents, by agent: those that run, and those that ended recently."""
        return list(
            map(models.operations.agent_info, self._agents.ListAgents(agent_service_pb2.ListAgentsRequest()).replicas)
        )

    def audit(
        self, *, since: datetime | None = None, who: str = "", what: str = ""
    ) -> Iterator[models.operations.AuditRecord]:
        """Yield the changes that operators and agents have made, the newest first; `who` and `what` empty = any.

        Raises InvalidInputError.
        """
        request = audit_service_pb2.ListAuditRequest(since=moment_to_wire("since", since), who=who, what=what)
        while True:
            page = self._audit.ListAudit(request)
            yield from map(models.operations.audit_record, page.entries)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def pilot_log(self, stamp: str) -> str:
        """Return the end of the output of a pilot that has ended without saying why; raises NotFoundError."""
        return self._pilots.GetPilotLog(pilot_service_pb2.GetPilotLogRequest(stamp=stamp)).log.text
