"""The job router: submits waiting jobs to targets that take no pilots, and reports their states to the server.

It follows the server's feed for waiting jobs, and a table of routes. The server's list decides which routed jobs are
this router's. Slow work runs in background tasks; a later cycle uses its results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import structlog

from pilotage.errors import FeedPositionLostError, InvalidInputError, PilotageError
from pilotage.metrics.table import ROUTED_JOBS
from pilotage.metrics.values import Sample
from pilotage.values.routing import PublishedRoutes
from pilotage_agents.router.context import RouterContext
from pilotage_agents.router.core.route_selection import RouteBacklog, published_table
from pilotage_agents.router.core.routed_job import SearchTimeouts
from pilotage_agents.router.core.table import LeftOut, RouteTable
from pilotage_agents.router.dispatch import Dispatch
from pilotage_agents.router.folder import FeedMark, RouterFolder, SavedRates
from pilotage_agents.router.monitor import RoutedJobCleanup, RoutedJobMonitor, RoutedJobReporter
from pilotage_agents.router.ports import RouterFeedPage
from pilotage_agents.router.submit import RoutedJobEnds, RoutedJobSender
from pilotage_agents.router.table_file import RouteSource


class PeriodicTimer:
    """A timer of a periodic action, which can also be made due at once."""

    def __init__(self, interval: timedelta) -> None:
        self._interval = interval
        self._last: datetime | None = None

    def is_due(self, now: datetime) -> bool:
        """Whether the action is due."""
        return self._last is None or now >= self._last + self._interval

    def restart(self, now: datetime) -> None:
        """Start the next interval."""
        self._last = now

    def expire(self) -> None:
        """Make the action due."""
        self._last = None

    def remaining(self, now: datetime) -> timedelta:
        """Return the time until the action is due."""
        return timedelta(0) if self._last is None else max(timedelta(0), self._last + self._interval - now)


log = structlog.get_logger()

_PUBLISH_PERIOD = timedelta(seconds=5)
_SAVE_PERIOD = timedelta(seconds=30)
_ADOPT_PERIOD = timedelta(minutes=1)
_SWEEP_PERIOD = timedelta(hours=1)
_BUSY_PAUSE = timedelta(seconds=1)
"""The longest pause between cycles while background tasks run."""

_TABLE = "table"
_SHOWN = 10


class JobRouter:
    """Runs the cycles of the job router."""

    name = "job router"

    def __init__(
        self,
        context: RouterContext,
        source: RouteSource,
        folder: RouterFolder,
        interval: timedelta,
        timeouts: SearchTimeouts,
    ) -> None:
        self._context = context
        self._source = source
        self._folder = folder
        self._backlog = RouteBacklog()
        self._background_tasks = context.background_tasks
        self._ends = RoutedJobEnds(context)
        self._cleanup = RoutedJobCleanup(context.targets, folder, context.background_tasks)
        sender = RoutedJobSender(context, self._ends, self._backlog)
        self._dispatch = Dispatch(context, self._backlog, sender)
        self._monitor = RoutedJobMonitor(context, sender, self._ends, self._cleanup, timeouts)
        self._reports = RoutedJobReporter(context, self._cleanup)
        self._rates = SavedRates(context.jobs, folder, context.clock)
        self._is_settled = False
        self._has_table = False
        self._newer: RouteTable | None = None
        self._no_table: PilotageError | None = None
        self._position: int | None = None
        self._saved_mark: FeedMark | None = None
        self._published: PublishedRoutes | None = None
        self._poll = PeriodicTimer(interval)
        self._adopt, self._publish, self._save = (
            PeriodicTimer(_ADOPT_PERIOD),
            PeriodicTimer(_PUBLISH_PERIOD),
            PeriodicTimer(_SAVE_PERIOD),
        )
        self._sweep = PeriodicTimer(_SWEEP_PERIOD)

    def samples(self) -> Iterable[Sample]:
        """Return the numbers of tracked copies by route."""
        for route, occupancy in self._context.jobs.occupancy().items():
            yield Sample(ROUTED_JOBS, (route, "idle"), occupancy.idle)
            yield Sample(ROUTED_JOBS, (route, "running"), occupancy.jobs - occupancy.idle)

    def leadership_gained(self) -> None:
        """Reload shared state: another replica may have acted and published other routes."""
        self._adopt.expire()
        self._published = None
        self._rates.invalidate()

    def leadership_lost(self) -> None:
        """Cancel all background tasks: another replica may act now."""
        self._background_tasks.cancel_all()

    async def run_once(self) -> timedelta:
        """Run one cycle: update routed jobs, then send new ones; returns the time until the next cycle.

        Slow work goes on in background tasks, and a later cycle uses its results.
        """
        await self._background_tasks.wait_cancelled()
        try:
            more = await self._cycle()
        except BaseException:
            self._adopt.expire()  # the last request may have had an effect
            raise
        if more:
            return timedelta(0)
        left = self._poll.remaining(self._context.clock())
        return min(left, _BUSY_PAUSE) if len(self._background_tasks) else left

    async def run_to_completion(self) -> None:
        """Run one cycle, and wait for its background tasks; raises a PilotageError."""
        fault: PilotageError | None = None
        try:
            try:
                await self._open_table()
                await self.run_once()
            except PilotageError as error:
                fault = error
            await self._finish_all()
        finally:
            await self._background_tasks.close()
        if fault is not None:
            raise fault

    async def dry_run(self) -> tuple[str, ...]:
        """Return what a cycle would send along each route, and why no more, one line each; changes nothing."""
        await self._open_table()
        if self._no_table is not None:
            raise self._no_table
        await self._read_feed()
        await self._monitor.adopt()
        await self._rates.load()
        occupied = self._context.jobs.occupancy()
        closed = self._dispatch.closed()
        choices = await self._dispatch.would_send()
        published = published_table(self._table, occupied, closed)
        sent = {each.job_id: each.route.name for each in choices}
        return tuple(_lines(published, sent, len(self._backlog) - len(sent)))

    async def stop(self) -> None:
        """Cancel background tasks and save the feed position; routed jobs stay for the next router to adopt."""
        await self._background_tasks.close()
        await self._rates.save()
        await self._save_mark()

    @property
    def _table(self) -> RouteTable:
        return self._dispatch.table

    async def _cycle(self) -> bool:
        """Update routed jobs, which needs no table, then send jobs; returns whether more may be sent at once.

        Raises a PilotageError, also if no table has ever been available.
        """
        self._background_tasks.start(_TABLE, self._read_table)
        await self._background_tasks.wait_grace()
        self._apply_newer()
        self._dispatch.open_targets()
        await self._update_jobs()
        if self._no_table is not None:
            raise self._no_table
        await self._read_feed()
        more = await self._dispatch.send_next()
        await self._apply_results()
        if self._has_table and self._publish.is_due(self._now()):
            await self._rates.save()
            await self._publish_routes()
        if self._save.is_due(self._now()):
            await self._save_mark()
        return more

    async def _update_jobs(self) -> None:
        if self._adopt.is_due(self._now()):
            listed_at = self._now()
            hooked = await self._context.hooks.recorded()  # before the server lists the jobs of these records
            await self._monitor.adopt()
            if not self._is_settled:
                await self._cleanup.load(self._context.jobs)
                self._is_settled = True
            hooks, tracked = self._context.hooks, {routed.name for routed in self._context.jobs}
            await hooks.load(tracked, hooked)
            # The clean-up hooks of jobs that have ended without a report are due.
            if strays := hooked - tracked - self._cleanup.names():
                self._background_tasks.start("stray hook records", partial(hooks.clean_up_strays, strays))
            self._adopt.restart(self._now())
            if self._sweep.is_due(listed_at):
                targets = {str(route.target) for route in self._table.routes}
                targets |= {routed.target for routed in self._context.jobs}
                self._cleanup.sweep(targets, self._context.jobs, listed_at)
                self._sweep.restart(listed_at)
        await self._rates.load()
        self._context.jobs.adjust(self._now())
        if self._poll.is_due(self._now()):
            await self._reports.fetch_unwanted()
            self._monitor.refresh()
            await self._cleanup.run(stops=True)
            self._poll.restart(self._now())
        await self._apply_results()
        await self._rates.save()

    async def _apply_results(self) -> None:
        """Use the results of background tasks, and report them."""
        await self._background_tasks.wait_grace()
        await self._ends.finish_collected()
        await self._background_tasks.wait_grace()
        await self._reports.send()
        await self._background_tasks.wait_grace()

    async def _finish_all(self) -> None:
        """Wait for all background tasks and their results."""
        await self._apply_results()
        while len(self._background_tasks):
            await self._background_tasks.wait_all()
            await self._apply_results()

    async def _open_table(self) -> None:
        """Read the table and open its targets, without a time limit: a single run has no later cycle."""
        self._background_tasks.start(_TABLE, self._read_table)
        await self._background_tasks.wait_all()
        self._apply_newer()
        self._dispatch.open_targets()
        await self._background_tasks.wait_all()

    async def _read_table(self) -> None:
        """Read the table; without one, keep the reason."""
        self._no_table = None
        try:
            self._newer = await self._source.load_newer()
        except PilotageError as error:
            self._no_table = error

    def _apply_newer(self) -> None:
        if self._newer is not None:
            table = self._newer
            log.info("route table is active", routes=len(table.routes), left_out=len(table.left_out))
            self._dispatch.apply_table(table)
            self._context.jobs.apply_table(table)
            self._has_table = True
            self._publish.expire()
            self._newer = None

    async def _read_feed(self) -> None:
        """Apply the events of the feed since the last position."""
        if self._position is None:
            self._saved_mark = await asyncio.to_thread(self._folder.load_mark)
            for job_id in self._saved_mark.waiting:
                self._backlog.add(job_id)
            self._position = self._saved_mark.position
        while (page := await self._next_events(self._position)).position != self._position:
            for event in page.events:
                if event.state == "WAITING":
                    self._backlog.add(event.job_id)
                else:
                    self._backlog.remove(event.job_id)
            self._position = page.position

    async def _next_events(self, position: int) -> RouterFeedPage:
        """Return the next events; after a restore of the server's database the feed is read from the start."""
        try:
            return await self._context.link.next_events(position)
        except FeedPositionLostError as error:
            log.warning("the feed is read from the start", why=str(error))
            for job_id in tuple(self._backlog):  # jobs of a lost time, and not those that wait again
                self._backlog.remove(job_id)
            return await self._context.link.next_events(0)

    async def _publish_routes(self) -> None:
        """Publish the routes if they have changed; a rejection by the server stops nothing else."""
        table = self._table
        if self._source.fault:
            table = replace(table, left_out=(*table.left_out, LeftOut("the newer table", self._source.fault)))
        published = published_table(table, self._context.jobs.occupancy(), self._dispatch.published_reasons())
        if published != self._published:
            try:
                await self._context.link.publish_routes(published)
            except InvalidInputError as error:
                log.warning("the server rejects the published routes", reason=str(error))
            self._published = published
        self._publish.restart(self._now())

    async def _save_mark(self) -> None:
        if self._position is not None:
            mark = FeedMark(self._position, tuple(self._backlog))
            if mark != self._saved_mark:
                await asyncio.to_thread(self._folder.save_mark, mark)
            self._saved_mark = mark
        self._save.restart(self._now())

    def _now(self) -> datetime:
        return self._context.clock()


def _lines(published: PublishedRoutes, sent: dict[int, str], waiting: int) -> Iterator[str]:
    """Yield the lines of a dry run."""
    for route in published.routes:
        jobs = [job_id for job_id, name in sent.items() if name == route.name]
        limits = f"{route.copies} of {route.max_jobs} copies, {route.idle} idle"
        if route.max_idle_jobs is not None:
            limits += f" of {route.max_idle_jobs}"
        ids = ", ".join(map(str, jobs[:_SHOWN])) + (", ..." if len(jobs) > _SHOWN else "")
        why = route.closed or route.throttled
        would = f"{len(jobs)} jobs ({ids})" if jobs else f"no job{': ' + why if why else ''}"
        yield f"{route.name} -> {route.target}: {would}; it has {limits}"
    for each in published.left_out:
        copies = f"; it has {each.copies} copies, {each.idle} idle" if each.copies else ""
        yield f"{each.name}: left out: {each.reason}{copies}"
    yield f"{waiting} jobs would stay waiting"
