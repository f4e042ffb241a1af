"""Wire ↔ domain for copies of jobs: new ones and reports in; which there are, and which are unwanted, out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pilotage.channel import MAX_MESSAGE_BYTES
from pilotage.errors import InvalidInputError, Violation
from pilotage.job_description import Value
from pilotage.report_bounds import LONGEST_ROUTE_TEXT, attributes_fault
from pilotage.v1 import route_service_pb2, values_pb2
from pilotage.wire import queue_from_wire, section_from_wire, text_from_wire, time_to_wire
from pilotage_server.core.routes import CopyReport, MalformedReport, NewCopy, RoutedJob
from pilotage_server.core.turns import Turn
from pilotage_server.operations.copies import FIRST, GivenUp, OpenCopies, OpenCopy, UnwantedCopies
from pilotage_server.operations.reports import ReportResult
from pilotage_server.rpc.convert_jobs import state_to_wire
from pilotage_server.rpc.convert_reports import job_report_from_wire
from pilotage_server.rpc.convert_turns import turn_from_wire
from pilotage_server.rpc.convert_values import (
    Fields,
    each_by_itself,
    job_id_from_wire,
    name_from_wire,
    reason_from_wire,
)
from pilotage_server.storage.attempts import AttemptKey

MOST_AT_ONCE = 1000
"""So many jobs, copies or routes does one call name."""

LARGEST_ANSWER = MAX_MESSAGE_BYTES // 4
"""Bytes of the jobs or copies in one answer."""

_LONGEST_NAME = 500


def new_copies_from_wire(message: route_service_pb2.RouteJobsRequest) -> tuple[Turn, tuple[NewCopy | RoutedJob, ...]]:
    """Return the turn in which a router acts, and the copies that it is about to make, or why one is refused."""
    fields = Fields(message)
    turn = fields("turn", turn_from_wire)
    fields("copies", few_enough)
    copies = each_by_itself(message.copies, _new_copy, lambda copy, fault: RoutedJob(copy.job_id, refusal=fault))
    twice = [job_id for job_id, times in Counter(copy.job_id for copy in message.copies).items() if times > 1]
    fields.faults.unless(not twice, "copies", f"name job {twice[0] if twice else 0} more than once")
    fields.done()
    return turn, copies


def _new_copy(message: route_service_pb2.NewCopy) -> NewCopy:
    fields = Fields(message)
    copy = NewCopy(
        fields("job_id", job_id_from_wire),
        fields("route", name_of_route),
        fields("target", name_of_route),
        fields.if_set("queue", queue_from_wire),
    )
    fields.done()
    return copy


def routed_job_to_wire(routed: RoutedJob) -> route_service_pb2.RoutedJob:
    """Return the message of whether a router has a job."""
    return route_service_pb2.RoutedJob(job_id=routed.job_id, attempt=routed.attempt, refusal=routed.refusal)


class ToldOfCopies(NamedTuple):
    """What a router says in one turn; it hears of unwanted copies that come after `unwanted_after`."""

    turn: Turn
    reports: tuple[CopyReport | MalformedReport, ...]
    unwanted_after: AttemptKey


def copy_reports_from_wire(message: route_service_pb2.ReportCopiesRequest) -> ToldOfCopies:
    """Return what a router says of its copies."""
    fields = Fields(message)
    turn = fields("turn", turn_from_wire)
    fields("copies", few_enough)
    reports = each_by_itself(message.copies, _copy_report, malformed_report)
    after = fields.if_set("unwanted_after", _copy_key) or FIRST
    fields.done()
    return ToldOfCopies(turn, reports, after)


def malformed_report(report: CopyReport | route_service_pb2.CopyReport, fault: str) -> MalformedReport:
    """Return that a report cannot be taken, for what is wrong with it."""
    return MalformedReport(report.job_id, report.attempt, fault)


def _copy_report(message: route_service_pb2.CopyReport) -> CopyReport:
    fields = Fields(message)
    report = fields.if_set("report", job_report_from_wire)
    told = CopyReport(
        fields("job_id", job_id_from_wire),
        fields.count("attempt"),
        fields("reference", text_of_route),
        fields("node", reason_from_wire),
        report,
        fields("held", reason_from_wire),
        fields("attributes", _attributes),
    )
    is_of_it = report is None or (report.job_id, report.attempt) == told.key
    fields.faults.unless(is_of_it, "report", "is of another job or attempt")
    fields.done()
    return told


def _attributes(said: Mapping[str, values_pb2.Value]) -> dict[str, Value]:
    attributes = section_from_wire(said)
    if fault := attributes_fault(attributes):
        raise InvalidInputError(Violation("", fault))
    return attributes


def report_results_to_wire(results: Iterable[ReportResult]) -> route_service_pb2.ReportCopiesResponse:
    """Return the message of what became of reports."""
    return route_service_pb2.ReportCopiesResponse(
        results=[
            route_service_pb2.CopyResult(
                job_id=each.job_id, attempt=each.attempt, accepted=each.accepted, refusal=each.refusal
            )
            for each in results
        ]
    )


def malformed_to_wire(malformed: Iterable[MalformedReport]) -> route_service_pb2.ReportCopiesResponse:
    """Return the message of reports that could not be taken."""
    return route_service_pb2.ReportCopiesResponse(
        malformed=[
            route_service_pb2.MalformedReport(job_id=each.job_id, attempt=each.attempt, fault=each.fault)
            for each in malformed
        ]
    )


def unwanted_to_wire(unwanted: UnwantedCopies) -> route_service_pb2.ReportCopiesResponse:
    """Return the message of copies that are wanted no more."""
    return route_service_pb2.ReportCopiesResponse(
        unwanted=[
            route_service_pb2.UnwantedCopy(job_id=each.job_id, attempt=each.attempt, reason=each.reason)
            for each in unwanted.copies
        ],
        more_unwanted=unwanted.more,
    )


def copies_asked_for(message: route_service_pb2.ListCopiesRequest) -> tuple[str, AttemptKey]:
    """Return the router whose copies are to be listed, and the copy that they come after."""
    fields = Fields(message)
    asked = fields("router", name_from_wire), fields.if_set("after", _copy_key) or FIRST
    fields.done()
    return asked


def _copy_key(message: route_service_pb2.CopyKey) -> AttemptKey:
    fields = Fields(message)
    key = fields("job_id", job_id_from_wire), fields.count("attempt")
    fields.done()
    return key


def open_copies_to_wire(found: OpenCopies) -> route_service_pb2.ListCopiesResponse:
    """Return the message of a router's copies, or of as many as there is room for."""
    answer = route_service_pb2.ListCopiesResponse(more=found.more)
    room = LARGEST_ANSWER
    for message in map(open_copy_to_wire, found.copies):
        room -= message.ByteSize()
        if room < 0:
            answer.more = True
            break
        answer.copies.append(message)
    return answer


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


def given_up_to_wire(given_up: GivenUp) -> route_service_pb2.GiveUpCopiesResponse:
    """Return the message of the copies that were given up."""
    return route_service_pb2.GiveUpCopiesResponse(copies=map(open_copy_to_wire, given_up.copies), more=given_up.more)


def few_enough(things: Sequence[object]) -> None:
    """Raise InvalidInputError where one call names too many jobs, copies or routes."""
    if len(things) > MOST_AT_ONCE:
        raise InvalidInputError(Violation("", f"names {len(things)}, and one call may name {MOST_AT_ONCE}"))


def name_of_route(text: str) -> str:
    """Return the name of a route, or of where it goes to."""
    if len(text) > _LONGEST_NAME:
        raise InvalidInputError(Violation("", f"is longer than {_LONGEST_NAME} characters"))
    return name_from_wire(text)


def text_of_route(text: str) -> str:
    """Return a text of a route or a copy, which may be empty."""
    if len(text) > LONGEST_ROUTE_TEXT:
        raise InvalidInputError(Violation("", f"is longer than {LONGEST_ROUTE_TEXT} characters"))
    return text_from_wire(text)
