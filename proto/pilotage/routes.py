"""Why a route does not take a job, for the job router and for explanations.

A route takes a job that satisfies the table's constraint and the route's requirements (only True counts), while the
route is open, below its limits and not throttled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from pilotage.classads.clauses import failing_clauses
from pilotage.classads.evaluation import Ad, compile_expression, evaluate, is_true
from pilotage.classads.library import AdValue


class ObstacleKind(StrEnum):
    """Why a route does not take a job."""

    CONSTRAINT = "constraint"
    REQUIREMENTS = "requirements"
    FULL = "full"
    IDLE_LIMIT = "idle limit"
    THROTTLED = "throttled"
    CLOSED = "closed"
    NOT_ELIGIBLE = "not eligible"


@dataclass(frozen=True, slots=True)
class RouteObstacle:
    """One reason why a route does not take a job; `why` has the clause, or the figures."""

    kind: ObstacleKind
    why: str


@dataclass(frozen=True, slots=True)
class JobScopes:
    """A job's ad as expressions see it: both MY and TARGET are the job."""

    my: Ad
    target: Ad

    @classmethod
    def of(cls, attributes: Mapping[str, AdValue]) -> Self:
        """Return the scopes of the job with these attributes; raises InvalidClassAdError."""
        ad = Ad(attributes)
        return cls(ad, ad.copy())  # the library does not take one ad as both


@dataclass(frozen=True, slots=True)
class RouteCapacity:
    """The limits and numbers of routed jobs of a route, in all and idle (None = no limit).

    `throttled` = why it gets no jobs for a while, as too many failed, "" = it does. `closed` = why it gets none for a
    reason of its own, "" = it is open.
    """

    max_jobs: int
    max_idle_jobs: int | None
    copies: int
    idle: int
    throttled: str
    closed: str = ""


def constraint_obstacles(constraint: str | None, job: JobScopes) -> list[RouteObstacle]:
    """Return the clauses of the table's constraint that are not true of the job; None = no constraint."""
    return _unfulfilled(ObstacleKind.CONSTRAINT, constraint, job.my, job.target)


def requirements_obstacles(requirements: str | None, route_ad: Ad | None, job: JobScopes) -> list[RouteObstacle]:
    """Return the clauses of a route's requirements that are not true.

    The requirements see the route's ad as MY if it has one, else (None) only the job.
    """
    return _unfulfilled(ObstacleKind.REQUIREMENTS, requirements, job.my if route_ad is None else route_ad, job.target)


def table_room_obstacles(copies: int, max_jobs: int | None) -> list[RouteObstacle]:
    """Return whether all routes together have reached the table's limit; None = no limit."""
    return _full(ObstacleKind.FULL, "of all routes", copies, max_jobs)


def room_obstacles(room: RouteCapacity) -> list[RouteObstacle]:
    """Return why a route takes no job at all now; empty = it takes jobs that satisfy its requirements."""
    found = _full(ObstacleKind.FULL, "on the route", room.copies, room.max_jobs)
    found += _full(ObstacleKind.IDLE_LIMIT, "do not run", room.idle, room.max_idle_jobs)
    if room.throttled:
        found.append(RouteObstacle(ObstacleKind.THROTTLED, room.throttled))
    if room.closed:
        found.append(RouteObstacle(ObstacleKind.CLOSED, room.closed))
    return found


def _unfulfilled(kind: ObstacleKind, expression: str | None, my: Ad, target: Ad) -> list[RouteObstacle]:
    if expression is None or is_true(evaluate(compile_expression(expression), my, target)):
        return []
    return [RouteObstacle(kind, str(clause)) for clause in failing_clauses(expression, my, target)]


def _full(kind: ObstacleKind, where: str, copies: int, most: int | None) -> list[RouteObstacle]:
    return [RouteObstacle(kind, f"{copies} of {most} copies {where}")] if most is not None and copies >= most else []
