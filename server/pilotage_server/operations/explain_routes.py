"""ExplainRoutes: what the routes of all routers say to one job, from what the routers have last told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pilotage.classad_evaluation import Ad, bounded
from pilotage.classads import InvalidClassAdError
from pilotage.resource_tree import QueueId
from pilotage.route_verdicts import (
    JobScopes,
    Obstacle,
    ObstacleKind,
    Room,
    constraint_obstacles,
    requirements_obstacles,
    room_obstacles,
    table_room_obstacles,
)
from pilotage_server.core.identity import Identity
from pilotage_server.core.job_ads import full_job_ad
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.leases import gone_reason
from pilotage_server.core.route_tables import RouteOutline, RouteTable
from pilotage_server.core.routes import CopyRecord, place_of
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.operations.copies import OpenCopy
from pilotage_server.operations.query_jobs import visible_job
from pilotage_server.operations.route_gates import Gate, gates_to_look_at
from pilotage_server.operations.route_jobs import why_not_waiting
from pilotage_server.operations.task_queueing import task_queues_of
from pilotage_server.operations.world import World
from pilotage_server.storage.attempts import load_attempts
from pilotage_server.storage.copies import last_copy
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.routers import load_routers
from pilotage_server.storage.templates import load_description


@dataclass(frozen=True, slots=True)
class RouteVerdict:
    """What one route of a router says to a job; without obstacles it takes it."""

    router: str
    route: RouteOutline
    obstacles: tuple[Obstacle, ...]


@dataclass(frozen=True, slots=True)
class RoutesExplained:
    """What all routes say to a job.

    `copy` was made of it last, None = none is known. `obstacle` is what keeps it from every route, "" = nothing.
    """

    verdicts: tuple[RouteVerdict, ...]
    copy: OpenCopy | None
    obstacle: str


def explain_routes(unit: Unit, world: World, identity: Identity, job_id: int) -> RoutesExplained:
    """Return what every route says to a job; raises NotFoundError for one that the caller cannot see."""
    job = visible_job(unit, identity, job_id)
    description = load_description(unit.session, job.template_id)
    scopes = JobScopes.of(full_job_ad(job, description, unit.now))
    task_queue = task_queues_of(unit, world, {job.task_queue_id}).get(job.task_queue_id)
    routers = load_routers(unit.session)
    places = {place_of(route.target) for told in routers for route in told.table.routes} if task_queue else ()
    case = _Case(job, scopes, task_queue, gates_to_look_at(unit, world, places))
    verdicts = tuple(
        RouteVerdict(told.router, route, obstacles)
        for told in routers
        for route, obstacles in _judged(told.table, case)
    )
    copy = last_copy(unit.session, job_id)
    return RoutesExplained(verdicts, copy and _shown(unit, copy, job), why_not_waiting(job_id, job))


def _shown(unit: Unit, copy: CopyRecord, job: JobRecord) -> OpenCopy:
    attempt = load_attempts(unit.session, [copy.key]).get(copy.key)
    is_over = attempt is not None and attempt.ended is not None
    return OpenCopy(copy, job.state, gone_reason(attempt) if attempt is not None and is_over else "")


@dataclass(frozen=True, slots=True)
class _Case:
    """The job that is judged, with the gates of all places; `task_queue` None = it is over, and that is gone."""

    job: JobRecord
    scopes: JobScopes
    task_queue: TaskQueue | None
    gates: Mapping[QueueId, Gate]


def _judged(table: RouteTable, case: _Case) -> Iterator[tuple[RouteOutline, tuple[Obstacle, ...]]]:
    barred = _unusable(ObstacleKind.CONSTRAINT, table.constraint)
    barred = barred or constraint_obstacles(table.constraint, case.scopes)
    barred += table_room_obstacles(sum(route.copies for route in table.routes), table.max_jobs)
    for route in table.routes:
        room = Room(route.max_jobs, route.max_idle_jobs, route.copies, route.idle, route.throttled, route.closed)
        asked = _asked(route, case.scopes)
        yield route, (*barred, *asked, *room_obstacles(room), *_not_eligible(route, case))


def _asked(route: RouteOutline, scopes: JobScopes) -> list[Obstacle]:
    unusable = _unusable(ObstacleKind.REQUIREMENTS, route.requirements)
    if unusable:
        return unusable
    try:
        own = None if route.own is None else Ad.read(route.own)
    except InvalidClassAdError as error:
        return [Obstacle(ObstacleKind.REQUIREMENTS, f"the route's ad cannot be read here: {error}")]
    return requirements_obstacles(route.requirements, own, scopes)


def _unusable(kind: ObstacleKind, expression: str | None) -> list[Obstacle]:
    """Return why an expression cannot be evaluated here: who asks waits for it, so that it is bounded as users' are."""
    try:
        if expression is not None:
            bounded(expression)
    except InvalidClassAdError as error:
        return [Obstacle(kind, f"cannot be judged here: {error}")]
    return []


def _not_eligible(route: RouteOutline, case: _Case) -> list[Obstacle]:
    """Return what the tree and its operators have against the job where the route leads to."""
    if case.task_queue is None:
        return []
    why = case.gates[place_of(route.target)].obstacle(case.job, case.task_queue)
    return [Obstacle(ObstacleKind.NOT_ELIGIBLE, why)] if why else []
