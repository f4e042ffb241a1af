"""OverviewService: counts of jobs now and over time, and the sites."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pilotage.rpc.wire import time_to_wire
from pilotage.v1 import overview_service_pb2, overview_service_pb2_grpc
from pilotage.values.wire.fields import Fields
from pilotage_server.core.accounting.job_counts import MINUTE
from pilotage_server.operations.overview import DEFAULT_STEP, GridOverview, SiteSummary, get_overview
from pilotage_server.rpc.framework.calls import caller
from pilotage_server.rpc.framework.transactions import Transactions


class OverviewServicer(overview_service_pb2_grpc.OverviewServiceServicer):
    """Shows the state of the grid."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def GetOverview(
        self, request: overview_service_pb2.GetOverviewRequest, context: Any
    ) -> overview_service_pb2.GetOverviewResponse:
        identity = caller()
        fields = Fields(request)
        vo, history = fields.text("vo"), fields.length("history_s")
        step = fields.length("step_s") or DEFAULT_STEP
        fields.done()
        return await self._transactions.read(
            lambda transaction, state: overview_to_wire(
                get_overview(transaction, state, identity, vo, history or timedelta(0), step)
            )
        )


def overview_to_wire(overview: GridOverview) -> overview_service_pb2.GetOverviewResponse:
    """Return the message of an overview."""
    return overview_service_pb2.GetOverviewResponse(
        time=time_to_wire(overview.time),
        waiting=int(overview.now.waiting),
        running=int(overview.now.running),
        held=overview.held,
        more_held=overview.more_held,
        history=[
            overview_service_pb2.JobsOverTime(
                time=time_to_wire(time),
                waiting=counts.waiting,
                running=counts.running,
                done=counts.done,
                failed=counts.failed,
                removed=counts.removed,
                covered_s=counts.minutes * MINUTE.total_seconds(),
            )
            for time, counts in overview.history
        ],
        sites=[_site_to_wire(site) for site in overview.sites],
    )


def _site_to_wire(site: SiteSummary) -> overview_service_pb2.SiteOverview:
    return overview_service_pb2.SiteOverview(
        site=site.site,
        queues=site.queues,
        closed=site.closed,
        running=site.leased.running,
        matched=site.leased.matched,
        pilots=site.pilots,
        banned=site.banned,
        health=site.health,
        downtime=site.downtime,
    )
