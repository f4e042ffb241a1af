"""Which route a job takes, and why it does not take the others.

Rules
-----
A route takes a job that fulfils the table's constraint and the route's requirements (only what is True counts), while
the route is below its limits and not throttled. A copy that does not run is idle, whatever else it is. Of the routes
that take a job, each gets the next one in turn, or the first in the table's order gets all (HTCondor's Job Router).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from pilotage.classad_clauses import failing_clauses
from pilotage.classad_evaluation import Ad, compile_expression, evaluate, is_true
from pilotage.classads import AdValue
from pilotage_agents.core.failure_rate import FailureRate
from pilotage_agents.core.route_table import Route, RouteTable


class ObstacleKind(StrEnum):
    """What keeps a job from a route."""

    CONSTRAINT = "constraint"
    REQUIREMENTS = "requirements"
    FULL = "full"
    IDLE_LIMIT = "idle limit"
    THROTTLED = "throttled"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One thing that keeps a job from a route; `why` has the clause, or the figures."""

    kind: ObstacleKind
    why: str


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many copies a route has, and how many of them do not run; `rate` None = nothing was sent there yet."""

    copies: int = 0
    idle: int = 0
    rate: FailureRate | None = None


@dataclass(frozen=True, slots=True)
class JobScopes:
    """A job's ad as expressions see it: MY and TARGET, both the job."""

    my: Ad
    target: Ad

    @classmethod
    def of(cls, attributes: Mapping[str, AdValue]) -> Self:
        """Return the scopes of the job with these attributes; raises InvalidClassAdError."""
        ad = Ad(attributes)
        return cls(ad, ad.copy())  # one ad cannot be both for the library


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one route says to a job; without obstacles it takes it."""

    route: Route
    obstacles: tuple[Obstacle, ...]

    @property
    def takes_it(self) -> bool:
        """Whether the job may go this way now."""
        return not self.obstacles


def verdicts(table: RouteTable, job: JobScopes, occupied: Mapping[str, Occupancy]) -> tuple[Verdict, ...]:
    """Return what each route of the table says to the job, in order; `occupied` is by name of the route."""
    barred = _unfulfilled(ObstacleKind.CONSTRAINT, table.constraint, job.my, job.target)
    barred += _full(ObstacleKind.FULL, "of all routes", _all_copies(occupied), table.max_jobs)
    return tuple(
        Verdict(route, (*barred, *_refusal(route, job), *_occupation(route, occupied.get(route.name, Occupancy()))))
        for route in table.routes
    )


def chosen(judged: Sequence[Verdict], *, round_robin: bool, turn: int) -> Route | None:
    """Return the route that the job takes, None = none takes it; `turn` counts the jobs that were routed before."""
    open_routes = [verdict.route for verdict in judged if verdict.takes_it]
    if not open_routes:
        return None
    return open_routes[turn % len(open_routes) if round_robin else 0]


def _refusal(route: Route, job: JobScopes) -> list[Obstacle]:
    """Return what is not true of the route's requirements: those of an ad see it as MY, others the job alone."""
    my = job.my if route.own is None else Ad(route.own)
    return _unfulfilled(ObstacleKind.REQUIREMENTS, route.requirements, my, job.target)


def _unfulfilled(kind: ObstacleKind, expression: str | None, my: Ad, target: Ad) -> list[Obstacle]:
    if expression is None or is_true(evaluate(compile_expression(expression), my, target)):
        return []
    return [Obstacle(kind, str(clause)) for clause in failing_clauses(expression, my, target)]


def _occupation(route: Route, occupancy: Occupancy) -> list[Obstacle]:
    limits = route.limits
    found = _full(ObstacleKind.FULL, "on the route", occupancy.copies, limits.max_jobs)
    found += _full(ObstacleKind.IDLE_LIMIT, "do not run", occupancy.idle, limits.max_idle_jobs)
    if occupancy.rate is not None and occupancy.rate.obstacle:
        found.append(Obstacle(ObstacleKind.THROTTLED, occupancy.rate.obstacle))
    return found


def _full(kind: ObstacleKind, where: str, copies: int, most: int | None) -> list[Obstacle]:
    return [Obstacle(kind, f"{copies} of {most} copies {where}")] if most is not None and copies >= most else []


def _all_copies(occupied: Mapping[str, Occupancy]) -> int:
    return sum(occupancy.copies for occupancy in occupied.values())
