"""The job router: sends waiting jobs as copies to places that take no pilots, and mirrors what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import structlog

from pilotage.errors import InvalidInputError, PilotageError
from pilotage_agents.core.copies.copy_life import Patience
from pilotage_agents.core.routes.backlog import Backlog
from pilotage_agents.core.routes.route_table import LeftOut, RouteTable
from pilotage_agents.core.routes.told_routes import ToldTable, told_table
from pilotage_agents.router.copy_ends import CopyEnds
from pilotage_agents.router.copy_leavings import CopyLeavings
from pilotage_agents.router.copy_reports import CopyReports
from pilotage_agents.router.copy_sender import CopySender
from pilotage_agents.router.copy_watch import CopyWatch
from pilotage_agents.router.dispatch import Dispatch
from pilotage_agents.router.intervals import Every
from pilotage_agents.router.kept_rates import KeptRates
from pilotage_agents.router.route_shared import Shared
from pilotage_agents.router.route_source import RouteSource
from pilotage_agents.router.router_folder import FeedMark, RouterFolder

log = structlog.get_logger()

_TELLS_EVERY = timedelta(seconds=5)
_KEEPS_EVERY = timedelta(seconds=30)
_ADOPTS_EVERY = timedelta(minutes=1)
_SWEEPS_EVERY = timedelta(hours=1)
_COMES_BACK_AFTER = timedelta(seconds=1)
"""So soon the next round comes while something goes on beside the rounds."""

_TABLE = "table"
_SHOWN = 10


class JobRouter:
    """Follows the server's feed and a table of routes; what it holds is what the server says is its own."""

    name = "job router"

    def __init__(
        self, shared: Shared, source: RouteSource, folder: RouterFolder, interval: timedelta, patience: Patience
    ) -> None:
        self._shared = shared
        self._source = source
        self._folder = folder
        self._backlog = Backlog()
        self._errands = shared.errands
        self._ends = CopyEnds(shared)
        self._leavings = CopyLeavings(shared.places, folder, shared.errands)
        sender = CopySender(shared, self._ends, self._backlog)
        self._dispatch = Dispatch(shared, self._backlog, sender)
        self._watch = CopyWatch(shared, sender, self._ends, self._leavings, patience)
        self._reports = CopyReports(shared, self._leavings)
        self._rates = KeptRates(shared.copies, folder, shared.clock)
        self._is_settled = False
        self._has_table = False
        self._newer: RouteTable | None = None
        self._no_table: PilotageError | None = None
        self._position: int | None = None
        self._kept: FeedMark | None = None
        self._told: ToldTable | None = None
        self._look = Every(interval)
        self._adopt, self._tell, self._keep = Every(_ADOPTS_EVERY), Every(_TELLS_EVERY), Every(_KEEPS_EVERY)
        self._sweep = Every(_SWEEPS_EVERY)

    def turn_taken(self) -> None:
        """Take note that another copy of this agent may have acted meanwhile, and told of other routes."""
        self._adopt.at_once()
        self._told = None
        self._rates.another_may_have_acted()

    def turn_lost(self) -> None:
        """End all that goes on beside the rounds: another copy of this agent may act now."""
        self._errands.cancel_all()

    async def run_once(self) -> timedelta:
        """Look after the copies, then send what the routes have room for; returns when to look again.

        What takes long goes on beside the rounds, and is taken in by a later one.
        """
        await self._errands.cancelled()
        try:
            more = await self._round()
        except BaseException:
            self._adopt.at_once()  # what was asked for last may have been done
            raise
        if more:
            return timedelta(0)
        left = self._look.left(self._shared.clock())
        return min(left, _COMES_BACK_AFTER) if len(self._errands) else left

    async def run_single(self) -> None:
        """Do a round, and wait for what it has begun; raises a PilotageError."""
        fault: PilotageError | None = None
        try:
            try:
                await self._make_ready()
                await self.run_once()
            except PilotageError as error:
                fault = error
            await self._bring_to_an_end()
        finally:
            await self._errands.end()
        if fault is not None:
            raise fault

    async def dry_run(self) -> tuple[str, ...]:
        """Return what a round would send along each route, and why no more, one line each; changes nothing."""
        await self._make_ready()
        if self._no_table is not None:
            raise self._no_table
        await self._read_feed()
        await self._watch.adopt()
        await self._rates.resume()
        occupied = self._shared.copies.occupied()
        closed = self._dispatch.closed()
        choices = await self._dispatch.would_send()
        told = told_table(self._table, occupied, closed)
        sent = {each.job_id: each.route.name for each in choices}
        return tuple(_lines(told, sent, len(self._backlog) - len(sent)))

    async def stop(self) -> None:
        """End what goes on, and keep how far the feed was followed; the copies stay, for the next router to adopt."""
        await self._errands.end()
        await self._rates.keep()
        await self._keep_mark()

    @property
    def _table(self) -> RouteTable:
        return self._dispatch.table

    async def _round(self) -> bool:
        """Look after the copies, which needs no table, and then send more; returns whether there may be more at once.

        Raises a PilotageError, also for a table that cannot be had where there is none from before.
        """
        self._errands.begin(_TABLE, self._read_table)
        await self._errands.grace()
        self._follow_newer()
        self._dispatch.open_targets()
        await self._look_after_copies()
        if self._no_table is not None:
            raise self._no_table
        await self._read_feed()
        more = await self._dispatch.dispatch()
        await self._take_in()
        if self._has_table and self._tell.is_due(self._now()):
            await self._rates.keep()
            await self._tell_routes()
        if self._keep.is_due(self._now()):
            await self._keep_mark()
        return more

    async def _look_after_copies(self) -> None:
        if self._adopt.is_due(self._now()):
            listed = self._now()
            hooked = await self._shared.hooks.kept()  # before the server lists all that these are for
            await self._watch.adopt()
            if not self._is_settled:
                await self._leavings.recall(self._shared.copies)
                self._is_settled = True
            await self._follow_hooks(hooked)
            self._adopt.done(self._now())
            if self._sweep.is_due(listed):
                self._leavings.sweep(self._targets(), self._shared.copies, listed)
                self._sweep.done(listed)
        await self._rates.resume()
        self._shared.copies.adjust(self._now())
        if self._look.is_due(self._now()):
            await self._reports.hear()
            self._watch.look()
            await self._leavings.tidy(stops=True)
            self._look.done(self._now())
        await self._take_in()
        await self._rates.keep()

    async def _take_in(self) -> None:
        """Take in what goes on beside the rounds, as far as it has come, and tell of it."""
        await self._errands.grace()
        await self._ends.bring_home()
        await self._errands.grace()
        await self._reports.send()
        await self._errands.grace()

    async def _follow_hooks(self, kept: frozenset[str]) -> None:
        """Know of the copies that have hooks, and clean up after those that are over though nobody told the server."""
        hooks, held = self._shared.hooks, {copy.name for copy in self._shared.copies}
        await hooks.take_over(held, kept)
        if strays := kept - held - self._leavings.names():
            self._errands.begin("strays of hooks", partial(hooks.clean_up, strays))

    def _targets(self) -> set[str]:
        """Return where routes lead to, and where copies are."""
        return {str(route.target) for route in self._table.routes} | {copy.target for copy in self._shared.copies}

    async def _bring_to_an_end(self) -> None:
        """Wait for all that goes on beside the rounds, and for what follows from it."""
        await self._take_in()
        while len(self._errands):
            await self._errands.all_done()
            await self._take_in()

    async def _make_ready(self) -> None:
        """Have the table read and its targets opened, however long that takes: there is no later round to wait for."""
        self._errands.begin(_TABLE, self._read_table)
        await self._errands.all_done()
        self._follow_newer()
        self._dispatch.open_targets()
        await self._errands.all_done()

    async def _read_table(self) -> None:
        """Read the table that is to be in force; where there is none, why that is."""
        self._no_table = None
        try:
            self._newer = await self._source.newer()
        except PilotageError as error:
            self._no_table = error

    def _follow_newer(self) -> None:
        if self._newer is not None:
            self._follow(self._newer)
            self._newer = None

    def _follow(self, table: RouteTable) -> None:
        log.info("route table in force", routes=len(table.routes), left_out=len(table.left_out))
        self._dispatch.follow(table)
        self._shared.copies.follow(table)
        self._has_table = True
        self._tell.at_once()

    async def _read_feed(self) -> None:
        """Take in all that has happened since."""
        if self._position is None:
            self._kept = await asyncio.to_thread(self._folder.mark)
            for job_id in self._kept.waiting:
                self._backlog.add(job_id)
            self._position = self._kept.position
        while (page := await self._shared.link.next_events(self._position)).position != self._position:
            for event in page.events:
                if event.state == "WAITING":
                    self._backlog.add(event.job_id)
                else:
                    self._backlog.drop(event.job_id)
            self._position = page.position

    async def _tell_routes(self) -> None:
        """Tell the server what people may want to know, if it has changed; where it will not hear, all else goes on."""
        table = self._table
        if self._source.fault:
            table = replace(table, left_out=(*table.left_out, LeftOut("the newer table", self._source.fault)))
        told = told_table(table, self._shared.copies.occupied(), self._dispatch.complaints())
        if told != self._told:
            try:
                await self._shared.link.tell_routes(told)
            except InvalidInputError as error:
                log.warning("the server takes no word of the routes", reason=str(error))
            self._told = told
        self._tell.done(self._now())

    async def _keep_mark(self) -> None:
        if self._position is not None:
            mark = FeedMark(self._position, tuple(self._backlog))
            if mark != self._kept:
                await asyncio.to_thread(self._folder.keep, mark)
            self._kept = mark
        self._keep.done(self._now())

    def _now(self) -> datetime:
        return self._shared.clock()


def _lines(told: ToldTable, sent: dict[int, str], waiting: int) -> Iterator[str]:
    """Yield what a dry run says."""
    for route in told.routes:
        jobs = [job_id for job_id, name in sent.items() if name == route.name]
        limits = f"{route.copies} of {route.max_jobs} copies, {route.idle} idle"
        if route.max_idle_jobs is not None:
            limits += f" of {route.max_idle_jobs}"
        ids = ", ".join(map(str, jobs[:_SHOWN])) + (", ..." if len(jobs) > _SHOWN else "")
        why = route.closed or route.throttled
        would = f"{len(jobs)} jobs ({ids})" if jobs else f"no job{': ' + why if why else ''}"
        yield f"{route.name} -> {route.target}: {would}; it has {limits}"
    for name, reason in told.left_out:
        yield f"{name}: left out: {reason}"
    yield f"{waiting} jobs would go on waiting"
