"""A server as the job router sees it, in memory: the test submits jobs and reads what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from pilotage.classads.library import AdValue
from pilotage.errors import LeadershipLostError, ServerUnreachableError
from pilotage.job_description import InputFile, JobDescription, Value
from pilotage.jobs.report_limits import attributes_fault
from pilotage.text import text_fault
from pilotage.values.routing import NewRoutedJob, PublishedRoutes, RoutableJob, UnwantedRoutedJob
from pilotage_agents.router.core.model import CollectedFile, ListedRoutedJob, RoutedJobOutcome, RoutedJobReport
from pilotage_agents.router.ports import JobMoved, NotRouted, Routed, RoutedJobReportAnswer, RouterFeedPage

_PAGE = 1000
_ENDED = ("DONE", "FAILED", "REMOVED")


@dataclass
class FakeJob:
    """A job of the fake server; `holder` is the attempt that the router holds, 0 = none.

    `said` is what hooks have said of its copy, as often as it was told.
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
    outcomes: list[RoutedJobOutcome] = field(default_factory=list)
    output: dict[str, bytes] = field(default_factory=dict)
    said: list[Mapping[str, Value]] = field(default_factory=list)
    history: list[str] = field(default_factory=list)

    @property
    def routable(self) -> RoutableJob:
        description = JobDescription(self.executable, attributes={})
        ad = {"ClusterId": self.job_id, "ProcId": 0, "Owner": "ann", **self.ad}
        return RoutableJob(self.job_id, self.state, ad, description, "ann", "sky", "grp")

    @property
    def shown(self) -> Mapping[str, AdValue]:
        """Its ad, as people see it."""
        return {**(self.said[-1] if self.said else {}), **self.routable.ad}

    @property
    def known(self) -> ListedRoutedJob:
        assert self.copy is not None
        is_running = self.state == "RUNNING"
        place = (self.copy.route, self.copy.target, self.reference)
        return ListedRoutedJob(self.job_id, self.holder, *place, self.unwanted, is_running)


def _is_set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class FakeRouterLink:
    """Keeps jobs; `refuses` has reasons why the jobs of a route are not given, by its name; jobs of
    `never_gives` are given to none, reports of those of `cannot_read` are malformed to it, and those in which `finds`
    has found a fault.

    `calls` holds the names of the calls, in order, and `looked_at` how many jobs were looked at.
    """

    jobs: dict[int, FakeJob] = field(default_factory=dict)
    events: list[JobMoved] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    told: list[PublishedRoutes] = field(default_factory=list)
    refuses: dict[str, str] = field(default_factory=dict)
    never_gives: Collection[int] = ()
    cannot_read: Collection[int] = ()
    finds: Callable[[RoutedJobReport], str] = lambda _: ""
    is_reachable: bool = True
    is_in_turn: bool = True
    looked_at: int = 0
    read: int = 0
    takes_files: asyncio.Event = field(default_factory=_is_set)
    _answers: dict[str, object] = field(default_factory=dict)
    _ids: count[int] = field(default_factory=lambda: count(1))

    def submit(self, jobs: int = 1, *, executable: str = "simulate", **ad: AdValue) -> list[int]:
        """Let jobs wait; returns their ids."""
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
        """Let a pilot have a job."""
        self._moved(self.jobs[job_id], "MATCHED", "matched")

    def states(self) -> dict[str, int]:
        """Return how many jobs there are in each state."""
        states = [job.state for job in self.jobs.values()]
        return {state: states.count(state) for state in sorted(set(states))}

    async def next_events(self, after: int) -> RouterFeedPage:
        self._called("next_events")
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
        await self.takes_files.wait()

    async def routed_jobs(self) -> tuple[ListedRoutedJob, ...]:
        self._called("copies")
        return tuple(job.known for job in self.jobs.values() if job.holder)

    async def publish_routes(self, table: PublishedRoutes) -> None:
        self._called("tell_routes", in_turn=True)
        self.told.append(table)

    async def fetch(self, job_id: int, file: InputFile, to: Path) -> None:
        del job_id, file, to
        self._called("fetch")

    def _called(self, name: str, *, in_turn: bool = False) -> None:
        self.calls.append(name)
        if not self.is_reachable:
            raise ServerUnreachableError("the server does not answer")
        if in_turn and not self.is_in_turn:
            raise LeadershipLostError("job router")

    def _once(self, request: str, deed: object) -> object:
        if request not in self._answers:
            self._answers[request] = deed()  # type: ignore[operator]
        return self._answers[request]

    def _route(self, copy: NewRoutedJob) -> Routed | NotRouted:
        job = self.jobs.get(copy.job_id)
        if job is None or job.state != "WAITING":
            return NotRouted(copy.job_id, "it does not wait")
        if job.holder:
            return NotRouted(copy.job_id, "an earlier attempt is not over")
        if copy.job_id in self.never_gives:
            return NotRouted(copy.job_id, "its VO may not use the queue")
        if copy.route in self.refuses:
            return NotRouted(copy.job_id, self.refuses[copy.route])
        job.attempt += 1
        job.holder, job.copy, job.reference, job.unwanted, job.said = job.attempt, copy, "", "", []
        self._moved(job, "MATCHED", "routed")
        return Routed(copy.job_id, job.attempt)

    def _reported(self, reports: Sequence[RoutedJobReport]) -> RoutedJobReportAnswer:
        refused, malformed = {}, {}
        for report in reports:
            job = self.jobs[report.job_id]
            if (fault := text_fault(report.node)) or report.job_id in self.cannot_read:
                malformed[report.job_id, report.attempt] = f"node: {fault or 'cannot be read'}"
            elif fault := attributes_fault(report.attributes):
                malformed[report.job_id, report.attempt] = f"attributes: {fault}"
            elif fault := self.finds(report):
                malformed[report.job_id, report.attempt] = fault
            elif job.holder != report.attempt:
                if report.state:
                    refused[report.job_id, report.attempt] = "it is over"
            else:
                self._take_in(job, report)
        unwanted = [job for job in self.jobs.values() if job.holder and job.unwanted]
        to_stop = tuple(UnwantedRoutedJob(job.job_id, job.holder, job.unwanted) for job in unwanted)
        return RoutedJobReportAnswer(refused, to_stop, malformed)

    def _take_in(self, job: FakeJob, report: RoutedJobReport) -> None:
        job.reference, job.node = report.reference or job.reference, report.node or job.node
        if report.attributes:
            job.said.append(report.attributes)
        if report.held and not job.unwanted:
            self._taken_away(job.job_id, "HELD", report.held)
        if report.outcome is not None:
            self._ended(job, report.outcome)
        elif report.state and not job.unwanted and report.state != job.state:
            self._moved(job, report.state, "reported")

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
