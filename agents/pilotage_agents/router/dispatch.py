"""Dispatch: evaluates waiting jobs of the backlog, chooses jobs for routes with room, and sends them.

A cycle evaluates no more jobs than the routes with room need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import structlog

from pilotage.classads.library import InvalidClassAdError
from pilotage.values.routing import RoutableJob
from pilotage_agents.router.context import RouterContext
from pilotage_agents.router.core.route_selection import (
    RouteBacklog,
    RouteChoice,
    RouteChooser,
    RouteEvaluator,
    changed_routes,
    routes_with_room,
)
from pilotage_agents.router.core.table import RouteTable
from pilotage_agents.router.ports import RouterLink
from pilotage_agents.router.submit import SUBMISSIONS, RoutedJobSender

log = structlog.get_logger()

MAX_JOBS_AT_ONCE = 500
"""The largest number of jobs in a call: their ads are large, and are kept for a short time only."""


class BacklogEvaluator:
    """Evaluates the jobs of a backlog by a table, as many as needed."""

    def __init__(self, link: RouterLink, table: RouteTable) -> None:
        self.table = table
        self._link = link
        self._evaluator = RouteEvaluator(table)

    @property
    def is_time_dependent(self) -> bool:
        """Whether the routes of an unchanged job may change with the time."""
        return self._evaluator.is_time_dependent

    async def evaluate_next(self, backlog: RouteBacklog) -> dict[int, RoutableJob]:
        """Evaluate the first unevaluated jobs; returns those that may take a route, by id."""
        job_ids = backlog.unevaluated(MAX_JOBS_AT_ONCE)
        jobs = await self.load_waiting(job_ids, backlog)
        fitting = {}
        for job_id in job_ids:
            if (job := jobs.get(job_id)) is None:
                continue
            routes = self._routes_of(job)
            backlog.assign_routes(job_id, routes)
            if routes:
                fitting[job_id] = job
        return fitting

    async def load_waiting(self, job_ids: Sequence[int], backlog: RouteBacklog) -> dict[int, RoutableJob]:
        """Return the waiting ones of the jobs, by id; others are removed until an event adds them again."""
        found = {job.job_id: job for job in await self._link.load_jobs(job_ids)} if job_ids else {}
        waiting = {job_id: job for job_id, job in found.items() if job.is_waiting}
        for job_id in set(job_ids) - waiting.keys():
            backlog.remove(job_id)
        return waiting

    def _routes_of(self, job: RoutableJob) -> tuple[str, ...]:
        try:
            return tuple(self.table.routes[index].name for index in self._evaluator.matching_routes(job.ad))
        except InvalidClassAdError as error:
            log.warning("job cannot be evaluated", job_id=job.job_id, reason=str(error))
            return ()


_MAX_EVALUATED = 10 * MAX_JOBS_AT_ONCE
"""The largest number of jobs that are evaluated in a cycle."""

_REFUSALS_BEFORE_REST = 20
"""After so many refusals in a row a route rests."""

_REST = timedelta(seconds=30)
"""The rest of such a route; also how long a refusal is published."""

_REEVALUATION_PERIOD = timedelta(minutes=10)
"""How often jobs are evaluated again by a table that depends on the time."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Refusals of all jobs of a route, so many in a row; `until` ends its rest if it has one."""

    in_a_row: int
    until: datetime
    reason: str

    @property
    def is_resting(self) -> bool:
        """Whether the route rests; single refusals do not delay the jobs behind them."""
        return self.in_a_row >= _REFUSALS_BEFORE_REST


class Dispatch:
    """Sends the jobs of a backlog by a table, which may be replaced at any time."""

    def __init__(self, context: RouterContext, backlog: RouteBacklog, sender: RoutedJobSender) -> None:
        self._context = context
        self._backlog = backlog
        self._sender = sender
        self._evaluator = BacklogEvaluator(context.link, RouteTable(()))
        self._chooser = RouteChooser()
        self._reevaluated = context.clock()
        self._refusals: dict[str, _Refusal] = {}

    @property
    def table(self) -> RouteTable:
        """The active table."""
        return self._evaluator.table

    def apply_table(self, table: RouteTable) -> None:
        """Use another table; all waiting jobs are evaluated again."""
        changed = changed_routes(self.table, table)
        self._evaluator = BacklogEvaluator(self._context.link, table)
        self._refusals.clear()
        self._backlog.apply_table(changed)
        self._reevaluated = self._context.clock()

    def open_targets(self) -> None:
        """Start to open the targets of routes; a route gets no job before its target is open."""
        targets = self._context.targets
        for target in sorted({str(route.target) for route in self.table.routes}):
            if not targets.is_open(target):
                self._context.background_tasks.start(("open", target), partial(targets.open, target))

    def closed(self) -> dict[str, str]:
        """Return the routes that get no job now for other reasons than limits and failures, with the reasons."""
        now = self._context.clock()
        reasons = {name: each.reason for name, each in self._refusals.items() if each.is_resting and now < each.until}
        for route in self.table.routes:
            if obstacle := self._context.targets.obstacle(str(route.target), SUBMISSIONS):
                reasons[route.name] = obstacle
        return reasons

    def published_reasons(self) -> dict[str, str]:
        """Return the reasons that are published: why a route is closed, or why its last jobs were refused."""
        now = self._context.clock()
        return {name: each.reason for name, each in self._refusals.items() if now < each.until} | self.closed()

    async def send_next(self) -> bool:
        """Send the next jobs; returns whether there may be more to send at once.

        If the server's answer is lost, the job stays in the backlog; the feed tells whether the server gave it.
        """
        now = self._context.clock()
        self._backlog.resume_due(now)
        if self._evaluator.is_time_dependent and now >= self._reevaluated + _REEVALUATION_PERIOD:
            self._backlog.reevaluate_all()
            self._reevaluated = now
        choices, jobs = await self._choose()
        refused = 0
        try:
            if choices:
                refused = await self._send(choices, jobs)
        finally:
            self._backlog.release_reserved()
        with_room = self._with_room()
        others = self._backlog.unevaluated(1) or (refused and self._backlog.count_ready(with_room))
        return len(choices) == MAX_JOBS_AT_ONCE or bool(with_room and others)

    async def would_send(self) -> tuple[RouteChoice, ...]:
        """Return the next jobs with their routes, without a reservation."""
        choices, _ = await self._choose()
        self._backlog.release_reserved()
        return choices

    async def _choose(self) -> tuple[tuple[RouteChoice, ...], Mapping[int, RoutableJob]]:
        """Reserve the next jobs; returns them with their routes, and the latest loaded jobs."""
        with_room = self._with_room()
        jobs: dict[int, RoutableJob] = {}
        evaluated = 0
        while with_room and evaluated < _MAX_EVALUATED and self._backlog.count_ready(with_room) < MAX_JOBS_AT_ONCE:
            if not self._backlog.unevaluated(1):
                break
            jobs = await self._evaluator.evaluate_next(self._backlog)  # only the latest: ads are large
            evaluated += MAX_JOBS_AT_ONCE
        occupied = self._context.jobs.occupancy()
        return self._chooser.choose(self._backlog, self.table, occupied, self._blocked(), MAX_JOBS_AT_ONCE), jobs

    async def _send(self, choices: tuple[RouteChoice, ...], jobs: Mapping[int, RoutableJob]) -> int:
        """Send the jobs; returns how many the server refused."""
        unknown = [choice.job_id for choice in choices if choice.job_id not in jobs]
        jobs = {**jobs, **await self._evaluator.load_waiting(unknown, self._backlog)}
        result = await self._sender.send(choices, jobs, self.table)
        now = self._context.clock()
        refused: dict[str, str] = {}
        for choice in choices:
            if (reason := result.refused.get(choice.job_id)) is not None:
                self._backlog.postpone(choice.job_id, now)
                refused[choice.route.name] = reason
        self._count_refusals(refused, result.sent, now)
        if result.refused:
            log.info("jobs refused", jobs=len(result.refused), example=next(iter(result.refused.values())))
        return len(result.refused)

    def _count_refusals(self, refused: Mapping[str, str], given: Mapping[str, int], now: datetime) -> None:
        """Count refusals of routes that got no job, and reset those that got some."""
        for name in given:
            self._refusals.pop(name, None)
        for name, reason in refused.items():
            if not given.get(name):
                before = self._refusals.get(name)
                in_a_row = 1 if before is None or before.is_resting else before.in_a_row + 1
                self._refusals[name] = _Refusal(in_a_row, now + _REST, f"the server refuses it jobs: {reason}")

    def _with_room(self) -> frozenset[str]:
        return frozenset(routes_with_room(self.table, self._context.jobs.occupancy(), self._blocked()))

    def _blocked(self) -> Set[str]:
        """Return the routes that get no job now, also those whose last jobs are still being submitted."""
        return self.closed().keys() | self._sender.busy()
