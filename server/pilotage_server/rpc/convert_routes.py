"""Wire ↔ domain for RouteService: copies and routers' reports in; jobs, copies and routes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pilotage.channel import MAX_MESSAGE_BYTES
from pilotage.description_wire import description_to_wire
from pilotage.errors import InvalidInputError, Violation
from pilotage.v1 import route_service_pb2
from pilotage.wire import queue_from_wire, text_from_wire, time_to_wire
from pilotage_server.core.route_tables import LeftOutRoute, RouteOutline, RouteTable, ToldRoutes
from pilotage_server.core.routes import CopyReport, NewCopy, RoutedJob
from pilotage_server.core.turns import Turn
from pilotage_server.operations.copies import CopiesAnswer, GivenUp, OpenCopy, UnwantedCopy
from pilotage_server.operations.explain_routes import RoutesExplained, RouteVerdict
from pilotage_server.operations.routable_jobs import RoutableJob
from pilotage_server.rpc.convert_jobs import state_to_wire
from pilotage_server.rpc.convert_reports import job_report_from_wire
from pilotage_server.rpc.convert_turns import turn_from_wire
from pilotage_server.rpc.convert_values import Fields, each, job_id_from_wire, name_from_wire, reason_from_wire

MOST_AT_ONCE = 1000
"""So many jobs, copies or routes does one call name."""

_LARGEST_ANSWER = MAX_MESSAGE_BYTES // 4
"""Bytes of the jobs in one answer."""

_LONGEST_NAME = 500
_LONGEST_TEXT = 20_000


def looked_at_from_wire(message: route_service_pb2.LookAtJobsRequest) -> tuple[int, ...]:
    """Return the jobs that a router looks at."""
    fields = Fields(message)
    fields("job_ids", _not_too_many)
    job_ids = fields("job_ids", lambda ids: each(ids, job_id_from_wire))
    fields.done()
    return job_ids


def routable_jobs_to_wire(found: Iterable[RoutableJob]) -> route_service_pb2.LookAtJobsResponse:
    """Return the message of jobs that a router looks at, or as many as there is room for."""
    answer = route_service_pb2.LookAtJobsResponse()
    room = _LARGEST_ANSWER
    for message in map(_routable_job, found):
        size = message.ByteSize()
        if size > _LARGEST_ANSWER:
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


def new_copies_from_wire(message: route_service_pb2.RouteJobsRequest) -> tuple[Turn, tuple[NewCopy, ...]]:
    """Return the copies that a router is about to make, and the turn in which it acts."""
    fields = Fields(message)
    turn = fields("turn", turn_from_wire)
    fields("copies", _not_too_many)
    copies = fields("copies", lambda copies: each(copies, _new_copy))
    twice = [job_id for job_id, times in Counter(copy.job_id for copy in message.copies).items() if times > 1]
    fields.faults.unless(not twice, "copies", f"name job {twice[0] if twice else 0} more than once")
    fields.done()
    return turn, copies


def _new_copy(message: route_service_pb2.NewCopy) -> NewCopy:
    fields = Fields(message)
    copy = NewCopy(
        fields("job_id", job_id_from_wire),
        fields("route", _name),
        fields("target", _name),
        fields.if_set("queue", queue_from_wire),
    )
    fields.done()
    return copy


def _name(text: str) -> str:
    if len(text) > _LONGEST_NAME:
        raise InvalidInputError(Violation("", f"is longer than {_LONGEST_NAME} characters"))
    return name_from_wire(text)


def _not_too_many(things: Sequence[object]) -> None:
    if len(things) > MOST_AT_ONCE:
        raise InvalidInputError(Violation("", f"names {len(things)}, and one call may name {MOST_AT_ONCE}"))


def routed_job_to_wire(routed: RoutedJob) -> route_service_pb2.RoutedJob:
    """Return the message of whether a router has a job."""
    return route_service_pb2.RoutedJob(job_id=routed.job_id, attempt=routed.attempt, refusal=routed.refusal)


def copy_reports_from_wire(message: route_service_pb2.ReportCopiesRequest) -> tuple[Turn, tuple[CopyReport, ...]]:
    """Return what a router says of its copies, and the turn in which it acts."""
    fields = Fields(message)
    turn = fields("turn", turn_from_wire)
    fields("copies", _not_too_many)
    reports = fields("copies", lambda copies: each(copies, _copy_report))
    fields.done()
    return turn, reports


def _copy_report(message: route_service_pb2.CopyReport) -> CopyReport:
    fields = Fields(message)
    report = fields.if_set("report", job_report_from_wire)
    told = CopyReport(
        fields("job_id", job_id_from_wire),
        fields.count("attempt"),
        fields("reference", _text),
        fields("node", reason_from_wire),
        report,
    )
    is_of_it = report is None or (report.job_id, report.attempt) == told.key
    fields.faults.unless(is_of_it, "report", "is of another job or attempt")
    fields.done()
    return told


def _text(text: str) -> str:
    if len(text) > _LONGEST_TEXT:
        raise InvalidInputError(Violation("", f"is longer than {_LONGEST_TEXT} characters"))
    return text_from_wire(text)


def unwanted_to_wire(unwanted: Iterable[UnwantedCopy]) -> list[route_service_pb2.UnwantedCopy]:
    """Return the messages of copies that are wanted no more."""
    return [
        route_service_pb2.UnwantedCopy(job_id=each.job_id, attempt=each.attempt, reason=each.reason)
        for each in unwanted
    ]


def copies_answer_to_wire(answer: CopiesAnswer) -> route_service_pb2.ReportCopiesResponse:
    """Return the message of what became of reports."""
    return route_service_pb2.ReportCopiesResponse(
        results=[
            route_service_pb2.CopyResult(
                job_id=each.job_id, attempt=each.attempt, accepted=each.accepted, refusal=each.refusal
            )
            for each in answer.results
        ],
        unwanted=unwanted_to_wire(answer.unwanted),
    )


def open_copy_to_wire(found: OpenCopy) -> route_service_pb2.JobCopy:
    """Return the message of a copy, with the state of its job."""
    copy = found.copy
    return route_service_pb2.JobCopy(
        job_id=copy.job_id,
        attempt=copy.attempt,
        route=copy.route,
        target=copy.target,
        reference=copy.reference,
        routed=time_to_wire(copy.routed),
        unwanted=found.unwanted,
        state=state_to_wire(found.state),
        router=copy.router,
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


def given_up_to_wire(given_up: GivenUp) -> route_service_pb2.GiveUpCopiesResponse:
    """Return the message of the copies that were given up."""
    return route_service_pb2.GiveUpCopiesResponse(copies=map(open_copy_to_wire, given_up.copies), more=given_up.more)


def route_table_from_wire(message: route_service_pb2.PutRoutesRequest) -> tuple[Turn, RouteTable]:
    """Return the routes that a router tells people of, and the turn in which it acts."""
    fields = Fields(message)
    turn = fields("turn", turn_from_wire)
    fields("routes", _not_too_many)
    fields("left_out", _not_too_many)
    table = RouteTable(
        fields("routes", lambda routes: each(routes, _outline)),
        fields.if_set("constraint", _text),
        fields.count("max_jobs") if message.HasField("max_jobs") else None,
        fields("left_out", lambda routes: each(routes, _left_out)),
    )
    fields.done()
    return turn, table


def _outline(message: route_service_pb2.RouteOutline) -> RouteOutline:
    fields = Fields(message)
    outline = RouteOutline(
        fields("name", _name),
        fields("target", _text),
        fields.if_set("requirements", _text),
        fields.if_set("own", _text),
        fields.count("max_jobs"),
        fields.count("max_idle_jobs") if message.HasField("max_idle_jobs") else None,
        fields.count("copies"),
        fields.count("idle"),
        fields("throttled", reason_from_wire),
    )
    fields.done()
    return outline


def _left_out(message: route_service_pb2.LeftOutRoute) -> LeftOutRoute:
    fields = Fields(message)
    left_out = LeftOutRoute(fields("name", _text), fields("reason", reason_from_wire))
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
            )
            for route in told.table.routes
        ],
        constraint=told.table.constraint,
        max_jobs=told.table.max_jobs,
        left_out=[route_service_pb2.LeftOutRoute(name=each.name, reason=each.reason) for each in told.table.left_out],
        told=time_to_wire(told.told),
    )
