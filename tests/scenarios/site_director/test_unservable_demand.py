"""Demand that the pilots of a queue cannot take, whatever the reason, ends in a trickle of them, and soon recovers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from pilotage.resources.tree import QueueId
from pilotage.values.demand import EmptyReturns
from pilotage_server.core.matching.demand import EmptyPilot, empty_returns
from support.director_grid import QUEUE, DirectorGrid, a_queue

ROUND = timedelta(seconds=30)
ON_THE_WAY = timedelta(minutes=1)
IDLE = timedelta(minutes=20)
HOUR = timedelta(hours=1)


@dataclass
class Site:
    """A queue whose pilots come after a while, take a job that fits them, or else come back empty.

    Of the jobs that wait `fitting` are such that pilots can take them; a job runs for ever.
    """

    grid: DirectorGrid
    fitting: int = 0
    sent: dict[str, datetime] = field(default_factory=dict)
    empty: list[EmptyPilot] = field(default_factory=list)
    proven: datetime | None = None

    async def pass_time(self, time: timedelta, look: Callable[[], Awaitable[object]]) -> int:
        """Let the director look in rounds for so long; returns how many pilots it has sent."""
        before, until = len(self.sent), self.grid.now + time
        while self.grid.now < until:
            await look()
            self.sent |= {stamp: self.grid.now for stamp in self.grid.submitted if stamp not in self.sent}
            self.grid.now += ROUND
            for glidein_id, request in self.grid.batch.requests.items():
                self._live(glidein_id, request.stamp)
            self._tell()
        return len(self.sent) - before

    def _live(self, glidein_id: str, stamp: str) -> None:
        link, age = self.grid.link, self.grid.now - self.sent[stamp]
        if age < ON_THE_WAY or stamp in link.busy or stamp in link.ended:
            return
        if self.fitting:
            self.fitting -= 1
            link.waiting -= 1
            link.idle.discard(stamp)
            link.busy.add(stamp)
            self.proven = max(self.proven or self.sent[stamp], self.sent[stamp])
        elif age < ON_THE_WAY + IDLE:
            link.idle.add(stamp)
        elif stamp in link.idle:
            link.idle.discard(stamp)
            self.grid.batch.end(glidein_id, 0, "it had no job")
            self.empty.append(EmptyPilot(self.sent[stamp], self.grid.now))

    def _tell(self) -> None:
        told = empty_returns(self.empty, self.proven, self.grid.now)
        of_queue = EmptyReturns(told.pilots, told.sendings, told.last_ago) if told else EmptyReturns()
        self.grid.link.empty[QUEUE] = of_queue


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(DirectorGrid(tmp_path))


async def test_pilots_for_work_that_they_cannot_take_become_a_trickle(site: Site) -> None:
    site.grid.link.waiting = 1000
    look = site.grid.director().run_once
    assert await site.pass_time(2 * HOUR, look) <= 10 + 5 + 2 + 1 + 2
    assert 1 <= await site.pass_time(6 * HOUR, look) <= 6 * HOUR / (IDLE + ON_THE_WAY + timedelta(minutes=19))


async def test_a_director_that_starts_anew_goes_on_with_the_trickle(site: Site) -> None:
    site.grid.link.waiting = 1000
    await site.pass_time(5 * HOUR, site.grid.director().run_once)
    assert await site.pass_time(2 * HOUR, site.grid.director().run_once) <= 4


async def test_a_pilot_on_trial_that_finds_work_opens_the_queue_again(site: Site) -> None:
    site.grid.link.waiting = 1000
    look = site.grid.director().run_once
    await site.pass_time(5 * HOUR, look)
    site.fitting = 100
    site.grid.link.waiting += 100
    await site.pass_time(HOUR, look)
    assert site.fitting == 0


async def test_other_pilots_at_work_there_do_not_hide_that_those_sent_now_find_nothing(site: Site) -> None:
    look = site.grid.director(ramp_start=20).run_once
    site.fitting = site.grid.link.waiting = 20
    await site.pass_time(HOUR, look)
    assert len(site.grid.link.busy) == 20
    site.grid.link.waiting = 200
    await site.pass_time(4 * HOUR, look)
    assert await site.pass_time(4 * HOUR, look) <= 8


async def test_demand_that_pilots_do_take_is_not_slowed(site: Site) -> None:
    site.fitting = site.grid.link.waiting = 200
    await site.pass_time(timedelta(minutes=10), site.grid.director().run_once)
    assert site.fitting == 0


async def test_a_dry_run_says_that_pilots_came_back_empty(site: Site) -> None:
    site.grid.link.waiting = 5
    site.grid.link.empty[QUEUE] = EmptyReturns(18, 4, timedelta(seconds=20))
    (line,) = await site.grid.director().dry_run()
    assert line == (
        "Lyon/ce1/short: 0 pilots (no pilot for 5 jobs: the last 18 pilots came back without having run a job; "
        "the next probe goes in 40 s)"
    )


async def test_a_queue_from_which_nobody_came_back_is_not_judged_by_its_neighbour(site: Site) -> None:
    site.grid.link.waiting = 5
    site.grid.link.empty[QUEUE] = EmptyReturns(18, 4)
    site.grid.link.tree = (a_queue(), a_queue(QueueId("Lyon", "ce1", "long")))
    await site.grid.director().run_once()
    assert {request.queue for request in site.grid.batch.requests.values()} == {"long"}
