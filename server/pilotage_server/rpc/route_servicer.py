"""RouteService: the job routers' door, and what people ask of routes."""

from __future__ import annotations

import asyncio
from typing import Any

from pilotage.errors import InvalidInputError
from pilotage.v1 import route_service_pb2, route_service_pb2_grpc
from pilotage_server.core.routes import CopyReport, MalformedReport, NewCopy
from pilotage_server.operations.copies import give_up_copies, list_copies, report_copies, unwanted_copies
from pilotage_server.operations.explain_routes import explain_routes
from pilotage_server.operations.files import keep_contents
from pilotage_server.operations.routable_jobs import look_at_jobs
from pilotage_server.operations.route_jobs import route_jobs
from pilotage_server.operations.routes import list_routes, put_routes
from pilotage_server.operations.world import World
from pilotage_server.rpc.calls import caller
from pilotage_server.rpc.convert_copies import (
    ToldOfCopies,
    copies_asked_for,
    copy_reports_from_wire,
    given_up_to_wire,
    malformed_report,
    malformed_to_wire,
    new_copies_from_wire,
    open_copies_to_wire,
    report_results_to_wire,
    routed_job_to_wire,
    unwanted_to_wire,
)
from pilotage_server.rpc.convert_routes import (
    explained_to_wire,
    looked_at_from_wire,
    routable_jobs_to_wire,
    route_table_from_wire,
    router_to_wire,
)
from pilotage_server.rpc.convert_values import Fields, job_id_from_wire, name_from_wire
from pilotage_server.rpc.transactions import Transactions
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.file_store import FileStore


class RouteServicer(route_service_pb2_grpc.RouteServiceServicer):
    """Gives jobs to routers, hears what becomes of their copies, and tells people of routes."""

    def __init__(self, transactions: Transactions, store: FileStore) -> None:
        self._transactions = transactions
        self._store = store

    async def LookAtJobs(
        self, request: route_service_pb2.LookAtJobsRequest, context: Any
    ) -> route_service_pb2.LookAtJobsResponse:
        job_ids = looked_at_from_wire(request)

        def look(unit: Unit, world: World) -> route_service_pb2.LookAtJobsResponse:
            return routable_jobs_to_wire(look_at_jobs(unit, world, job_ids))

        return await self._transactions.read(look)

    async def RouteJobs(
        self, request: route_service_pb2.RouteJobsRequest, context: Any
    ) -> route_service_pb2.RouteJobsResponse:
        turn, asked = new_copies_from_wire(request)
        copies = [copy for copy in asked if isinstance(copy, NewCopy)]

        def route(unit: Unit, world: World) -> route_service_pb2.RouteJobsResponse:
            routed = iter(route_jobs(unit, world, turn, copies))
            answers = (next(routed) if isinstance(copy, NewCopy) else copy for copy in asked)
            return route_service_pb2.RouteJobsResponse(jobs=map(routed_job_to_wire, answers))

        return await self._transactions.once(caller(), "RouteJobs", request, route_service_pb2.RouteJobsResponse, route)

    async def ReportCopies(
        self, request: route_service_pb2.ReportCopiesRequest, context: Any
    ) -> route_service_pb2.ReportCopiesResponse:
        told = copy_reports_from_wire(request)
        answer = await self._taken_in(request, told) if told.reports else route_service_pb2.ReportCopiesResponse()
        # Not a part of the answer that is kept: that would be the same long list with every report.
        unwanted = await self._transactions.read(
            lambda unit, _: unwanted_to_wire(unwanted_copies(unit, told.turn.agent, told.unwanted_after))
        )
        answer.MergeFrom(unwanted)
        return answer

    async def _taken_in(
        self, request: route_service_pb2.ReportCopiesRequest, told: ToldOfCopies
    ) -> route_service_pb2.ReportCopiesResponse:
        """Return what becomes of the reports, once."""
        identity = caller()
        judged = [await self._with_contents(each) for each in told.reports]
        reports = [each for each in judged if isinstance(each, CopyReport)]
        malformed = [each for each in judged if isinstance(each, MalformedReport)]

        def report(unit: Unit, world: World) -> route_service_pb2.ReportCopiesResponse:
            answer = report_results_to_wire(report_copies(unit, world, identity, told.turn, reports))
            answer.MergeFrom(malformed_to_wire(malformed))
            return answer

        return await self._transactions.once(
            identity, "ReportCopies", request, route_service_pb2.ReportCopiesResponse, report
        )

    async def _with_contents(self, told: CopyReport | MalformedReport) -> CopyReport | MalformedReport:
        """Put the contents that came inside a report on disk; returns it, or what is wrong with them."""
        if isinstance(told, MalformedReport) or told.report is None or not told.report.output_files:
            return told
        try:
            await asyncio.to_thread(keep_contents, self._store, told.report.output_files, "report.output_files")
        except InvalidInputError as error:
            return malformed_report(told, str(error))
        return told

    async def ListCopies(
        self, request: route_service_pb2.ListCopiesRequest, context: Any
    ) -> route_service_pb2.ListCopiesResponse:
        router, after = copies_asked_for(request)
        return await self._transactions.read(lambda unit, _: open_copies_to_wire(list_copies(unit, router, after)))

    async def PutRoutes(
        self, request: route_service_pb2.PutRoutesRequest, context: Any
    ) -> route_service_pb2.PutRoutesResponse:
        turn, table = route_table_from_wire(request)
        await self._transactions.write(lambda unit, _: put_routes(unit, turn, table))
        return route_service_pb2.PutRoutesResponse()

    async def ListRoutes(
        self, request: route_service_pb2.ListRoutesRequest, context: Any
    ) -> route_service_pb2.ListRoutesResponse:
        routers = await self._transactions.read(lambda unit, _: list_routes(unit))
        return route_service_pb2.ListRoutesResponse(routers=map(router_to_wire, routers))

    async def ExplainRoutes(
        self, request: route_service_pb2.ExplainRoutesRequest, context: Any
    ) -> route_service_pb2.ExplainRoutesResponse:
        identity, fields = caller(), Fields(request)
        job_id = fields("job_id", job_id_from_wire)
        fields.done()
        return await self._transactions.read(
            lambda unit, world: explained_to_wire(explain_routes(unit, world, identity, job_id))
        )

    async def GiveUpCopies(
        self, request: route_service_pb2.GiveUpCopiesRequest, context: Any
    ) -> route_service_pb2.GiveUpCopiesResponse:
        identity, fields = caller(), Fields(request)
        router = fields("router", name_from_wire)
        fields.done()

        def give_up(unit: Unit, world: World) -> route_service_pb2.GiveUpCopiesResponse:
            return given_up_to_wire(give_up_copies(unit, world, identity, router))

        return await self._transactions.once(
            identity, "GiveUpCopies", request, route_service_pb2.GiveUpCopiesResponse, give_up
        )
