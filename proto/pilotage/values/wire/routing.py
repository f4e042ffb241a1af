"""Routed jobs ↔ wire; the wire calls them copies."""

from __future__ import annotations

from pilotage.classads.evaluation import Ad
from pilotage.classads.text import ad_text
from pilotage.errors import InvalidInputError, Violation
from pilotage.jobs.report_limits import LONGEST_ROUTE_TEXT
from pilotage.jobs.wire import description_from_wire, description_to_wire
from pilotage.rpc.wire import enum_from_wire, enum_to_wire, queue_from_wire, queue_to_wire, text_from_wire
from pilotage.v1 import jobs_pb2, route_service_pb2
from pilotage.values.routing import LeftOutRoute, NewRoutedJob, RoutableJob, RouteOutline, UnwantedRoutedJob
from pilotage.values.wire.fields import Fields, job_id_from_wire, name_from_wire, reason_from_wire

_LONGEST_NAME = 500


def routable_job_to_wire(job: RoutableJob) -> route_service_pb2.RoutableJob:
    """Return the message of a job for a router."""
    return route_service_pb2.RoutableJob(
        job_id=job.job_id,
        state=enum_to_wire(jobs_pb2.JobState, job.state),
        ad=ad_text(job.ad),
        description=description_to_wire(job.description),
        owner=job.owner,
        vo=job.vo,
        group=job.group,
    )


def routable_job_from_wire(message: route_service_pb2.RoutableJob) -> RoutableJob:
    """Return a job for a router; raises InvalidInputError if its ad or description cannot be read."""
    return RoutableJob(
        message.job_id,
        enum_from_wire(jobs_pb2.JobState, message.state),
        Ad.read(message.ad).plain(),
        description_from_wire(message.description),
        message.owner,
        message.vo,
        message.group,
    )


def new_routed_job_to_wire(job: NewRoutedJob) -> route_service_pb2.NewCopy:
    """Return the message of a job that is about to be sent."""
    queue = None if job.queue is None else queue_to_wire(job.queue)
    return route_service_pb2.NewCopy(job_id=job.job_id, route=job.route, target=job.target, queue=queue)


def new_routed_job_from_wire(message: route_service_pb2.NewCopy) -> NewRoutedJob:
    """Return a job that is about to be sent."""
    fields = Fields(message)
    job = NewRoutedJob(
        fields("job_id", job_id_from_wire),
        fields("route", name_of_route),
        fields("target", name_of_route),
        fields.if_set("queue", queue_from_wire),
    )
    fields.done()
    return job


def unwanted_to_wire(unwanted: UnwantedRoutedJob) -> route_service_pb2.UnwantedCopy:
    """Return the message of a routed job that must be stopped."""
    return route_service_pb2.UnwantedCopy(job_id=unwanted.job_id, attempt=unwanted.attempt, reason=unwanted.reason)


def unwanted_from_wire(message: route_service_pb2.UnwantedCopy) -> UnwantedRoutedJob:
    """Return a routed job that must be stopped."""
    return UnwantedRoutedJob(message.job_id, message.attempt, message.reason)


def outline_to_wire(route: RouteOutline) -> route_service_pb2.RouteOutline:
    """Return the message of a route for display."""
    return route_service_pb2.RouteOutline(
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


def outline_from_wire(message: route_service_pb2.RouteOutline) -> RouteOutline:
    """Return a route for display."""
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


def left_out_to_wire(route: LeftOutRoute) -> route_service_pb2.LeftOutRoute:
    """Return the message of a route that is not used."""
    return route_service_pb2.LeftOutRoute(name=route.name, reason=route.reason, copies=route.copies, idle=route.idle)


def left_out_from_wire(message: route_service_pb2.LeftOutRoute) -> LeftOutRoute:
    """Return a route that is not used."""
    fields = Fields(message)
    name, reason = fields("name", text_of_route), fields("reason", reason_from_wire)
    left_out = LeftOutRoute(name, reason, fields.count("copies"), fields.count("idle"))
    fields.done()
    return left_out


def name_of_route(text: str) -> str:
    """Return the name of a route, or of its target."""
    if len(text) > _LONGEST_NAME:
        raise InvalidInputError(Violation("", f"is longer than {_LONGEST_NAME} characters"))
    return name_from_wire(text)


def text_of_route(text: str) -> str:
    """Return a text of a route or of a routed job, which may be empty."""
    if len(text) > LONGEST_ROUTE_TEXT:
        raise InvalidInputError(Violation("", f"is longer than {LONGEST_ROUTE_TEXT} characters"))
    return text_from_wire(text)
