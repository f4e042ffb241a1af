"""Route selection: which waiting jobs go along which routes now.

`RouteBacklog` holds the ids of waiting jobs in their order, grouped by the set of routes that each may take.
`RouteEvaluator` finds that set, and `RouteChooser` assigns jobs to routes with room.

Rules
-----
- First come, first served among the jobs that a route with room accepts.
- A chosen job counts on its route at once, so that a cycle exceeds no limit.
- If several routes accept a job, they take turns over all jobs, or the first of the table gets it (HTCondor's Job
  Router).
- A reserved job stays in the backlog until it is removed: it is not lost if the server's answer is.
- A job that changes returns to the end of the backlog. A new table keeps the order and evaluates all jobs again.
- Every attempt is kept by the server. So a route that could not make a job's routed job is closed to it, each time
  for longer, until the route changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from heapq import heappop, heappush, merge
from itertools import count, islice
from typing import Self, TypeVar

from pilotage.backoff import backoff
from pilotage.classads.evaluation import CURRENT_TIME, Ad, CompiledExpression, compile_expression, evaluate, is_true
from pilotage.classads.library import AdValue, Expression
from pilotage.classads.references import References, references
from pilotage.classads.text import ad_text
from pilotage.classads.tokens import with_time_from
from pilotage.routes import (
    JobScopes,
    RouteCapacity,
    RouteObstacle,
    constraint_obstacles,
    requirements_obstacles,
    room_obstacles,
    table_room_obstacles,
)
from pilotage.text import fold
from pilotage.values.routing import LeftOutRoute, PublishedRoutes, RouteOutline
from pilotage_agents.router.core.failure_rate import FailureRate
from pilotage_agents.router.core.fields import expression_text
from pilotage_agents.router.core.table import LONGEST_NAME, Route, RouteTable

_MAX_CLOSED = 50_000
"""The largest number of jobs with closed routes that are remembered."""

_CLOSED_FOR = timedelta(minutes=10), timedelta(days=1)
"""How long a route is closed to a job: the first time, and at most."""

_MAX_REFUSED = 100_000
"""The largest number of jobs whose refusals are remembered."""

_POSTPONED_FOR = timedelta(seconds=60), timedelta(minutes=10)
"""How long a job is postponed that the server refused: the first time, and at most."""


@dataclass(frozen=True, slots=True)
class RouteCandidate:
    """The next job, and those of its routes that have room, in the table's order."""

    job_id: int
    routes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Reserved:
    """A reserved job: its number, and the routes of its group."""

    number: int
    routes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _ClosedRoutes:
    """Routes that are closed to a job until a time at least; `times` counts the closings."""

    routes: tuple[str, ...]
    times: int
    until: datetime


class RouteBacklog:
    """Waiting jobs by id; each has a sequence number and belongs to one group of equal routes."""

    def __init__(self, job_ids: Iterable[int] = ()) -> None:
        self._numbers = count()
        self._unevaluated: OrderedDict[int, int] = OrderedDict()
        self._groups: dict[tuple[str, ...], OrderedDict[int, int]] = {}
        self._reserved: dict[int, _Reserved] = {}
        self._postponed: dict[int, datetime] = {}
        self._due: list[tuple[datetime, int, int]] = []
        self._refusals: OrderedDict[int, int] = OrderedDict()
        self._closed: OrderedDict[int, _ClosedRoutes] = OrderedDict()
        self._reopenings: list[tuple[datetime, int]] = []
        for job_id in job_ids:
            self.add(job_id)

    def __len__(self) -> int:
        """Return the number of waiting jobs."""
        return len(self._postponed) + len(self._reserved) + sum(map(len, self._all_groups()))

    def __iter__(self) -> Iterator[int]:
        """Yield the ids in their order, postponed ones last."""
        yield from (job for _, job in self._in_order())
        yield from self._postponed

    def add(self, job_id: int) -> None:
        """Add a waiting job at the end; a known one moves there."""
        self.remove(job_id)
        self._unevaluated[job_id] = next(self._numbers)

    def remove(self, job_id: int) -> None:
        """Remove a job, if it is there."""
        if self._postponed.pop(job_id, None) is not None or self._reserved.pop(job_id, None) is not None:
            return
        for group in self._all_groups():
            if group.pop(job_id, None) is not None:
                return

    def unevaluated(self, most: int) -> tuple[int, ...]:
        """Return the first jobs whose routes are not known."""
        return tuple(islice(self._unevaluated, most))

    def assign_routes(self, job_id: int, routes: tuple[str, ...]) -> None:
        """Assign its routes, in the table's order, to a job that has not been evaluated."""
        number = self._unevaluated.pop(job_id)
        closing = self._closed.get(job_id)
        open_to_it = routes if closing is None else tuple(route for route in routes if route not in closing.routes)
        self._groups.setdefault(open_to_it, OrderedDict())[job_id] = number

    def close_route(self, job_id: int, route: str, now: datetime) -> None:
        """Close a route to a job, each time for longer."""
        closing = self._closed.pop(job_id, None) or _ClosedRoutes((), 0, now)
        until = now + backoff(closing.times + 1, *_CLOSED_FOR)
        self._closed[job_id] = _ClosedRoutes((*closing.routes, route), closing.times + 1, until)
        heappush(self._reopenings, (until, job_id))
        if len(self._closed) > _MAX_CLOSED:
            self._closed.popitem(last=False)

    def reevaluate_all(self) -> None:
        """Have all jobs evaluated again, as their routes may depend on the time."""
        self._unevaluated = OrderedDict((job, number) for number, job in list(self._in_order()))
        self._reserved.clear()
        self._groups.clear()

    def reserve(self, job_id: int) -> None:
        """Reserve the first job of a group until it is removed or released."""
        for routes, group in self._groups.items():
            if (number := group.pop(job_id, None)) is not None:
                self._reserved[job_id] = _Reserved(number, routes)
                return

    def release_reserved(self) -> None:
        """Return the reserved jobs that were not removed to their positions."""
        for job_id, reserved in sorted(self._reserved.items(), key=lambda each: each[1].number, reverse=True):
            group = self._groups.setdefault(reserved.routes, OrderedDict())
            group[job_id] = reserved.number
            group.move_to_end(job_id, last=False)
        self._reserved.clear()

    def apply_table(self, changed: Collection[str]) -> None:
        """Have all jobs evaluated by another table, postponed ones too; open the changed routes."""
        while self._postponed:
            self.add(next(iter(self._postponed)))
        for job_id, closing in self._closed.items():
            self._closed[job_id] = replace(
                closing, routes=tuple(route for route in closing.routes if route not in changed)
            )
        self.reevaluate_all()

    def first(self, with_room: Set[str]) -> RouteCandidate | None:
        """Return the first evaluated job that may take one of these routes, None = there is none."""
        found: tuple[int, RouteCandidate] | None = None
        for routes, group in self._groups.items():
            open_routes = tuple(route for route in routes if route in with_room)
            if not open_routes or not group:
                continue
            job, number = next(iter(group.items()))
            if found is None or number < found[0]:
                found = number, RouteCandidate(job, open_routes)
        return found and found[1]

    def count_ready(self, with_room: Set[str]) -> int:
        """Return the number of evaluated jobs that may take one of these routes."""
        return sum(len(group) for routes, group in self._groups.items() if any(route in with_room for route in routes))

    def postpone(self, job_id: int, now: datetime) -> None:
        """Postpone a job that the server refused, each time for longer; then it returns to the end."""
        self.remove(job_id)
        times = self._refusals.pop(job_id, 0) + 1
        self._refusals[job_id] = times
        if len(self._refusals) > _MAX_REFUSED:
            self._refusals.popitem(last=False)
        until = now + backoff(times, *_POSTPONED_FOR)
        self._postponed[job_id] = until
        heappush(self._due, (until, next(self._numbers), job_id))

    def resume_due(self, now: datetime) -> None:
        """Return postponed jobs whose time has come, and jobs with a route that opens again."""
        while self._due and self._due[0][0] <= now:
            until, _, job_id = heappop(self._due)
            if self._postponed.get(job_id) == until:
                self.add(job_id)
        while self._reopenings and self._reopenings[0][0] <= now:
            until, job_id = heappop(self._reopenings)
            if (closing := self._closed.get(job_id)) is not None and closing.until == until:
                self._closed[job_id] = replace(closing, routes=())
                if job_id in self._groups.get((), ()):
                    self.add(job_id)

    def _all_groups(self) -> Sequence[OrderedDict[int, int]]:
        return (self._unevaluated, *self._groups.values())

    def _in_order(self) -> Iterator[tuple[int, int]]:
        """Yield sequence numbers and jobs in order, without postponed ones."""
        reserved = sorted((each.number, job) for job, each in self._reserved.items())
        return merge(reserved, *(((number, job) for job, number in group.items()) for group in self._all_groups()))


_CACHE_SIZE = 4096


@dataclass(frozen=True, slots=True)
class _Condition:
    """A condition on a job; `ad` holds it, None = the job's ad does.

    `refers_to` is what the result depends on. `key` is equal for conditions that have the same result for every job
    with plain values of these.
    """

    expression: CompiledExpression
    ad: Ad | None
    refers_to: References
    key: tuple[str, str]

    @classmethod
    def of(cls, text: str, attributes: Mapping[str, AdValue] | None) -> Self:
        """Return the condition, in an ad with these `attributes` or in that of the job (None)."""
        refers_to, used = _reference_closure(text, attributes or {})
        ad, key = (None, "") if attributes is None else (Ad(attributes), ad_text(used))
        return cls(compile_expression(text), ad, refers_to, (text, key))

    def holds(self, my: Ad, target: Ad) -> bool:
        """Return whether it is True for a job; both ads are the job's."""
        return is_true(evaluate(self.expression, self.ad or my, target))


class RouteEvaluator:
    """Finds the routes that a job may take, without regard to limits and without reasons.

    Equal conditions are evaluated once. Jobs with equal values of all attributes that the table refers to share one
    result, unless such an attribute is an expression and so refers to others.
    """

    def __init__(self, table: RouteTable, cache_size: int = _CACHE_SIZE) -> None:
        self._constraint = None if table.constraint is None else _Condition.of(table.constraint, None)
        conditions = ((route.requirements, route.own_attributes) for route in table.routes)
        self._routes = tuple(
            None if text is None else _Condition.of(text, attributes) for text, attributes in conditions
        )
        keys = [condition and condition.key for condition in self._routes]
        self._firsts = tuple(map(keys.index, keys))
        referenced = [condition.refers_to for condition in (self._constraint, *self._routes) if condition is not None]
        self._names = tuple(sorted(frozenset().union(*(each.in_my | each.target for each in referenced))))
        self._is_dynamic = any(each.is_dynamic for each in referenced)
        self._known: dict[tuple[str, ...], tuple[int, ...]] = {}
        self._most = cache_size

    @property
    def is_time_dependent(self) -> bool:
        """Whether the result for an unchanged job may change with the time."""
        return self._is_dynamic or fold(CURRENT_TIME) in self._names

    def matching_routes(self, job: Mapping[str, AdValue]) -> tuple[int, ...]:
        """Return the indexes in the table, from 0, of the routes that the job with these attributes may take, in order.

        There are none if it does not fulfil the table's constraint. Raises InvalidClassAdError for a value that no ad
        can hold.
        """
        folded = {fold(name): value for name, value in job.items()}
        seen = {name: folded[name] for name in self._names if name in folded}
        if self._is_dynamic or any(isinstance(value, Expression | Mapping | tuple) for value in seen.values()):
            return self._evaluate(job, range(len(self._routes)))
        key = tuple(map(repr, map(seen.get, self._names)))  # as text: in Python 1, 1.0 and True are equal
        if (known := self._known.get(key)) is not None:
            return known
        if len(self._known) >= self._most:
            del self._known[next(iter(self._known))]
        self._known[key] = found = self._evaluate(seen, self._firsts)
        return found

    def _evaluate(self, job: Mapping[str, AdValue], firsts: Sequence[int]) -> tuple[int, ...]:
        """Return the routes that the job may take; `firsts` has the index of the first equal condition of each."""
        my = Ad(job)
        target = my.copy()  # the library cannot use one ad as both
        if self._constraint is not None and not self._constraint.holds(my, target):
            return ()
        answers: list[bool] = []
        for first, condition in zip(firsts, self._routes, strict=True):
            known = first < len(answers)
            answers.append(answers[first] if known else condition is None or condition.holds(my, target))
        return tuple(index for index, may_take in enumerate(answers) if may_take)


def _reference_closure(text: str, attributes: Mapping[str, AdValue]) -> tuple[References, dict[str, AdValue]]:
    """Return the references of an expression, also through attributes of its ad, and which of these it uses."""
    unseen = {fold(name): (name, value) for name, value in attributes.items()}
    used: dict[str, AdValue] = {}
    found, waiting = References(), [text]
    while waiting:
        named = references(with_time_from(CURRENT_TIME, waiting.pop()))
        found |= named
        reached = dict(unseen.pop(name) for name in (named.in_my | named.target) & unseen.keys())
        used |= reached
        waiting += map(expression_text, reached.values())
    return found, dict(attributes) if found.is_dynamic else used


Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The routed jobs of a route, and those that do not run; `rate` None = nothing was sent there yet."""

    jobs: int = 0
    idle: int = 0
    rate: FailureRate | None = None


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """The decision of a route about a job; without obstacles it accepts the job."""

    route: Route
    obstacles: tuple[RouteObstacle, ...]

    @property
    def is_accepted(self) -> bool:
        """Whether the job may take this route now."""
        return not self.obstacles


def route_decisions(table: RouteTable, job: JobScopes, occupied: Mapping[str, Occupancy]) -> tuple[RouteDecision, ...]:
    """Return the decision of each route about the job, in order; `occupied` is by name of the route."""
    obstacles = constraint_obstacles(table.constraint, job)
    obstacles += table_room_obstacles(sum(each.jobs for each in occupied.values()), table.max_jobs)
    return tuple(
        RouteDecision(
            route, (*obstacles, *_refusal(route, job), *obstacles_to_all(route, occupied.get(route.name, Occupancy())))
        )
        for route in table.routes
    )


def chosen_route(decisions: Sequence[RouteDecision], *, round_robin: bool, turn: int) -> Route | None:
    """Return the route that the job takes, None = no route accepts it; `turn` counts the jobs routed before."""
    open_routes = [decision.route for decision in decisions if decision.is_accepted]
    if not open_routes:
        return None
    return pick_in_turn(open_routes, round_robin=round_robin, turn=turn)


def pick_in_turn(ways: Sequence[Item], *, round_robin: bool, turn: int) -> Item:
    """Return the way that a job takes of at least one."""
    return ways[turn % len(ways) if round_robin else 0]


def obstacles_to_all(route: Route, occupancy: Occupancy) -> list[RouteObstacle]:
    """Return why the route takes no job now; none = it takes what fulfils its requirements."""
    limits, rate = route.limits, occupancy.rate
    throttled = "" if rate is None else rate.obstacle
    return room_obstacles(
        RouteCapacity(limits.max_jobs, limits.max_idle_jobs, occupancy.jobs, occupancy.idle, throttled)
    )


def _refusal(route: Route, job: JobScopes) -> list[RouteObstacle]:
    attributes = None if route.own_attributes is None else Ad(route.own_attributes)
    return requirements_obstacles(route.requirements, attributes, job)


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """A job and the route that it is to take."""

    job_id: int
    route: Route


def total_room(table: RouteTable, occupied: Mapping[str, Occupancy]) -> int | None:
    """Return how many more routed jobs all routes together may have, None = no limit."""
    copies = sum(each.jobs for each in occupied.values())
    return None if table.max_jobs is None else max(0, table.max_jobs - copies)


def routes_with_room(
    table: RouteTable, occupied: Mapping[str, Occupancy], closed: Collection[str] = ()
) -> dict[str, Route]:
    """Return the routes that take jobs now, by name; `closed` are excluded for other reasons."""
    if total_room(table, occupied) == 0:
        return {}
    return {
        route.name: route
        for route in table.routes
        if route.name not in closed and not obstacles_to_all(route, occupied.get(route.name, Occupancy()))
    }


def changed_routes(before: RouteTable, after: RouteTable) -> frozenset[str]:
    """Return the routes whose routed jobs may differ from those of the table before."""
    if _shared_parts(before) != _shared_parts(after):
        return frozenset(route.name for route in after.routes)
    known = {_route_parts(route) for route in before.routes}
    return frozenset(route.name for route in after.routes if _route_parts(route) not in known)


def _shared_parts(table: RouteTable) -> object:
    """Return the parts of a table that all routed jobs depend on."""
    return table.before, table.after, table.macros


def _route_parts(route: Route) -> tuple[object, ...]:
    """Return the parts of a route that its routed jobs depend on."""
    goes = route.name, route.target, route.grid_resource, route.universe, route.shared_proxy
    return *goes, route.own_attributes is None, route.changes


class RouteChooser:
    """Chooses jobs for routes; its counter lets routes take turns over all jobs."""

    def __init__(self) -> None:
        self._count = 0

    def choose(
        self,
        backlog: RouteBacklog,
        table: RouteTable,
        occupied: Mapping[str, Occupancy],
        closed: Collection[str],
        most: int,
    ) -> tuple[RouteChoice, ...]:
        """Reserve at most `most` evaluated jobs of the backlog, each for a route with room."""
        room = total_room(table, occupied)
        most = most if room is None else min(most, room)
        now = dict(occupied)
        open_routes = routes_with_room(table, occupied, closed)
        chosen: list[RouteChoice] = []
        while len(chosen) < most and (candidate := backlog.first(open_routes.keys())) is not None:
            name = pick_in_turn(candidate.routes, round_robin=table.round_robin, turn=self._count)
            self._count += 1
            route = open_routes[name]
            backlog.reserve(candidate.job_id)
            chosen.append(RouteChoice(candidate.job_id, route))
            now[name] = with_one_more(now.get(name, Occupancy()))
            if obstacles_to_all(route, now[name]):
                del open_routes[name]
        return tuple(chosen)


def with_one_more(occupancy: Occupancy) -> Occupancy:
    """Return the occupancy with one more routed job, which does not run yet."""
    rate = occupancy.rate and occupancy.rate.counted(sent=1)
    return replace(occupancy, jobs=occupancy.jobs + 1, idle=occupancy.idle + 1, rate=rate)


_LONGEST_REASON = 10_000
"""The longest reason that is published."""


def published_table(table: RouteTable, occupied: Mapping[str, Occupancy], closed: Mapping[str, str]) -> PublishedRoutes:
    """Return the table for the server; `closed` has the routes that get no job for other reasons, by name.

    Routes with routed jobs that the table does not have, such as those of a former table, are among those left out.
    """
    return PublishedRoutes(
        tuple(
            _outline(route, occupied.get(route.name, Occupancy()), closed.get(route.name, "")) for route in table.routes
        ),
        table.constraint,
        table.max_jobs,
        tuple(_left_out(table, occupied)),
    )


def _left_out(table: RouteTable, occupied: Mapping[str, Occupancy]) -> Iterator[LeftOutRoute]:
    used = {route.name for route in table.routes}
    unused = {name: each for name, each in occupied.items() if each.jobs and name not in used}
    for route in table.left_out:
        name = route.name[:LONGEST_NAME]
        left = unused.pop(name, Occupancy())
        yield LeftOutRoute(name, route.reason[:_LONGEST_REASON], left.jobs, left.idle)
    for name, left in unused.items():
        yield LeftOutRoute(name, "it is no longer in the table", left.jobs, left.idle)


def _outline(route: Route, occupancy: Occupancy, closed: str) -> RouteOutline:
    rate = occupancy.rate.obstacle if occupancy.rate is not None else ""
    return RouteOutline(
        route.name,
        str(route.target),
        route.requirements,
        None if route.own_attributes is None else ad_text(route.own_attributes),
        route.limits.max_jobs,
        route.limits.max_idle_jobs,
        occupancy.jobs,
        occupancy.idle,
        rate,
        closed,
    )
