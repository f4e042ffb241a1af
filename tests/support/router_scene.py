"""A job router in virtual time, between a server and targets in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from pilotage.classads.library import AdValue
from pilotage.clock import Clock
from pilotage.errors import (
    FeedPositionLostError,
    InvalidInputError,
    LeadershipLostError,
    ServerUnreachableError,
    Violation,
)
from pilotage.job_description import InputFile, JobDescription, Value
from pilotage.jobs.report_limits import attributes_fault
from pilotage.resources.tree import QueueId
from pilotage.text import text_fault
from pilotage.values.routing import NewRoutedJob, PublishedRoutes, RoutableJob, UnwantedRoutedJob
from pilotage_agents.router.context import RouterContext
from pilotage_agents.router.core.model import (
    CollectedFile,
    ListedRoutedJob,
    RoutedJobOutcome,
    RoutedJobReport,
    RoutedJobState,
    RoutedJobStatus,
)
from pilotage_agents.router.core.routed_job import SearchTimeouts
from pilotage_agents.router.core.routed_jobs import TrackedJobs
from pilotage_agents.router.core.table import QueueTarget, Target, Targets, target_key
from pilotage_agents.router.folder import RouterFolder
from pilotage_agents.router.hooks import HookKind, HookSettings, RouteHooks
from pilotage_agents.router.ports import (
    FindAnswer,
    InputFiles,
    JobMoved,
    NotRouted,
    Routed,
    RoutedJobAnswer,
    RoutedJobReportAnswer,
    RoutedJobRequest,
    RouterFeedPage,
)
from pilotage_agents.router.router import JobRouter
from pilotage_agents.router.table_file import RouteSource, TableSettings
from pilotage_agents.router.target_pool import TargetPool
from pilotage_agents.router.tasks import BackgroundTasks, report_progress
from support.routed_job_targets import FakeTarget
from support.virtual_clock import LoopTime, VirtualClock

KEYWORD = "STAGING"


CYCLE_S = 10
CYCLE_WAIT_S = 60.0
"""Long enough for hooks, which are real processes, to end within the cycle."""
TARGET_TIMEOUT_S = 600.0
SEARCH_TIMEOUTS = SearchTimeouts(timedelta(seconds=600), timedelta(seconds=60))

_PAGE = 1000
_ENDED = ("DONE", "FAILED", "REMOVED")


@dataclass
class FakeJob:
    """A job of the fake server; `holder` is the attempt that the router holds, `plugged` the last plugged one.

    `hook_attributes` are the reported attributes of its hooks, one mapping for each report.
    """

    job_id: int
    ad: dict[str, AdValue]
    executable: str
    state: str = "WAITING"
    reason: str = ""
    attempt: int = 0
    holder: int = 0
    copy: NewRoutedJob | None = None
    reference: str = ""
    node: str = ""
    unwanted: str = ""
    plugged: int = 0
    outcomes: list[RoutedJobOutcome] = field(default_factory=list)
    output: dict[str, bytes] = field(default_factory=dict)
    hook_attributes: list[Mapping[str, Value]] = field(default_factory=list)
    history: list[str] = field(default_factory=list)

    @property
    def routable(self) -> RoutableJob:
        description = JobDescription(self.executable, attributes={})
        ad = {"ClusterId": self.job_id, "ProcId": 0, "Owner": "ann", **self.ad}
        return RoutableJob(self.job_id, self.state, ad, description, "ann", "sky", "grp")

    @property
    def shown(self) -> Mapping[str, AdValue]:
        """The ad as users see it."""
        return {**(self.hook_attributes[-1] if self.hook_attributes else {}), **self.routable.ad}

    @property
    def known(self) -> ListedRoutedJob:
        assert self.copy is not None
        is_running = self.state == "RUNNING"
        place = (self.copy.route, self.copy.target, self.reference)
        return ListedRoutedJob(self.job_id, self.holder, *place, self.unwanted, is_running)


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class FakeRouterLink:
    """A server in memory with jobs.

    - `refuses` are the reasons why no job of a route is given to the router, by the name of the route; the jobs
      `unroutable_jobs` are not given for any route.
    - Reports of the jobs `malformed_jobs` are malformed, and those for which `find_fault` returns a fault.
    - `calls` records the names of the calls in order, `looked_at` counts the loaded jobs.
    """

    jobs: dict[int, FakeJob] = field(default_factory=dict)
    events: list[JobMoved] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    published: list[PublishedRoutes] = field(default_factory=list)
    refuses: dict[str, str] = field(default_factory=dict)
    unroutable_jobs: Collection[int] = ()
    malformed_jobs: Collection[int] = ()
    find_fault: Callable[[RoutedJobReport], str] = lambda _: ""
    is_reachable: bool = True
    is_leader: bool = True
    looked_at: int = 0
    read: int = 0
    uploads_allowed: asyncio.Event = field(default_factory=_set_event)
    _answers: dict[str, object] = field(default_factory=dict)
    _ids: count[int] = field(default_factory=lambda: count(1))

    def submit(self, jobs: int = 1, *, executable: str = "simulate", **ad: AdValue) -> list[int]:
        """Add waiting jobs; returns their ids."""
        ids = [next(self._ids) for _ in range(jobs)]
        for job_id in ids:
            self.jobs[job_id] = FakeJob(job_id, dict(ad), executable)
            self._moved(self.jobs[job_id], "WAITING", "submitted")
        return ids

    def remove(self, job_id: int) -> None:
        self._taken_away(job_id, "REMOVED", "removed by ann")

    def hold(self, job_id: int) -> None:
        self._taken_away(job_id, "HELD", "held by ann")

    def release(self, job_id: int) -> None:
        self._moved(self.jobs[job_id], "WAITING", "released")

    def take(self, job_id: int) -> None:
        """Match a job to a pilot."""
        self._moved(self.jobs[job_id], "MATCHED", "matched")

    def states(self) -> dict[str, int]:
        """Return the number of jobs in each state."""
        states = [job.state for job in self.jobs.values()]
        return {state: states.count(state) for state in sorted(set(states))}

    async def next_events(self, after: int) -> RouterFeedPage:
        self._called("next_events")
        if after > len(self.events):  # as after the restore of a backup
            raise FeedPositionLostError(after, len(self.events), "it is lost")
        page = self.events[after : after + _PAGE]
        self.read += len(page)
        return RouterFeedPage(tuple(page), after + len(page))

    async def load_jobs(self, job_ids: Sequence[int]) -> tuple[RoutableJob, ...]:
        self._called("look_at")
        self.looked_at += len(job_ids)
        return tuple(self.jobs[job_id].routable for job_id in job_ids if job_id in self.jobs)

    async def route(self, request: str, copies: Sequence[NewRoutedJob]) -> tuple[Routed | NotRouted, ...]:
        self._called("route", in_turn=True)
        return self._once(request, lambda: tuple(self._route(copy) for copy in copies))  # type: ignore[return-value]

    async def report(self, request: str, reports: Sequence[RoutedJobReport]) -> RoutedJobReportAnswer:
        self._called("report", in_turn=True)
        return self._once(request, lambda: self._reported(reports))  # type: ignore[return-value]

    async def upload(self, files: Sequence[CollectedFile]) -> None:
        if files:
            self._called("bring")
        await self.uploads_allowed.wait()

    async def routed_jobs(self) -> tuple[ListedRoutedJob, ...]:
        self._called("copies")
        return tuple(job.known for job in self.jobs.values() if job.holder)

    async def publish_routes(self, table: PublishedRoutes) -> None:
        self._called("tell_routes", in_turn=True)
        self.published.append(table)

    async def fetch(self, job_id: int, file: InputFile, to: Path) -> None:
        del job_id, file, to
        self._called("fetch")

    def _called(self, name: str, *, in_turn: bool = False) -> None:
        self.calls.append(name)
        if not self.is_reachable:
            raise ServerUnreachableError("the server does not answer")
        if in_turn and not self.is_leader:
            raise LeadershipLostError("job router")

    def _once(self, request: str, operation: object) -> object:
        if request not in self._answers:
            self._answers[request] = operation()  # type: ignore[operator]
        return self._answers[request]

    def _route(self, copy: NewRoutedJob) -> Routed | NotRouted:
        job = self.jobs.get(copy.job_id)
        if job is None or job.state != "WAITING":
            return NotRouted(copy.job_id, "it does not wait")
        if job.holder:
            return NotRouted(copy.job_id, "an earlier attempt is not over")
        if copy.job_id in self.unroutable_jobs:
            return NotRouted(copy.job_id, "its VO may not use the queue")
        if copy.route in self.refuses:
            return NotRouted(copy.job_id, self.refuses[copy.route])
        job.attempt += 1
        job.holder, job.copy, job.reference, job.unwanted, job.hook_attributes = job.attempt, copy, "", "", []
        self._moved(job, "MATCHED", "routed")
        return Routed(copy.job_id, job.attempt)

    def _reported(self, reports: Sequence[RoutedJobReport]) -> RoutedJobReportAnswer:
        refused, malformed = {}, {}
        for report in reports:
            job = self.jobs[report.job_id]
            if (fault := text_fault(report.node)) or report.job_id in self.malformed_jobs:
                malformed[report.job_id, report.attempt] = f"node: {fault or 'cannot be read'}"
            elif fault := attributes_fault(report.attributes):
                malformed[report.job_id, report.attempt] = f"attributes: {fault}"
            elif fault := self.find_fault(report):
                malformed[report.job_id, report.attempt] = fault
            elif job.holder != report.attempt:
                if report.state:
                    refused[report.job_id, report.attempt] = "it is over"
            else:
                self._apply_report(job, report)
        unwanted = [job for job in self.jobs.values() if job.holder and job.unwanted]
        to_stop = tuple(UnwantedRoutedJob(job.job_id, job.holder, job.unwanted) for job in unwanted)
        return RoutedJobReportAnswer(refused, to_stop, malformed)

    def _apply_report(self, job: FakeJob, report: RoutedJobReport) -> None:
        job.reference, job.node = report.reference or job.reference, report.node or job.node
        if report.attributes:
            job.hook_attributes.append(report.attributes)
        if report.held and not job.unwanted:
            self._taken_away(job.job_id, "HELD", report.held)
        if report.outcome is not None:
            self._ended(job, report.outcome)
        elif report.state and not job.unwanted and report.state != job.state:
            self._moved(job, report.state, "reported")
        if report.plugged is not None and job.plugged != report.attempt:
            job.plugged = report.attempt
            self._moved(job, job.state, "plugged")

    def _ended(self, job: FakeJob, outcome: RoutedJobOutcome) -> None:
        try:
            job.output |= {file.name: Path(file.path).read_bytes() for file in outcome.files}
        except OSError as error:
            outcome = replace(outcome, outcome="OUTPUT_LOST", reason=f"the output is lost: {error}")
        job.outcomes.append(outcome)
        job.holder = 0
        if job.unwanted:
            return
        if outcome.outcome == "EXITED":
            self._moved(job, "FAILED" if outcome.status.exit_code else "DONE", outcome.reason)
        elif outcome.outcome == "REFUSED_BY_JOB":
            self._moved(job, "FAILED", outcome.reason)
        else:
            self._moved(job, "WAITING", outcome.reason)

    def _taken_away(self, job_id: int, state: str, reason: str) -> None:
        job = self.jobs[job_id]
        if job.holder:
            job.unwanted = reason
        self._moved(job, state, reason)

    def _moved(self, job: FakeJob, state: str, reason: str) -> None:
        job.state, job.reason = state, reason
        job.history.append(state)
        self.events.append(JobMoved(job.job_id, state, reason))


NO_HOOKS = HookSettings({}, "", 10.0)
ROUTES = ("A", "B", "C", "D", "E")


def a_route(name: str = "A", requirements: str = "TARGET.WantJobRouter", **attributes: object) -> str:
    """Return a route as an ad; `attributes` are other attributes as ClassAd text."""
    more = "".join(f"  {attribute} = {value};\n" for attribute, value in attributes.items())
    return f'[ name = "{name}"; GridResource = "batch {name}"; Requirements = {requirements};\n{more}]\n'


def target_of(route: str) -> QueueTarget:
    """Return the target of a route."""
    return QueueTarget(QueueId("SITE", "ce", route))


@dataclass
class ManualTarget(FakeTarget):
    """A target where routed jobs stay idle until the test moves them."""

    def states(self) -> dict[RoutedJobState, int]:
        """Return the number of routed jobs in each state."""
        found = [status.state for status in self.statuses.values()]
        return {state: found.count(state) for state in set(found)}

    def move(
        self, state: RoutedJobState, *, of: RoutedJobState = RoutedJobState.IDLE, most: int = 10**9, **fields: Any
    ) -> int:
        """Move at most `most` routed jobs from the state `of`; returns how many. `fields` are of the new status."""
        found = [reference for reference, status in self.statuses.items() if status.state is of][:most]
        for reference in found:
            self.set_status(reference, replace(self.statuses[reference], state=state, **fields))
        return len(found)

    def finish(self, most: int = 10**9, exit_code: int = 0, **fields: Any) -> int:
        """Complete idle routed jobs; returns how many."""
        return self.move(RoutedJobState.COMPLETED, most=most, exit_code=exit_code, **fields)

    def of_job(self, job_id: int) -> RoutedJobRequest:
        """Return the only routed job of a job."""
        (found,) = [copy for copy in self.copies.values() if copy.job_id == job_id]
        return found

    def set_state(self, job_id: int, state: RoutedJobState, **fields: Any) -> None:
        """Set the state of the routed job of a job."""
        self.set_status(f"ref:{self.of_job(job_id).name}", RoutedJobStatus(state, **fields))


class ManualTargets:
    """Targets by name, created when they are first opened; `closed` maps others to the reason why they cannot be."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.targets: dict[str, ManualTarget] = {}
        self.closed: dict[str, str] = {}
        self._folder = folder
        self._clock = clock

    async def open(self, target: Target) -> ManualTarget:
        if (why := self.closed.get(str(target))) is not None:
            raise InvalidInputError(Violation(str(target), why))
        return self.at(str(target))

    def at(self, target: str) -> ManualTarget:
        """Return a target by name."""
        if target not in self.targets:
            self.targets[target] = ManualTarget(
                self._folder, lambda _: RoutedJobStatus(RoutedJobState.IDLE), clock=self._clock
            )
        return self.targets[target]


class RouterScene:
    """The server, targets, table and clock of a router; `start` creates a router, as a start of the agent does."""

    def __init__(
        self, folder: Path, *routes: str, hooks: HookSettings = NO_HOOKS, cycle_wait_s: float = CYCLE_WAIT_S
    ) -> None:
        self.clock = VirtualClock()
        self.link = FakeRouterLink()
        self.hooks = hooks
        self.cycle_wait_s = cycle_wait_s
        self.table = folder / "table.ads"
        self._left = folder / "left"
        self._left.mkdir()
        self._folder = folder
        self.targets = ManualTargets(self._left, self.clock)
        self.put_table(*(routes or (a_route(),)))
        self.router = self.start()

    def put_table(self, *routes: str) -> None:
        """Replace the table."""
        self.table.write_text("\n".join(routes))

    def change_table(self, *routes: str) -> None:
        """Replace the table with a text of another length, so that file times do not matter."""
        self.put_table(*routes, f"# at {self.clock()}")

    def start(self, *, link: Any = None, places: Any = None, folder: str = "router") -> JobRouter:
        """Return a new router, which loads its state from its folder and the server."""
        kept = self.folder(folder)
        hooks = RouteHooks(self.hooks, kept.shared / "hooks")
        targets = TargetPool(places or self.targets, self.clock, timeout_s=TARGET_TIMEOUT_S)
        tasks = BackgroundTasks(self.cycle_wait_s)
        shared = RouterContext("jobrouter", TrackedJobs(), link or self.link, targets, hooks, self.clock, tasks)
        source = RouteSource(TableSettings(self.table, (), None, _targets), self.clock)
        self.router = JobRouter(shared, source, kept, timedelta(seconds=CYCLE_S), SEARCH_TIMEOUTS)
        return self.router

    def folder(self, name: str = "router") -> RouterFolder:
        """Open the folder of a router, and create it if it is missing."""
        kept = RouterFolder(self._folder / name, self._folder / "shared")
        kept.open()
        return kept

    async def run_cycles(self, count: int = 1, *, every_s: float = CYCLE_S) -> None:
        """Run cycles until none is due at once, then let time pass; all that `count` times."""
        for _ in range(count):
            while await self.router.run_once() == timedelta(0):
                pass
            self.clock.advance(seconds=every_s)

    def target(self, route: str = "A") -> ManualTarget:
        """Return the target of a route."""
        return self.targets.at(str(target_of(route)))

    def spread(self) -> Mapping[str, int]:
        """Return the number of routed jobs of each route's target."""
        return {route: len(self.target(route).copies) for route in ROUTES if self.target(route).copies}


def _targets() -> Targets:
    return Targets({}, {target_key(f"batch {route}"): target_of(route) for route in ROUTES})


def hooked_scene(folder: Path, default: str = KEYWORD, timeout_s: float = 10.0, **scripts: str) -> RouterScene:
    """Return a scene with the hooks of a keyword; `$HERE` is their folder."""
    here = folder / "here"
    here.mkdir()
    commands = {HookKind(kind): ("/bin/sh", "-c", f"HERE={here}\n{text}") for kind, text in scripts.items()}
    settings = HookSettings({KEYWORD.lower(): commands}, default, timeout_s)
    return RouterScene(folder, a_route(set_Color='"blue"', FailureRateThreshold=0.0001), hooks=settings)


def hook_output(folder: Path, name: str) -> str:
    """Return a file that a hook has written to its folder; "" = there is none."""
    path = folder / "here" / name
    return path.read_text() if path.exists() else ""


@dataclass
class HangingTarget(ManualTarget):
    """A target whose methods `hanging_methods` block, before their effect or, with `after`, after it.

    They continue once `may_continue` is set. Cycles do not wait for them: the wait of a cycle ends as soon as a method
    blocks. `hung_methods` records the blocked methods, `cancelled_methods` those that were cancelled, and
    `calls` the calls. With `slow_s` the output of a routed job arrives in ten parts, each after this time.
    """

    time: LoopTime = field(default_factory=LoopTime)
    hanging_methods: Collection[str] = ()
    after: bool = False
    slow_s: float = 0.0
    only: str = ""
    calls: list[str] = field(default_factory=list)
    hung_methods: list[str] = field(default_factory=list)
    cancelled_methods: list[str] = field(default_factory=list)
    may_continue: asyncio.Event = field(default_factory=asyncio.Event)

    async def submit(self, copies: Sequence[RoutedJobRequest], files: InputFiles) -> tuple[RoutedJobAnswer, ...]:
        await self._may_hang("submit", is_done=False)
        answers = await super().submit(copies, files)
        await self._may_hang("submit", is_done=True)
        return answers

    async def find_again(self, names: Collection[str]) -> Mapping[str, FindAnswer]:
        self.calls += [f"find_again {name}" for name in names]
        await self._may_hang("find_again", is_done=False)
        return await super().find_again(names)

    async def poll(self, references: Collection[str]) -> Mapping[str, RoutedJobStatus]:
        self.calls += [f"poll {reference}" for reference in references]
        await self._may_hang("poll", is_done=False)
        return await super().poll(references)

    async def collect(self, reference: str) -> tuple[CollectedFile, ...]:
        self.calls.append(f"collect {reference}")
        if self.only in ("", reference):
            await self._may_hang("collect", is_done=False)
        for _ in range(10 if self.slow_s else 0):
            self.time.advance(self.slow_s)
            report_progress()
            await asyncio.sleep(0)
        return await super().collect(reference)

    async def cancel(self, references: Collection[str]) -> None:
        await self._may_hang("cancel", is_done=False)
        await super().cancel(references)
        await self._may_hang("cancel", is_done=True)

    async def forget(self, references: Collection[str]) -> None:
        await self._may_hang("forget", is_done=False)
        await super().forget(references)

    async def _may_hang(self, method: str, *, is_done: bool) -> None:
        if method not in self.hanging_methods or is_done is not self.after or self.may_continue.is_set():
            return
        self.hung_methods.append(method)
        self.time.advance(CYCLE_WAIT_S)
        try:
            await self.may_continue.wait()
        except asyncio.CancelledError:
            self.cancelled_methods.append(method)
            raise


def a_hanging_target(
    scene: RouterScene, route: str, *hangs: str, after: bool = False, slow_s: float = 0.0
) -> HangingTarget:
    """Replace the target of a route by one that hangs; returns it."""
    folder = scene.target(route).folder
    place = HangingTarget(
        folder, lambda _: RoutedJobStatus(RoutedJobState.IDLE), hanging_methods=hangs, after=after, slow_s=slow_s
    )
    scene.targets.targets[str(target_of(route))] = place
    return place
