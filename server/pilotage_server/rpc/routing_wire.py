"""Wire ↔ domain for RouteService. On the wire a routed job is a *copy*."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pilotage.errors import InvalidInputError, Violation
from pilotage.job_description import Value
from pilotage.jobs.report_limits import attributes_fault
from pilotage.rpc.channel import MAX_MESSAGE_BYTES
from pilotage.rpc.wire import section_from_wire, time_to_wire
from pilotage.v1 import route_service_pb2, values_pb2
from pilotage.values.attempts import ReportResult
from pilotage.values.leadership import Leadership
from pilotage.values.routing import NewRoutedJob, PublishedRoutes, RoutableJob
from pilotage.values.wire.fields import (
    Fields,
    all_from_wire,
    job_id_from_wire,
    name_from_wire,
    reason_from_wire,
    valid_or_malformed,
)
from pilotage.values.wire.leadership import leadership_from_wire
from pilotage.values.wire.routing import (
    left_out_from_wire,
    left_out_to_wire,
    new_routed_job_from_wire,
    outline_from_wire,
    outline_to_wire,
    routable_job_to_wire,
    text_of_route,
    unwanted_to_wire,
)
from pilotage_server.core.routing import MalformedReport, RouteAnswer, RouterReport, RouterRoutes
from pilotage_server.operations.routing.explain import RoutesExplained, RouteVerdict
from pilotage_server.operations.routing.routed_jobs import (
    FIRST,
    OpenRoutedJob,
    OpenRoutedJobs,
    ReleasedRoutedJobs,
    UnwantedRoutedJobs,
)
from pilotage_server.rpc.jobs.wire import state_to_wire
from pilotage_server.rpc.matching.wire import job_report_from_wire
from pilotage_server.storage.attempts import AttemptKey

MAX_PER_CALL = 1000
"""Limit of the jobs, copies or routes in one call."""

MAX_ANSWER_BYTES = MAX_MESSAGE_BYTES // 4
"""Limit of the bytes of jobs or copies in one answer."""


def new_routed_jobs_from_wire(
    message: route_service_pb2.RouteJobsRequest,
) -> tuple[Leadership, tuple[NewRoutedJob | RouteAnswer, ...]]:
    """Return the router's leadership and the jobs that it is about to submit, or for each invalid one its refusal."""
    fields = Fields(message)
    leadership = fields("turn", leadership_from_wire)
    fields("copies", check_call_size)
    copies = valid_or_malformed(
        message.copies, new_routed_job_from_wire, lambda copy, fault: RouteAnswer(copy.job_id, refusal=fault)
    )
    twice = [job_id for job_id, times in Counter(copy.job_id for copy in message.copies).items() if times > 1]
    fields.faults.unless(not twice, "copies", f"name job {twice[0] if twice else 0} more than once")
    fields.done()
    return leadership, copies


def route_answer_to_wire(routed: RouteAnswer) -> route_service_pb2.RoutedJob:
    """Return the message that grants or refuses a job to a router."""
    return route_service_pb2.RoutedJob(job_id=routed.job_id, attempt=routed.attempt, refusal=routed.refusal)


class RoutedJobReports(NamedTuple):
    """Reports of a router, its leadership, and the key after which its page of unwanted routed jobs starts."""

    turn: Leadership
    reports: tuple[RouterReport | MalformedReport, ...]
    unwanted_after: AttemptKey


def routed_job_reports_from_wire(message: route_service_pb2.ReportCopiesRequest) -> RoutedJobReports:
    """Return a router's reports on its routed jobs."""
    fields = Fields(message)
    leadership = fields("turn", leadership_from_wire)
    fields("copies", check_call_size)
    reports = valid_or_malformed(message.copies, _copy_report, malformed_report)
    after = fields.if_set("unwanted_after", _copy_key) or FIRST
    fields.done()
    return RoutedJobReports(leadership, reports, after)


def malformed_report(report: RouterReport | route_service_pb2.CopyReport, fault: str) -> MalformedReport:
    """Return the answer to a report that has a fault."""
    return MalformedReport(report.job_id, report.attempt, fault)


def _copy_report(message: route_service_pb2.CopyReport) -> RouterReport:
    fields = Fields(message)
    report = fields.if_set("report", job_report_from_wire)
    copy = RouterReport(
        fields("job_id", job_id_from_wire),
        fields.count("attempt"),
        fields("reference", text_of_route),
        fields("node", reason_from_wire),
        report,
        fields("held", reason_from_wire),
        fields("attributes", _attributes),
    )
    is_same_attempt = report is None or (report.job_id, report.attempt) == copy.key
    fields.faults.unless(is_same_attempt, "report", "is of another job or attempt")
    fields.done()
    return copy


def _attributes(values: Mapping[str, values_pb2.Value]) -> dict[str, Value]:
    attributes = section_from_wire(values)
    if fault := attributes_fault(attributes):
        raise InvalidInputError(Violation("", fault))
    return attributes


def report_results_to_wire(results: Iterable[ReportResult]) -> route_service_pb2.ReportCopiesResponse:
    """Return the message of the results of reports."""
    return route_service_pb2.ReportCopiesResponse(
        results=[
            route_service_pb2.CopyResult(
                job_id=each.job_id, attempt=each.attempt, accepted=each.accepted, refusal=each.refusal
            )
            for each in results
        ]
    )


def malformed_to_wire(malformed: Iterable[MalformedReport]) -> route_service_pb2.ReportCopiesResponse:
    """Return the message of malformed reports."""
    return route_service_pb2.ReportCopiesResponse(
        malformed=[
            route_service_pb2.MalformedReport(job_id=each.job_id, attempt=each.attempt, fault=each.fault)
            for each in malformed
        ]
    )


def unwanted_page_to_wire(unwanted: UnwantedRoutedJobs) -> route_service_pb2.ReportCopiesResponse:
    """Return the message of a page of unwanted routed jobs."""
    return route_service_pb2.ReportCopiesResponse(
        unwanted=map(unwanted_to_wire, unwanted.copies),
        more_unwanted=unwanted.more,
    )


def routed_jobs_page_from_wire(message: route_service_pb2.ListCopiesRequest) -> tuple[str, AttemptKey]:
    """Return the router whose routed jobs are listed, and the key after which the page starts."""
    fields = Fields(message)
    page = fields("router", name_from_wire), fields.if_set("after", _copy_key) or FIRST
    fields.done()
    return page


def _copy_key(message: route_service_pb2.CopyKey) -> AttemptKey:
    fields = Fields(message)
    key = fields("job_id", job_id_from_wire), fields.count("attempt")
    fields.done()
    return key


def open_routed_jobs_to_wire(found: OpenRoutedJobs) -> route_service_pb2.ListCopiesResponse:
    """Return the message of a router's routed jobs, as many as fit into one answer."""
    answer = route_service_pb2.ListCopiesResponse(more=found.more)
    bytes_left = MAX_ANSWER_BYTES
    for message in map(open_routed_job_to_wire, found.copies):
        bytes_left -= message.ByteSize()
        if bytes_left < 0:
            answer.more = True
            break
        answer.copies.append(message)
    return answer


def open_routed_job_to_wire(found: OpenRoutedJob) -> route_service_pb2.JobCopy:
    """Return the message of a routed job, with the state of its job."""
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


def released_to_wire(given_up: ReleasedRoutedJobs) -> route_service_pb2.GiveUpCopiesResponse:
    """Return the message of routed jobs that a router has lost."""
    return route_service_pb2.GiveUpCopiesResponse(
        copies=map(open_routed_job_to_wire, given_up.copies), more=given_up.more
    )


def check_call_size(things: Sequence[object]) -> None:
    """Raise InvalidInputError for more than `MAX_PER_CALL` jobs, copies or routes."""
    if len(things) > MAX_PER_CALL:
        raise InvalidInputError(Violation("", f"names {len(things)}, and one call may name {MAX_PER_CALL}"))


def look_from_wire(message: route_service_pb2.LookAtJobsRequest) -> tuple[int, ...]:
    """Return the ids of the jobs that a router reads."""
    fields = Fields(message)
    fields("job_ids", check_call_size)
    job_ids = fields("job_ids", lambda ids: all_from_wire(ids, job_id_from_wire))
    fields.done()
    return job_ids


def routable_jobs_to_wire(found: Iterable[RoutableJob]) -> route_service_pb2.LookAtJobsResponse:
    """Return the message of jobs for a router. `unseen` has the ids of those that do not fit into one answer."""
    answer = route_service_pb2.LookAtJobsResponse()
    bytes_left = MAX_ANSWER_BYTES
    for message in map(routable_job_to_wire, found):
        size = message.ByteSize()
        if size > MAX_ANSWER_BYTES:
            continue
        if size > bytes_left:
            answer.unseen.append(message.job_id)
        else:
            answer.jobs.append(message)
            bytes_left -= size
    return answer


def explained_to_wire(explained: RoutesExplained) -> route_service_pb2.ExplainRoutesResponse:
    """Return the message of the verdicts of all routes on a job."""
    return route_service_pb2.ExplainRoutesResponse(
        verdicts=map(_verdict_to_wire, explained.verdicts),
        copy=None if explained.copy is None else open_routed_job_to_wire(explained.copy),
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


def route_table_from_wire(message: route_service_pb2.PutRoutesRequest) -> tuple[Leadership, PublishedRoutes]:
    """Return a router's leadership, and the routes that it publishes."""
    fields = Fields(message)
    leadership = fields("turn", leadership_from_wire)
    fields("routes", check_call_size)
    fields("left_out", check_call_size)
    table = PublishedRoutes(
        fields("routes", lambda routes: all_from_wire(routes, outline_from_wire)),
        fields.if_set("constraint", text_of_route),
        fields.count("max_jobs") if message.HasField("max_jobs") else None,
        fields("left_out", lambda routes: all_from_wire(routes, left_out_from_wire)),
    )
    fields.done()
    return leadership, table


def router_to_wire(published: RouterRoutes) -> route_service_pb2.Router:
    """Return the message of a router and its routes."""
    return route_service_pb2.Router(
        name=published.router,
        routes=map(outline_to_wire, published.table.routes),
        constraint=published.table.constraint,
        max_jobs=published.table.max_jobs,
        left_out=map(left_out_to_wire, published.table.left_out),
        told=time_to_wire(published.reported),
    )
