"""Gives waiting jobs to routes with room: judges as many as that needs, chooses, and has them sent."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import structlog

from pilotage_agents.core.routes.backlog import Backlog
from pilotage_agents.core.routes.route_choice import Choice, Chooser, changed_routes, routes_with_room
from pilotage_agents.core.routes.route_table import RouteTable
from pilotage_agents.router.copy_sender import SUBMISSIONS, CopySender
from pilotage_agents.router.job_looks import MOST_AT_ONCE, JobLooks
from pilotage_agents.router.route_edges import RoutableJob
from pilotage_agents.router.route_shared import Shared

log = structlog.get_logger()

_MOST_JUDGED = 10 * MOST_AT_ONCE
"""So many jobs are judged before other work gets its turn."""

_REFUSED_IN_A_ROW = 20
"""So many times in a row a route asks for jobs and is given none before it rests."""

_RESTS_FOR = timedelta(seconds=30)
"""So long such a route gets no job, and so long people are told of any route what the server said."""

_JUDGED_ANEW_EVERY = timedelta(minutes=10)
"""So often jobs are judged anew by a table that looks at the time."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A route was given none of the jobs it asked for, so many times in a row; `until` ends its rest if it has one."""

    in_a_row: int
    until: datetime
    reason: str

    @property
    def lets_rest(self) -> bool:
        """Whether the route rests: single jobs that cannot be had keep none behind them waiting."""
        return self.in_a_row >= _REFUSED_IN_A_ROW


class Dispatch:
    """Works off a backlog by a table, which may be replaced at any time."""

    def __init__(self, shared: Shared, backlog: Backlog, sender: CopySender) -> None:
        self._shared = shared
        self._backlog = backlog
        self._sender = sender
        self._looks = JobLooks(shared.link, RouteTable(()))
        self._chooser = Chooser()
        self._judged_anew = shared.clock()
        self._refusals: dict[str, _Refusal] = {}

    @property
    def table(self) -> RouteTable:
        """The table in force."""
        return self._looks.table

    def follow(self, table: RouteTable) -> None:
        """Go by another table from now on; the jobs that wait are judged anew."""
        changed = changed_routes(self.table, table)
        self._looks = JobLooks(self._shared.link, table)
        self._refusals.clear()
        self._backlog.follow_another_table(changed)
        self._judged_anew = self._shared.clock()

    def open_targets(self) -> None:
        """Begin to open the targets of routes that are not open: until they are, their routes get no job."""
        places = self._shared.places
        for target in sorted({str(route.target) for route in self.table.routes}):
            if not places.is_open(target):
                self._shared.errands.begin(("open", target), partial(places.open, target))

    def closed(self) -> dict[str, str]:
        """Return the routes that get no job now for a reason beside limits and failures, by name, with the reasons."""
        now = self._shared.clock()
        reasons = {name: each.reason for name, each in self._refusals.items() if each.lets_rest and now < each.until}
        for route in self.table.routes:
            if obstacle := self._shared.places.obstacle(str(route.target), SUBMISSIONS):
                reasons[route.name] = obstacle
        return reasons

    def complaints(self) -> dict[str, str]:
        """Return what people are told of routes: why one is closed, or why it was given no job when it last asked."""
        now = self._shared.clock()
        return {name: each.reason for name, each in self._refusals.items() if now < each.until} | self.closed()

    async def dispatch(self) -> bool:
        """Send the next jobs; returns whether there may be more to send at once.

        A job of which the server was not heard waits on: where it was given all the same, the feed tells.
        """
        self._refresh(self._shared.clock())
        choices, jobs = await self._choose()
        refused = 0
        try:
            if choices:
                refused = await self._send(choices, jobs)
        finally:
            self._backlog.give_back()
        with_room = self._with_room()
        others = self._backlog.unjudged(1) or (refused and self._backlog.ready(with_room))
        return len(choices) == MOST_AT_ONCE or bool(with_room and others)

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
        return self._chooser.choose(self._backlog, self.table, occupied, self._not_now(), MOST_AT_ONCE), jobs

    async def _send(self, choices: tuple[Choice, ...], jobs: Mapping[int, RoutableJob]) -> int:
        """Have the jobs sent; returns how many of them the server did not give."""
        unknown = [choice.job_id for choice in choices if choice.job_id not in jobs]
        jobs = {**jobs, **await self._looks.look_at(unknown, self._backlog)}
        taken = await self._sender.send(choices, jobs, self.table)
        now = self._shared.clock()
        refused: dict[str, str] = {}
        for choice in choices:
            if (reason := taken.refused.get(choice.job_id)) is not None:
                self._backlog.set_aside(choice.job_id, now)
                refused[choice.route.name] = reason
        self._note(refused, taken.given, now)
        if taken.refused:
            log.info("jobs not given", jobs=len(taken.refused), example=next(iter(taken.refused.values())))
        return len(taken.refused)

    def _note(self, refused: Mapping[str, str], given: Mapping[str, int], now: datetime) -> None:
        """Take note of the routes that were given none of what they asked for, and of those that were given some."""
        for name in given:
            self._refusals.pop(name, None)
        for name, reason in refused.items():
            if not given.get(name):
                before = self._refusals.get(name)
                in_a_row = 1 if before is None or before.lets_rest else before.in_a_row + 1
                self._refusals[name] = _Refusal(in_a_row, now + _RESTS_FOR, f"the server gives it no job: {reason}")

    def _with_room(self) -> frozenset[str]:
        return frozenset(routes_with_room(self.table, self._shared.copies.occupied(), self._not_now()))

    def _not_now(self) -> Set[str]:
        """Return the routes that get no job now: also those whose last ones have not been taken yet."""
        return self.closed().keys() | self._sender.busy()
