"""Routes: which jobs they take, how many, where to, and what they change in the copy that goes there.

Rules
-----
Both forms of a table (`route_ads`, `route_transforms`) come to these values. A malformed route refuses the whole table;
a route that can have no meaning here is left out of it and named with the reason, never dropped silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from pilotage.classads import AdValue
from pilotage.errors import InvalidInputError, Violation
from pilotage.folding import fold
from pilotage.resource_tree import QueueId

GRID, VANILLA, STANDARD = 9, 5, 1
"""Universes of the copies that a route may make: what a batch system runs."""

_UNIVERSE_NAMES = {7: "scheduler", 10: "java", 11: "parallel", 12: "local", 13: "vm"}


class InvalidRoutesError(InvalidInputError):
    """A route table is refused whole; the violations say which route, where, and what is wrong."""


@dataclass(frozen=True, slots=True)
class QueueTarget:
    """A queue of the resource tree, whose batch system the jobs are pushed into."""

    queue: QueueId

    def __str__(self) -> str:
        """Return it for people."""
        return f"queue {self.queue}"


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """Another Pilotage server; `addresses` are "host:port", in order."""

    addresses: tuple[str, ...]

    def __str__(self) -> str:
        """Return it for people."""
        return f"server {','.join(self.addresses)}"


Target = QueueTarget | ServerTarget


def target_named(text: str) -> Target:
    """Return the target that is shown to people as `text`; raises InvalidInputError."""
    kind, _, place = text.partition(" ")
    if kind == "queue":
        return QueueTarget(QueueId.parse(place))
    if kind == "server" and place:
        return ServerTarget(tuple(place.split(",")))
    raise InvalidInputError(Violation("target", f"{text} is neither a queue nor a server"))


@dataclass(frozen=True, slots=True)
class Targets:
    """Where routes go to: by the name of the route, else by its GridResource text; keys as `target_key` makes them."""

    routes: Mapping[str, Target]
    grid_resources: Mapping[str, Target]

    def of(self, route: Route) -> Target | None:
        """Return where `route` goes to, None = nothing says."""
        named = self.routes.get(target_key(route.name))
        return named or self.grid_resources.get(target_key(route.grid_resource))


def target_key(text: str) -> str:
    """Return a route's name or a GridResource as it is looked up: blanks and letter case tell none apart."""
    return fold(" ".join(text.split()))


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a route takes: copies in all, copies that do not run (None = any number), failures a second."""

    max_jobs: int = 100
    max_idle_jobs: int | None = 50
    failure_rate: float = 0.03


LONGEST_NAME = 500
"""So many characters may the name of a route have: the server takes no more."""


@dataclass(frozen=True, slots=True)
class Route:
    """One way that jobs may take; expressions are in the ClassAd language's own syntax.

    `requirements` None = any job. They see the job alone, unless the route is an ad: then `own` are its attributes,
    which are MY, the job being TARGET. `grid_resource` is empty where the route names none. `failure_test` says of a
    job that has ended whether it failed, None = none did. `changes` are statements of HTCondor's transform language, in
    the order in which they are made; `notes` are what a reader of the table should know. `shared_proxy` is the path of
    the X.509 proxy that its copies get, "" = none.
    """

    name: str
    requirements: str | None
    own: Mapping[str, AdValue] | None
    grid_resource: str
    universe: int
    limits: Limits
    failure_test: str | None = None
    edits_in_place: bool = False
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    target: Target | None = None
    shared_proxy: str = ""


@dataclass(frozen=True, slots=True)
class Transform:
    """Changes that every copy gets whose job fulfils `requirements`, None = each."""

    name: str
    requirements: str | None
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A route that is not used, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class RouteTable:
    """The routes in use, in their order, no two of one name, and those left out.

    `constraint`, seen by the job alone, is what every job must fulfil; `max_jobs` bounds the copies of all routes,
    None = by nothing. `before` and `after` are the transforms around each route's own changes; `macros` are those that
    the configuration knows, by names in lower case.
    """

    routes: tuple[Route, ...]
    left_out: tuple[LeftOut, ...] = ()
    constraint: str | None = None
    round_robin: bool = True
    max_jobs: int | None = None
    before: tuple[Transform, ...] = ()
    after: tuple[Transform, ...] = ()
    macros: Mapping[str, str] = field(default_factory=dict)

    def without_unusable(self) -> Self:
        """Return the table with the routes left out that can have no meaning here, whatever their target."""
        return self._judged([(route, _unusable(route, self.constraint)) for route in self.routes])

    def aimed(self, targets: Targets) -> Self:
        """Return the table with each route's target, and with those left out that have none."""
        aimed = [replace(route, target=targets.of(route)) for route in self.routes]
        return self._judged([(route, "" if route.target else _no_target(route)) for route in aimed])

    def _judged(self, judged: Iterable[tuple[Route, str]]) -> Self:
        judged = list(judged)
        return replace(
            self,
            routes=tuple(route for route, reason in judged if not reason),
            left_out=(*self.left_out, *(LeftOut(route.name, reason) for route, reason in judged if reason)),
        )


def _unusable(route: Route, constraint: str | None) -> str:
    """Return why a route can have no meaning here; empty = it can."""
    if len(route.name) > LONGEST_NAME:
        return f"its name has {len(route.name)} characters, and may have {LONGEST_NAME}"
    if route.edits_in_place:
        return "it edits jobs in place (EditJobInPlace), and makes no copy that could go anywhere"
    if route.universe not in (GRID, VANILLA, STANDARD):
        called = _UNIVERSE_NAMES.get(route.universe, "unknown here")
        return f"its copies are of universe {route.universe} ({called}), which no batch system runs"
    if route.requirements is None and constraint is None:
        return "it would take every job: it has no REQUIREMENTS, and there is no JOB_ROUTER_SOURCE_JOB_CONSTRAINT"
    return ""


def _no_target(route: Route) -> str:
    if route.grid_resource:
        return f'no target is configured for the route or for its GridResource "{route.grid_resource}"'
    return "no target is configured for the route, and it has no GridResource"
