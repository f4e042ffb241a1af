"""The route table: which jobs a route takes, how many, its target, and its changes to the job's ad.

Rules
-----
- Both forms of a table (`classad_tables`, `transforms`) are read into these values.
- A malformed route rejects the whole table. A route that is not supported is left out and listed with the reason, never
  dropped silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from pilotage.classads.library import AdValue
from pilotage.errors import InvalidInputError, Violation
from pilotage.resources.tree import QueueId
from pilotage.text import fold

GRID, VANILLA, STANDARD = 9, 5, 1
"""The universes that a batch system can run."""

_UNIVERSE_NAMES = {7: "scheduler", 10: "java", 11: "parallel", 12: "local", 13: "vm"}


class InvalidRoutesError(InvalidInputError):
    """A route table is rejected as a whole; the violations name the route, the place and the fault."""


@dataclass(frozen=True, slots=True)
class QueueTarget:
    """A queue of the resource tree; jobs are submitted to its batch system."""

    queue: QueueId

    def __str__(self) -> str:
        """Return the text form that `parse_target` reads."""
        return f"queue {self.queue}"


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """Another Pilotage server; `addresses` are "host:port", in order."""

    addresses: tuple[str, ...]

    def __str__(self) -> str:
        """Return the text form that `parse_target` reads."""
        return f"server {','.join(self.addresses)}"


Target = QueueTarget | ServerTarget


def parse_target(text: str) -> Target:
    """Return the target that a text names; raises InvalidInputError."""
    scheme, _, rest = text.partition(" ")
    if scheme == "queue":
        return QueueTarget(QueueId.parse(rest))
    if scheme == "server" and rest:
        return ServerTarget(tuple(rest.split(",")))
    raise InvalidInputError(Violation("target", f"{text} is neither a queue nor a server"))


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets of routes, by the route's name, else by its GridResource; keys are made by `target_key`."""

    routes: Mapping[str, Target]
    grid_resources: Mapping[str, Target]

    def of(self, route: Route) -> Target | None:
        """Return the target of `route`, None = none is configured."""
        named = self.routes.get(target_key(route.name))
        return named or self.grid_resources.get(target_key(route.grid_resource))


def target_key(text: str) -> str:
    """Return a route's name or a GridResource as a key: blanks and letter case do not matter."""
    return fold(" ".join(text.split()))


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """Limits of a route: routed jobs, routed jobs that do not run (None = no limit), failures a second."""

    max_jobs: int = 100
    max_idle_jobs: int | None = 50
    failure_rate: float = 0.03


LONGEST_NAME = 500
"""The longest name of a route; the server accepts no longer one."""


@dataclass(frozen=True, slots=True)
class Route:
    """A route; expressions are in the ClassAd language's own syntax.

    `requirements` None = any job. They see the job alone, unless the route is an ad: then MY is `own_attributes` and
    TARGET the job. `grid_resource` is empty if the route names none. `failure_test` decides whether an ended job counts
    as failed, None = none does. `changes` are statements of HTCondor's transform language, in order. `notes` are hints
    for a reader of the table. `shared_proxy` is the path of the X.509 proxy that all its routed jobs get, "" = none.
    """

    name: str
    requirements: str | None
    own_attributes: Mapping[str, AdValue] | None
    grid_resource: str
    universe: int
    limits: RouteLimits
    failure_test: str | None = None
    edits_in_place: bool = False
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    target: Target | None = None
    shared_proxy: str = ""


@dataclass(frozen=True, slots=True)
class RouteTransform:
    """Changes to every routed job whose original fulfils `requirements`, None = all."""

    name: str
    requirements: str | None
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A route that is not used, with the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class RouteTable:
    """The usable routes in order, with unique names, and those left out.

    `constraint` sees the job alone, and every job must fulfil it. `max_jobs` limits the routed jobs of all routes, None
    = no limit. `before` and `after` are the transforms around each route's own changes. `macros` are those of the
    configuration, by names in lower case.
    """

    routes: tuple[Route, ...]
    left_out: tuple[LeftOut, ...] = ()
    constraint: str | None = None
    round_robin: bool = True
    max_jobs: int | None = None
    before: tuple[RouteTransform, ...] = ()
    after: tuple[RouteTransform, ...] = ()
    macros: Mapping[str, str] = field(default_factory=dict)

    def without_unusable(self) -> Self:
        """Return the table without the routes that are not supported, whatever their target."""
        return self._split([(route, _unusable(route, self.constraint)) for route in self.routes])

    def with_targets(self, targets: Targets) -> Self:
        """Return the table with the target of each route, without those that have none."""
        routes = [replace(route, target=targets.of(route)) for route in self.routes]
        return self._split([(route, "" if route.target else _no_target(route)) for route in routes])

    def _split(self, checked: Iterable[tuple[Route, str]]) -> Self:
        checked = list(checked)
        return replace(
            self,
            routes=tuple(route for route, reason in checked if not reason),
            left_out=(*self.left_out, *(LeftOut(route.name, reason) for route, reason in checked if reason)),
        )


def _unusable(route: Route, constraint: str | None) -> str:
    """Return why a route is not supported; empty = it is."""
    if len(route.name) > LONGEST_NAME:
        return f"its name has {len(route.name)} characters, and may have {LONGEST_NAME}"
    if route.edits_in_place:
        return "it edits jobs in place (EditJobInPlace), and so makes no job for a target"
    if route.universe not in (GRID, VANILLA, STANDARD):
        called = _UNIVERSE_NAMES.get(route.universe, "unknown here")
        return f"its jobs are of universe {route.universe} ({called}), which no batch system runs"
    if route.requirements is None and constraint is None:
        return "it would take every job: it has no REQUIREMENTS, and there is no JOB_ROUTER_SOURCE_JOB_CONSTRAINT"
    return ""


def _no_target(route: Route) -> str:
    if route.grid_resource:
        return f'no target is configured for the route or for its GridResource "{route.grid_resource}"'
    return "no target is configured for the route, and it has no GridResource"
