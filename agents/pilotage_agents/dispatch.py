"""Gives waiting jobs to routes with room: judges as many as that needs, chooses, and has them sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import structlog

from pilotage_agents.copy_sender import CopySender
from pilotage_agents.core.backlog import Backlog
from pilotage_agents.core.route_choice import Choice, Chooser, routes_with_room
from pilotage_agents.core.route_table import RouteTable
from pilotage_agents.job_looks import MOST_AT_ONCE, JobLooks
from pilotage_agents.route_edges import RoutableJob
from pilotage_agents.route_shared import Shared

log = structlog.get_logger()

_MOST_JUDGED = 10 * MOST_AT_ONCE
"""So many jobs are judged before other work gets its turn."""

_ASIDE_FOR = timedelta(seconds=60)
"""So long a job is kept back that the server did not give."""

_RESTS_FOR = timedelta(seconds=30)
"""So long a route gets no job that the server gave none of those it asked for."""

_JUDGED_ANEW_EVERY = timedelta(minutes=10)
"""So often jobs are judged anew by a table that looks at the time."""


class Dispatch:
    """Works off a backlog by a table, which may be replaced at any time."""

    def __init__(self, shared: Shared, backlog: Backlog, sender: CopySender) -> None:
        self._shared = shared
        self._backlog = backlog
        self._sender = sender
        self._looks = JobLooks(shared.link, RouteTable(()))
        self._chooser = Chooser()
        self._judged_anew = shared.clock()
        self._resting: dict[str, tuple[datetime, str]] = {}

    @property
    def table(self) -> RouteTable:
        """The table in force."""
        return self._looks.table

    def follow(self, table: RouteTable) -> None:
        """Go by another table from now on; the jobs that wait are judged anew."""
        self._looks = JobLooks(self._shared.link, table)
        self._resting.clear()
        self._backlog.follow_another_table()
        self._judged_anew = self._shared.clock()

    def closed(self) -> dict[str, str]:
        """Return the routes that get no job now for a reason beside limits and failures, by name, with the reasons."""
        now = self._shared.clock()
        reasons = {name: reason for name, (until, reason) in self._resting.items() if now < until}
        for route in self.table.routes:
            if silence := self._shared.places.silence(str(route.target)):
                reasons[route.name] = f"its target gives no answer: {silence}"
        return reasons

    async def dispatch(self) -> bool:
        """Send the next jobs; returns whether there may be more to send at once.

        A job of which the server was not heard waits on: where it was given all the same, the feed tells.
        """
        self._refresh(self._shared.clock())
        choices, jobs = await self._choose()
        try:
            if choices:
                await self._send(choices, jobs)
        finally:
            self._backlog.give_back()
        return len(choices) == MOST_AT_ONCE or bool(self._with_room() and self._backlog.unjudged(1))

    def _refresh(self, now: datetime) -> None:
        """Let jobs be judged again whose time has come."""
        self._backlog.bring_back(now)
        if self._looks.look_at_time and now >= self._judged_anew + _JUDGED_ANEW_EVERY:
            self._backlog.judge_anew()
            self._judged_anew = now

    async def would_send(self) -> tuple[Choice, ...]:
        """Return the next jobs with their routes; they wait on."""
        choices, _ = await self._choose()
        self._backlog.give_back()
        return choices

    async def _choose(self) -> tuple[tuple[Choice, ...], Mapping[int, RoutableJob]]:
        """Take the next jobs, with their routes; returns them and what is known of some of them."""
        with_room = self._with_room()
        jobs: dict[int, RoutableJob] = {}
        judged = 0
        while with_room and judged < _MOST_JUDGED and self._backlog.ready(with_room) < MOST_AT_ONCE:
            if not self._backlog.unjudged(1):
                break
            jobs = await self._looks.judge_next(self._backlog)  # the latest alone: ads are large
            judged += MOST_AT_ONCE
        occupied = self._shared.copies.occupied()
        return self._chooser.choose(self._backlog, self.table, occupied, self.closed(), MOST_AT_ONCE), jobs

    async def _send(self, choices: tuple[Choice, ...], jobs: Mapping[int, RoutableJob]) -> None:
        unknown = [choice.job_id for choice in choices if choice.job_id not in jobs]
        jobs = {**jobs, **await self._looks.look_at(unknown, self._backlog)}
        taken = await self._sender.send(choices, jobs, self.table)
        now = self._shared.clock()
        for choice in choices:
            if (reason := taken.refused.get(choice.job_id)) is None:
                continue
            self._backlog.set_aside(choice.job_id, now + _ASIDE_FOR)
            if not taken.given.get(choice.route.name):
                self._resting[choice.route.name] = now + _RESTS_FOR, f"the server gives it no job: {reason}"
        if taken.refused:
            log.info("jobs not given", jobs=len(taken.refused), example=next(iter(taken.refused.values())))

    def _with_room(self) -> frozenset[str]:
        return frozenset(routes_with_room(self.table, self._shared.copies.occupied(), self.closed()))
