"""ExplainRoutes: which of the routes that routers have published take a job, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pilotage.classads.evaluation import Ad, compile_bounded
from pilotage.classads.library import InvalidClassAdError
from pilotage.resources.tree import QueueId
from pilotage.routes import (
    JobScopes,
    ObstacleKind,
    RouteCapacity,
    RouteObstacle,
    constraint_obstacles,
    requirements_obstacles,
    room_obstacles,
    table_room_obstacles,
)
from pilotage.values.routing import PublishedRoutes, RouteOutline
from pilotage_server.core.attempts.leases import gone_reason
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.record import JobRecord, queue_of_target
from pilotage_server.core.queueing.job_ads import full_job_ad
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.core.routing import RoutedJobRecord
from pilotage_server.operations.jobs.queries import visible_job
from pilotage_server.operations.queueing.placement import task_queues_of
from pilotage_server.operations.routing.route_jobs import Gate, read_only_gates, routing_refusal
from pilotage_server.operations.routing.routed_jobs import OpenRoutedJob
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.attempts import load_attempts
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.routing import last_copy, load_routers
from pilotage_server.storage.submission.templates import load_description


@dataclass(frozen=True, slots=True)
class RouteVerdict:
    """The obstacles of one route of a router to a job; without obstacles it takes the job."""

    router: str
    route: RouteOutline
    obstacles: tuple[RouteObstacle, ...]


@dataclass(frozen=True, slots=True)
class RoutesExplained:
    """The verdicts of all routes on a job.

    `copy` is its last routed job, None = none is known. `obstacle` applies to every route, "" = nothing.
    """

    verdicts: tuple[RouteVerdict, ...]
    copy: OpenRoutedJob | None
    obstacle: str


def explain_routes(transaction: Transaction, state: ServerState, identity: Identity, job_id: int) -> RoutesExplained:
    """Return the verdict of every route on a job; raises NotFoundError for one that the caller cannot see."""
    job = visible_job(transaction, identity, job_id)
    description = load_description(transaction.session, job.template_id)
    scopes = JobScopes.of(full_job_ad(job, description, transaction.now))
    task_queue = task_queues_of(transaction, state, {job.task_queue_id}).get(job.task_queue_id)
    routers = load_routers(transaction.session)
    targets = (
        {queue_of_target(route.target) for published in routers for route in published.table.routes}
        if task_queue
        else ()
    )
    case = _Case(job, scopes, task_queue, read_only_gates(transaction, state, targets))
    verdicts = tuple(
        RouteVerdict(published.router, route, obstacles)
        for published in routers
        for route, obstacles in _judged(published.table, case)
    )
    copy = last_copy(transaction.session, job_id)
    return RoutesExplained(verdicts, copy and _shown(transaction, copy, job), routing_refusal(job_id, job))


def _shown(transaction: Transaction, copy: RoutedJobRecord, job: JobRecord) -> OpenRoutedJob:
    attempt = load_attempts(transaction.session, [copy.key]).get(copy.key)
    is_over = attempt is not None and attempt.ended is not None
    return OpenRoutedJob(copy, job.state, gone_reason(attempt) if attempt is not None and is_over else "")


@dataclass(frozen=True, slots=True)
class _Case:
    """The job with the gates of all targets; `task_queue` None = the job has ended and its task queue is gone."""

    job: JobRecord
    scopes: JobScopes
    task_queue: TaskQueue | None
    gates: Mapping[QueueId, Gate]


def _judged(table: PublishedRoutes, case: _Case) -> Iterator[tuple[RouteOutline, tuple[RouteObstacle, ...]]]:
    barred = _unusable(ObstacleKind.CONSTRAINT, table.constraint)
    barred = barred or constraint_obstacles(table.constraint, case.scopes)
    barred += table_room_obstacles(sum(route.copies for route in table.routes), table.max_jobs)
    for route in table.routes:
        room = RouteCapacity(
            route.max_jobs, route.max_idle_jobs, route.copies, route.idle, route.throttled, route.closed
        )
        asked = _asked(route, case.scopes)
        yield route, (*barred, *asked, *room_obstacles(room), *_not_eligible(route, case))


def _asked(route: RouteOutline, scopes: JobScopes) -> list[RouteObstacle]:
    unusable = _unusable(ObstacleKind.REQUIREMENTS, route.requirements)
    if unusable:
        return unusable
    try:
        own = None if route.own is None else Ad.read(route.own)
    except InvalidClassAdError as error:
        return [RouteObstacle(ObstacleKind.REQUIREMENTS, f"the route's ad cannot be read here: {error}")]
    return requirements_obstacles(route.requirements, own, scopes)


def _unusable(kind: ObstacleKind, expression: str | None) -> list[RouteObstacle]:
    """Return why an expression cannot be evaluated here: a caller waits, so users' bounds apply to it."""
    try:
        if expression is not None:
            compile_bounded(expression)
    except InvalidClassAdError as error:
        return [RouteObstacle(kind, f"cannot be judged here: {error}")]
    return []


def _not_eligible(route: RouteOutline, case: _Case) -> list[RouteObstacle]:
    """Return why the target of the route does not admit the job: eligibility, bans, limits, throttles."""
    if case.task_queue is None:
        return []
    why = case.gates[queue_of_target(route.target)].obstacle(case.job, case.task_queue)
    return [RouteObstacle(ObstacleKind.NOT_ELIGIBLE, why)] if why else []
