"""What the server is told of a router's routes, so that people can ask it."""

from __future__ import annotations

from collections.abc import Mapping

from pilotage_agents.core.routes.route_table import LONGEST_NAME, Route, RouteTable
from pilotage_agents.core.routes.routing import Occupancy
from pilotage_agents.router.route_edges import ToldRoute, ToldTable

_LONGEST_REASON = 10_000
"""So many characters of a reason are told."""


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
        closed or rate,
    )
