"""A job router in virtual time, between a server and places in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pilotage.clock import Clock
from pilotage.errors import InvalidInputError, Violation
from pilotage.resources.tree import QueueId
from pilotage_agents.router.context import RouterContext
from pilotage_agents.router.core.model import RoutedJobState, RoutedJobStatus
from pilotage_agents.router.core.routed_job import SearchTimeouts
from pilotage_agents.router.core.routed_jobs import TrackedJobs
from pilotage_agents.router.core.table import QueueTarget, Target, Targets, target_key
from pilotage_agents.router.folder import RouterFolder
from pilotage_agents.router.hooks import HookSettings, RouteHooks
from pilotage_agents.router.ports import RoutedJobRequest
from pilotage_agents.router.router import JobRouter
from pilotage_agents.router.table_file import RouteSource, TableSettings
from pilotage_agents.router.targets import TargetPool
from pilotage_agents.router.tasks import BackgroundTasks
from support.fake_copy_target import FakeCopyTarget
from support.fake_router_link import FakeRouterLink
from support.virtual_clock import VirtualClock

LOOK_S = 10
ROUND_WAITS_S = 60.0
"""Long, so that hooks, which are real processes, end within the round on any machine."""
TARGET_TIMEOUT_S = 600.0
PATIENCE = SearchTimeouts(timedelta(seconds=600), timedelta(seconds=60))
NO_HOOKS = HookSettings({}, "", 10.0)
ROUTES = ("A", "B", "C", "D", "E")


def a_route(name: str = "A", requirements: str = "TARGET.WantJobRouter", **said: object) -> str:
    """Return a route as an ad; `said` are its other attributes, as ClassAd text."""
    more = "".join(f"  {attribute} = {value};\n" for attribute, value in said.items())
    return f'[ name = "{name}"; GridResource = "batch {name}"; Requirements = {requirements};\n{more}]\n'


def target_of(route: str) -> QueueTarget:
    """Return where a route goes to."""
    return QueueTarget(QueueId("SITE", "ce", route))


@dataclass
class ScenePlace(FakeCopyTarget):
    """A place where copies are idle until the test moves them."""

    def states(self) -> dict[RoutedJobState, int]:
        """Return how many copies there are in each state."""
        found = [status.state for status in self.statuses.values()]
        return {state: found.count(state) for state in set(found)}

    def move(
        self, state: RoutedJobState, *, of: RoutedJobState = RoutedJobState.IDLE, most: int = 10**9, **fields: Any
    ) -> int:
        """Let copies come from one state to another, so many at most; returns how many. `fields` are of the status."""
        found = [reference for reference, status in self.statuses.items() if status.state is of][:most]
        for reference in found:
            self.becomes(reference, replace(self.statuses[reference], state=state, **fields))
        return len(found)

    def finish(self, most: int = 10**9, exit_code: int = 0, **fields: Any) -> int:
        """Let idle copies run and end; returns how many."""
        return self.move(RoutedJobState.COMPLETED, most=most, exit_code=exit_code, **fields)

    def of_job(self, job_id: int) -> RoutedJobRequest:
        """Return the one copy of a job."""
        (found,) = [copy for copy in self.copies.values() if copy.job_id == job_id]
        return found

    def tell(self, job_id: int, state: RoutedJobState, **fields: Any) -> None:
        """Let the copy of a job come to a state."""
        self.becomes(f"ref:{self.of_job(job_id).name}", RoutedJobStatus(state, **fields))


class ScenePlaces:
    """Places by the names of their targets, made when they are first gone to; those in `closed` are not, and why."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.places: dict[str, ScenePlace] = {}
        self.closed: dict[str, str] = {}
        self._folder = folder
        self._clock = clock

    async def open(self, target: Target) -> ScenePlace:
        if (why := self.closed.get(str(target))) is not None:
            raise InvalidInputError(Violation(str(target), why))
        return self.at(str(target))

    def at(self, target: str) -> ScenePlace:
        """Return a place."""
        if target not in self.places:
            self.places[target] = ScenePlace(
                self._folder, lambda _: RoutedJobStatus(RoutedJobState.IDLE), clock=self._clock
            )
        return self.places[target]


class RouterScene:
    """The world of a router; `start` makes a router in it, as a start of the agent does."""

    def __init__(
        self, folder: Path, *routes: str, hooks: HookSettings = NO_HOOKS, round_waits_s: float = ROUND_WAITS_S
    ) -> None:
        self.clock = VirtualClock()
        self.link = FakeRouterLink()
        self.hooks = hooks
        self.round_waits_s = round_waits_s
        self.table = folder / "table.ads"
        self._left = folder / "left"
        self._left.mkdir()
        self._folder = folder
        self.places = ScenePlaces(self._left, self.clock)
        self.put_table(*(routes or (a_route(),)))
        self.router = self.start()

    def put_table(self, *routes: str) -> None:
        """Replace the table."""
        self.table.write_text("\n".join(routes))

    def change_table(self, *routes: str) -> None:
        """Replace the table in a way that is seen, whatever the clock of the file system is worth."""
        self.put_table(*routes, f"# at {self.clock()}")

    def start(self, *, link: Any = None, places: Any = None, folder: str = "router") -> JobRouter:
        """Return a new router, which knows what is in its folder and on the server."""
        kept = self.folder(folder)
        hooks = RouteHooks(self.hooks, kept.shared / "hooks")
        asked = TargetPool(places or self.places, self.clock, timeout_s=TARGET_TIMEOUT_S)
        errands = BackgroundTasks(self.round_waits_s)
        shared = RouterContext("jobrouter", TrackedJobs(), link or self.link, asked, hooks, self.clock, errands)
        source = RouteSource(TableSettings(self.table, (), None, _targets), self.clock)
        self.router = JobRouter(shared, source, kept, timedelta(seconds=LOOK_S), PATIENCE)
        return self.router

    def folder(self, name: str = "router") -> RouterFolder:
        """Return a folder for a router, made if it is not there."""
        kept = RouterFolder(self._folder / name, self._folder / "shared")
        kept.open()
        return kept

    async def rounds(self, count: int = 1, *, every_s: float = LOOK_S) -> None:
        """Let the router do rounds until it has nothing more to do at once, and time pass; so often."""
        for _ in range(count):
            while await self.router.run_once() == timedelta(0):
                pass
            self.clock.advance(seconds=every_s)

    def place(self, route: str = "A") -> ScenePlace:
        """Return the place that a route goes to."""
        return self.places.at(str(target_of(route)))

    def spread(self) -> Mapping[str, int]:
        """Return how many copies each route's place has."""
        return {route: len(self.place(route).copies) for route in ROUTES if self.place(route).copies}


def _targets() -> Targets:
    return Targets({}, {target_key(f"batch {route}"): target_of(route) for route in ROUTES})
