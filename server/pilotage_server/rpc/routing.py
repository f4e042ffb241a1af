"""RouteService: jobs for job routers, reports on routed jobs, published routes."""

from __future__ import annotations

import asyncio
from typing import Any

from pilotage.errors import InvalidInputError
from pilotage.v1 import route_service_pb2, route_service_pb2_grpc
from pilotage.values.routing import NewRoutedJob
from pilotage.values.wire.fields import Fields, job_id_from_wire, name_from_wire
from pilotage_server.core.identity import check_turn
from pilotage_server.core.routing import MalformedReport, RouterReport
from pilotage_server.operations.jobs.files import store_contents
from pilotage_server.operations.routing.explain import explain_routes
from pilotage_server.operations.routing.route_jobs import list_routes, load_routable_jobs, put_routes, route_jobs
from pilotage_server.operations.routing.routed_jobs import (
    give_up_routed_jobs,
    list_routed_jobs,
    report_routed_jobs,
    unwanted_routed_jobs,
)
from pilotage_server.operations.server_state import ServerState
from pilotage_server.rpc.framework.calls import caller
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.rpc.routing_wire import (
    RoutedJobReports,
    explained_to_wire,
    look_from_wire,
    malformed_report,
    malformed_to_wire,
    new_routed_jobs_from_wire,
    open_routed_jobs_to_wire,
    released_to_wire,
    report_results_to_wire,
    routable_jobs_to_wire,
    route_answer_to_wire,
    route_table_from_wire,
    routed_job_reports_from_wire,
    routed_jobs_page_from_wire,
    router_to_wire,
    unwanted_page_to_wire,
)
from pilotage_server.storage.blobs.base import FileStore
from pilotage_server.storage.database.transaction import Transaction


class RouteServicer(route_service_pb2_grpc.RouteServiceServicer):
    """Gives jobs to job routers, takes their reports and shows routes."""

    def __init__(self, transactions: Transactions, store: FileStore) -> None:
        self._transactions = transactions
        self._store = store

    async def LookAtJobs(
        self, request: route_service_pb2.LookAtJobsRequest, context: Any
    ) -> route_service_pb2.LookAtJobsResponse:
        identity, job_ids = caller(), look_from_wire(request)

        def look(transaction: Transaction, state: ServerState) -> route_service_pb2.LookAtJobsResponse:
            return routable_jobs_to_wire(load_routable_jobs(transaction, state, job_ids, identity))

        return await self._transactions.read(look)

    async def RouteJobs(
        self, request: route_service_pb2.RouteJobsRequest, context: Any
    ) -> route_service_pb2.RouteJobsResponse:
        leadership, wanted = new_routed_jobs_from_wire(request)
        identity, copies = caller(), [copy for copy in wanted if isinstance(copy, NewRoutedJob)]
        check_turn(identity, leadership.agent)

        def route(transaction: Transaction, state: ServerState) -> route_service_pb2.RouteJobsResponse:
            routed = iter(route_jobs(transaction, state, leadership, copies, identity.bounds))
            answers = (next(routed) if isinstance(copy, NewRoutedJob) else copy for copy in wanted)
            return route_service_pb2.RouteJobsResponse(jobs=map(route_answer_to_wire, answers))

        return await self._transactions.once(identity, "RouteJobs", request, route_service_pb2.RouteJobsResponse, route)

    async def ReportCopies(
        self, request: route_service_pb2.ReportCopiesRequest, context: Any
    ) -> route_service_pb2.ReportCopiesResponse:
        received = routed_job_reports_from_wire(request)
        check_turn(caller(), received.turn.agent)
        answer = (
            await self._report_copies(request, received)
            if received.reports
            else route_service_pb2.ReportCopiesResponse()
        )
        # Not part of the stored answer: each report would store the same long list.
        unwanted = await self._transactions.read(
            lambda transaction, _: unwanted_page_to_wire(
                unwanted_routed_jobs(transaction, received.turn.agent, received.unwanted_after)
            )
        )
        answer.MergeFrom(unwanted)
        return answer

    async def _report_copies(
        self, request: route_service_pb2.ReportCopiesRequest, received: RoutedJobReports
    ) -> route_service_pb2.ReportCopiesResponse:
        """Return the results of the reports; a repeated request gets the stored results."""
        identity = caller()
        checked = [await self._store_contents(each) for each in received.reports]
        reports = [each for each in checked if isinstance(each, RouterReport)]
        malformed = [each for each in checked if isinstance(each, MalformedReport)]

        def report(transaction: Transaction, state: ServerState) -> route_service_pb2.ReportCopiesResponse:
            answer = report_results_to_wire(report_routed_jobs(transaction, state, identity, received.turn, reports))
            answer.MergeFrom(malformed_to_wire(malformed))
            return answer

        return await self._transactions.once(
            identity, "ReportCopies", request, route_service_pb2.ReportCopiesResponse, report
        )

    async def _store_contents(self, report: RouterReport | MalformedReport) -> RouterReport | MalformedReport:
        """Store the output files in a report; returns the report, or the faults of its files."""
        if isinstance(report, MalformedReport) or report.report is None or not report.report.output_files:
            return report
        try:
            await asyncio.to_thread(store_contents, self._store, report.report.output_files, "report.output_files")
        except InvalidInputError as error:
            return malformed_report(report, str(error))
        return report

    async def ListCopies(
        self, request: route_service_pb2.ListCopiesRequest, context: Any
    ) -> route_service_pb2.ListCopiesResponse:
        router, after = routed_jobs_page_from_wire(request)
        check_turn(caller(), router)
        return await self._transactions.read(
            lambda transaction, _: open_routed_jobs_to_wire(list_routed_jobs(transaction, router, after))
        )

    async def PutRoutes(
        self, request: route_service_pb2.PutRoutesRequest, context: Any
    ) -> route_service_pb2.PutRoutesResponse:
        leadership, table = route_table_from_wire(request)
        identity = caller()
        check_turn(identity, leadership.agent)
        await self._transactions.write(lambda transaction, _: put_routes(transaction, identity, leadership, table))
        return route_service_pb2.PutRoutesResponse()

    async def ListRoutes(
        self, request: route_service_pb2.ListRoutesRequest, context: Any
    ) -> route_service_pb2.ListRoutesResponse:
        routers = await self._transactions.read(lambda transaction, _: list_routes(transaction))
        return route_service_pb2.ListRoutesResponse(routers=map(router_to_wire, routers))

    async def ExplainRoutes(
        self, request: route_service_pb2.ExplainRoutesRequest, context: Any
    ) -> route_service_pb2.ExplainRoutesResponse:
        identity, fields = caller(), Fields(request)
        job_id = fields("job_id", job_id_from_wire)
        fields.done()
        return await self._transactions.read(
            lambda transaction, state: explained_to_wire(explain_routes(transaction, state, identity, job_id))
        )

    async def GiveUpCopies(
        self, request: route_service_pb2.GiveUpCopiesRequest, context: Any
    ) -> route_service_pb2.GiveUpCopiesResponse:
        identity, fields = caller(), Fields(request)
        router = fields("router", name_from_wire)
        fields.done()

        def give_up(transaction: Transaction, state: ServerState) -> route_service_pb2.GiveUpCopiesResponse:
            return released_to_wire(give_up_routed_jobs(transaction, state, identity, router))

        return await self._transactions.once(
            identity, "GiveUpCopies", request, route_service_pb2.GiveUpCopiesResponse, give_up
        )
