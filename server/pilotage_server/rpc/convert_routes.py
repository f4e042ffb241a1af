"""Wire ↔ domain for RouteService: what routers look at, and what routes say; copies have a module of their own."""

from __future__ import annotations

from collections.abc import Iterable

from pilotage.description_wire import description_to_wire
from pilotage.v1 import route_service_pb2
from pilotage.wire import time_to_wire
from pilotage_server.core.route_tables import LeftOutRoute, RouteOutline, RouteTable, ToldRoutes
from pilotage_server.core.turns import Turn
from pilotage_server.operations.explain_routes import RoutesExplained, RouteVerdict
from pilotage_server.operations.routable_jobs import RoutableJob
from pilotage_server.rpc.convert_copies import (
    LARGEST_ANSWER,
    few_enough,
    name_of_route,
    open_copy_to_wire,
    text_of_route,
)
from pilotage_server.rpc.convert_jobs import state_to_wire
from pilotage_server.rpc.convert_turns import turn_from_wire
from pilotage_server.rpc.convert_values import Fields, each, job_id_from_wire, reason_from_wire


def looked_at_from_wire(message: route_service_pb2.LookAtJobsRequest) -> tuple[int, ...]:
    """Return the jobs that a router looks at."""
    fields = Fields(message)
    fields("job_ids", few_enough)
    job_ids = fields("job_ids", lambda ids: each(ids, job_id_from_wire))
    fields.done()
    return job_ids


def routable_jobs_to_wire(found: Iterable[RoutableJob]) -> route_service_pb2.LookAtJobsResponse:
    """Return the message of jobs that a router looks at, or as many as there is room for."""
    answer = route_service_pb2.LookAtJobsResponse()
    room = LARGEST_ANSWER
    for message in map(_routable_job, found):
        size = message.ByteSize()
        if size > LARGEST_ANSWER:
            continue
        if size > room:
            answer.unseen.append(message.job_id)
        else:
            answer.jobs.append(message)
            room -= size
    return answer


def _routable_job(found: RoutableJob) -> route_service_pb2.RoutableJob:
    job = found.job
    return route_service_pb2.RoutableJob(
        job_id=job.id,
        state=state_to_wire(job.state),
        ad=found.ad,
        description=description_to_wire(found.description),
        owner=job.owner,
        vo=job.vo,
        group=job.group,
    )


def explained_to_wire(explained: RoutesExplained) -> route_service_pb2.ExplainRoutesResponse:
    """Return the message of what all routes say to a job."""
    return route_service_pb2.ExplainRoutesResponse(
        verdicts=map(_verdict_to_wire, explained.verdicts),
        copy=None if explained.copy is None else open_copy_to_wire(explained.copy),
        obstacle=explained.obstacle,
    )


def _verdict_to_wire(verdict: RouteVerdict) -> route_service_pb2.RouteVerdict:
    return route_service_pb2.RouteVerdict(
        router=verdict.router,
        route=verdict.route.name,
        target=verdict.route.target,
        obstacles=[
            route_service_pb2.RouteObstacle(kind=obstacle.kind.value, why=obstacle.why)
            for obstacle in verdict.obstacles
        ],
    )


def route_table_from_wire(message: route_service_pb2.PutRoutesRequest) -> tuple[Turn, RouteTable]:
    """Return the routes that a router tells people of, and the turn in which it acts."""
    fields = Fields(message)
    turn = fields("turn", turn_from_wire)
    fields("routes", few_enough)
    fields("left_out", few_enough)
    table = RouteTable(
        fields("routes", lambda routes: each(routes, _outline)),
        fields.if_set("constraint", text_of_route),
        fields.count("max_jobs") if message.HasField("max_jobs") else None,
        fields("left_out", lambda routes: each(routes, _left_out)),
    )
    fields.done()
    return turn, table


def _outline(message: route_service_pb2.RouteOutline) -> RouteOutline:
    fields = Fields(message)
    outline = RouteOutline(
        fields("name", name_of_route),
        fields("target", text_of_route),
        fields.if_set("requirements", text_of_route),
        fields.if_set("own", text_of_route),
        fields.count("max_jobs"),
        fields.count("max_idle_jobs") if message.HasField("max_idle_jobs") else None,
        fields.count("copies"),
        fields.count("idle"),
        fields("throttled", reason_from_wire),
        fields("closed", reason_from_wire),
    )
    fields.done()
    return outline


def _left_out(message: route_service_pb2.LeftOutRoute) -> LeftOutRoute:
    fields = Fields(message)
    left_out = LeftOutRoute(fields("name", text_of_route), fields("reason", reason_from_wire))
    fields.done()
    return left_out


def router_to_wire(told: ToldRoutes) -> route_service_pb2.Router:
    """Return the message of a router."""
    return route_service_pb2.Router(
        name=told.router,
        routes=[
            route_service_pb2.RouteOutline(
                name=route.name,
                target=route.target,
                requirements=route.requirements,
                own=route.own,
                max_jobs=route.max_jobs,
                max_idle_jobs=route.max_idle_jobs,
                copies=route.copies,
                idle=route.idle,
                throttled=route.throttled,
                closed=route.closed,
            )
            for route in told.table.routes
        ],
        constraint=told.table.constraint,
        max_jobs=told.table.max_jobs,
        left_out=[route_service_pb2.LeftOutRoute(name=each.name, reason=each.reason) for each in told.table.left_out],
        told=time_to_wire(told.told),
    )
