"""What a job router says to a server and hears from it, as messages of the protocol."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from pilotage.ad_text import ad_text
from pilotage.classad_evaluation import Ad
from pilotage.description_wire import description_from_wire
from pilotage.errors import InvalidInputError
from pilotage.v1 import jobs_pb2, route_service_pb2
from pilotage.wire import queue_to_wire, time_to_wire, value_to_wire
from pilotage_agents.core.routes.told_routes import ToldRoute
from pilotage_agents.router.route_edges import CopyOutcome, CopyReport, KnownCopy, NewCopy, RoutableJob, UnwantedCopy

log = structlog.get_logger()

_STATE = "JOB_STATE_"


def state_name(number: jobs_pb2.JobState.ValueType) -> str:
    """Return the protocol's word for a state."""
    return jobs_pb2.JobState.Name(number).removeprefix(_STATE)


def routable_job(message: route_service_pb2.RoutableJob) -> RoutableJob | None:
    """Return the job, None = nothing can be made of what the server says of it."""
    try:
        ad, description = Ad.read(message.ad).plain(), description_from_wire(message.description)
    except InvalidInputError as error:
        log.warning("job cannot be read", job_id=message.job_id, reason=str(error))
        return None
    waits = message.state == jobs_pb2.JOB_STATE_WAITING
    return RoutableJob(message.job_id, waits, ad, description, message.owner, message.vo, message.group)


def new_copy_to_wire(copy: NewCopy) -> route_service_pb2.NewCopy:
    """Return the message of a copy that is about to be made."""
    queue = None if copy.queue is None else queue_to_wire(copy.queue)
    return route_service_pb2.NewCopy(job_id=copy.job_id, route=copy.route, target=copy.target, queue=queue)


def key_of(copy: route_service_pb2.UnwantedCopy | route_service_pb2.JobCopy) -> route_service_pb2.CopyKey:
    """Return what tells a copy apart."""
    return route_service_pb2.CopyKey(job_id=copy.job_id, attempt=copy.attempt)


def unwanted_copy(copy: route_service_pb2.UnwantedCopy) -> UnwantedCopy:
    """Return a copy that is to be stopped."""
    return UnwantedCopy(copy.job_id, copy.attempt, copy.reason)


def known_copy(copy: route_service_pb2.JobCopy) -> KnownCopy:
    """Return a copy on the server's list."""
    is_running = copy.state == jobs_pb2.JOB_STATE_RUNNING
    return KnownCopy(
        copy.job_id, copy.attempt, copy.route, copy.target, copy.reference, copy.unwanted, is_running=is_running
    )


def report_to_wire(report: CopyReport, files: Sequence[jobs_pb2.OutputFile]) -> route_service_pb2.CopyReport:
    """Return the message of what is said of a copy, with the files that it has left."""
    return route_service_pb2.CopyReport(
        job_id=report.job_id,
        attempt=report.attempt,
        reference=report.reference,
        node=report.node,
        report=_job_report(report, files) if report.state else None,
        held=report.held,
        attributes={name: value_to_wire(value) for name, value in report.attributes.items()},
    )


def _job_report(report: CopyReport, files: Sequence[jobs_pb2.OutputFile]) -> jobs_pb2.JobReport:
    message = jobs_pb2.JobReport(
        job_id=report.job_id,
        attempt=report.attempt,
        state=jobs_pb2.JobState.Value(f"{_STATE}{report.state}"),
        started=time_to_wire(report.started),
    )
    if report.outcome is not None:
        message.MergeFrom(_end(report.outcome))
        message.output_files.extend(files)
    return message


def _end(outcome: CopyOutcome) -> jobs_pb2.JobReport:
    status = outcome.status
    return jobs_pb2.JobReport(
        outcome=jobs_pb2.Outcome.Value(f"OUTCOME_{outcome.outcome}"),
        exit_code=status.exit_code,
        signal=status.signal,
        reason=outcome.reason,
        started=time_to_wire(status.started),
        ended=time_to_wire(status.ended),
        cpu_s=status.cpu_s,
        wall_s=status.wall_s,
    )


def outline_to_wire(route: ToldRoute) -> route_service_pb2.RouteOutline:
    """Return the message of a route as people see it."""
    return route_service_pb2.RouteOutline(
        name=route.name,
        target=route.target,
        requirements=route.requirements,
        own=None if route.own is None else ad_text(route.own),
        max_jobs=route.max_jobs,
        max_idle_jobs=route.max_idle_jobs,
        copies=route.copies,
        idle=route.idle,
        throttled=route.throttled,
        closed=route.closed,
    )
