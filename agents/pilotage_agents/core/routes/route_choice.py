"""Which waiting jobs go along which routes now.

Rules
-----
First come, first served among the jobs that a route with room takes. A job that is chosen counts on its route at once,
so that no limit is passed within a round. Of several routes that a job may take each gets the next one in turn, counted
over all jobs, or the first in the table gets it (HTCondor's Job Router).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pilotage_agents.core.routes.backlog import Backlog
from pilotage_agents.core.routes.route_table import Route, RouteTable
from pilotage_agents.core.routes.routing import Occupancy, obstacles_to_all, taken_in_turn


@dataclass(frozen=True, slots=True)
class Choice:
    """A job and the route that it is to take."""

    job_id: int
    route: Route


def room_in_all(table: RouteTable, occupied: Mapping[str, Occupancy]) -> int | None:
    """Return how many more copies all routes together may have, None = any number."""
    copies = sum(each.copies for each in occupied.values())
    return None if table.max_jobs is None else max(0, table.max_jobs - copies)


def routes_with_room(
    table: RouteTable, occupied: Mapping[str, Occupancy], closed: Collection[str] = ()
) -> dict[str, Route]:
    """Return the routes that take jobs now, by name; `closed` are those that may not for another reason."""
    if room_in_all(table, occupied) == 0:
        return {}
    return {
        route.name: route
        for route in table.routes
        if route.name not in closed and not obstacles_to_all(route, occupied.get(route.name, Occupancy()))
    }


def changed_routes(before: RouteTable, after: RouteTable) -> frozenset[str]:
    """Return the names of the routes of a table that may make other copies than those of the table before it."""
    if _around(before) != _around(after):
        return frozenset(route.name for route in after.routes)
    known = {_maker(route) for route in before.routes}
    return frozenset(route.name for route in after.routes if _maker(route) not in known)


def _around(table: RouteTable) -> object:
    """Return what all copies get of a table."""
    return table.before, table.after, table.macros


def _maker(route: Route) -> tuple[object, ...]:
    """Return all of a route that its copies depend on."""
    goes = route.name, route.target, route.grid_resource, route.universe, route.shared_proxy
    return *goes, route.own is None, route.changes


class Chooser:
    """Chooses; it knows how many were chosen before, so that routes take turns over all jobs."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(
        self,
        backlog: Backlog,
        table: RouteTable,
        occupied: Mapping[str, Occupancy],
        closed: Collection[str],
        most: int,
    ) -> tuple[Choice, ...]:
        """Take at most so many of the backlog's judged jobs, each for a route that has room for it."""
        room = room_in_all(table, occupied)
        most = most if room is None else min(most, room)
        now = dict(occupied)
        open_routes = routes_with_room(table, occupied, closed)
        chosen: list[Choice] = []
        while len(chosen) < most and (candidate := backlog.first(open_routes.keys())) is not None:
            name = taken_in_turn(candidate.routes, round_robin=table.round_robin, turn=self._turn)
            self._turn += 1
            route = open_routes[name]
            backlog.take(candidate.job_id)
            chosen.append(Choice(candidate.job_id, route))
            now[name] = one_more(now.get(name, Occupancy()))
            if obstacles_to_all(route, now[name]):
                del open_routes[name]
        return tuple(chosen)


def one_more(occupancy: Occupancy) -> Occupancy:
    """Return what a route has with one more copy, which does not run yet."""
    rate = occupancy.rate and occupancy.rate.counted(sent=1)
    return replace(occupancy, copies=occupancy.copies + 1, idle=occupancy.idle + 1, rate=rate)
