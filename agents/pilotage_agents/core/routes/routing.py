"""Which route a job takes, and why it does not take the others.

Rules
-----
What keeps a job from a route is said by `pilotage.route_verdicts`. A copy that does not run is idle, whatever else it
is. Of the routes that take a job, each gets the next one in turn, or the first in the table's order gets all
(HTCondor's Job Router).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pilotage.classad_evaluation import Ad
from pilotage.route_verdicts import (
    JobScopes,
    Obstacle,
    Room,
    constraint_obstacles,
    requirements_obstacles,
    room_obstacles,
    table_room_obstacles,
)
from pilotage_agents.core.failure_rate import FailureRate
from pilotage_agents.core.routes.route_table import Route, RouteTable

Way = TypeVar("Way")


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many copies a route has, and how many of them do not run; `rate` None = nothing was sent there yet."""

    copies: int = 0
    idle: int = 0
    rate: FailureRate | None = None


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
    barred = constraint_obstacles(table.constraint, job)
    barred += table_room_obstacles(_all_copies(occupied), table.max_jobs)
    return tuple(
        Verdict(
            route, (*barred, *_refusal(route, job), *obstacles_to_all(route, occupied.get(route.name, Occupancy())))
        )
        for route in table.routes
    )


def chosen(judged: Sequence[Verdict], *, round_robin: bool, turn: int) -> Route | None:
    """Return the route that the job takes, None = none takes it; `turn` counts the jobs that were routed before."""
    open_routes = [verdict.route for verdict in judged if verdict.takes_it]
    if not open_routes:
        return None
    return taken_in_turn(open_routes, round_robin=round_robin, turn=turn)


def taken_in_turn(ways: Sequence[Way], *, round_robin: bool, turn: int) -> Way:
    """Return which of the ways that a job may take, at least one, it takes."""
    return ways[turn % len(ways) if round_robin else 0]


def obstacles_to_all(route: Route, occupancy: Occupancy) -> list[Obstacle]:
    """Return why the route takes no job at all just now; none = it takes what fulfils its requirements."""
    limits, rate = route.limits, occupancy.rate
    throttled = "" if rate is None else rate.obstacle
    return room_obstacles(Room(limits.max_jobs, limits.max_idle_jobs, occupancy.copies, occupancy.idle, throttled))


def _refusal(route: Route, job: JobScopes) -> list[Obstacle]:
    own = None if route.own is None else Ad(route.own)
    return requirements_obstacles(route.requirements, own, job)


def _all_copies(occupied: Mapping[str, Occupancy]) -> int:
    return sum(occupancy.copies for occupancy in occupied.values())
