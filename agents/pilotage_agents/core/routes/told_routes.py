"""What the server is told of a router's routes, so that people can ask it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pilotage.classads import AdValue
from pilotage_agents.core.routes.route_table import LONGEST_NAME, Route, RouteTable
from pilotage_agents.core.routes.routing import Occupancy

_LONGEST_REASON = 10_000
"""So many characters of a reason are told."""


@dataclass(frozen=True, slots=True)
class ToldRoute:
    """A route as the server tells people of it; `throttled` "" = it is not, `closed` "" = it is open."""

    name: str
    target: str
    requirements: str | None
    own: Mapping[str, AdValue] | None
    max_jobs: int
    max_idle_jobs: int | None
    copies: int
    idle: int
    throttled: str
    closed: str


@dataclass(frozen=True, slots=True)
class ToldTable:
    """A router's table as the server tells people of it; `left_out` are names with reasons."""

    routes: tuple[ToldRoute, ...]
    constraint: str | None
    max_jobs: int | None
    left_out: tuple[tuple[str, str], ...]


def told_table(table: RouteTable, occupied: Mapping[str, Occupancy], closed: Mapping[str, str]) -> ToldTable:
    """Return what is told; `closed` has the routes that get no job for a reason of their own, by name."""
    return ToldTable(
        tuple(
            _told(route, occupied.get(route.name, Occupancy()), closed.get(route.name, "")) for route in table.routes
        ),
        table.constraint,
        table.max_jobs,
        tuple((each.name[:LONGEST_NAME], each.reason[:_LONGEST_REASON]) for each in table.left_out),
    )


def _told(route: Route, occupancy: Occupancy, closed: str) -> ToldRoute:
    rate = occupancy.rate.obstacle if occupancy.rate is not None else ""
    return ToldRoute(
        route.name,
        str(route.target),
        route.requirements,
        route.own,
        route.limits.max_jobs,
        route.limits.max_idle_jobs,
        occupancy.copies,
        occupancy.idle,
        rate,
        closed,
    )
