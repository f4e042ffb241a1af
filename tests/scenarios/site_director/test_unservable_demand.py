"""Demand that the pilots of a queue cannot serve gets only probe pilots, until one of them runs a job."""

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

INTERVAL = timedelta(seconds=30)
START_DELAY = timedelta(minutes=1)
IDLE_TIMEOUT = timedelta(minutes=20)
HOUR = timedelta(hours=1)


@dataclass
class Site:
    """A queue whose pilots start after a while, run a job that fits, or else end without one.

    Pilots can take `fitting` of the waiting jobs; a job never ends.
    """

    grid: DirectorGrid
    fitting: int = 0
    sent: dict[str, datetime] = field(default_factory=dict)
    empty: list[EmptyPilot] = field(default_factory=list)
    proven: datetime | None = None

    async def pass_time(self, time: timedelta, cycle: Callable[[], Awaitable[object]]) -> int:
        """Run cycles of the director for this time; return the number of pilots that it submits."""
        before, until = len(self.sent), self.grid.now + time
        while self.grid.now < until:
            await cycle()
            self.sent |= {stamp: self.grid.now for stamp in self.grid.submitted if stamp not in self.sent}
            self.grid.now += INTERVAL
            for glidein_id, request in self.grid.batch.requests.items():
                self._advance_pilot(glidein_id, request.stamp)
            self._update_empty_returns()
        return len(self.sent) - before

    def _advance_pilot(self, glidein_id: str, stamp: str) -> None:
        link, age = self.grid.link, self.grid.now - self.sent[stamp]
        if age < START_DELAY or stamp in link.busy or stamp in link.ended:
            return
        if self.fitting:
            self.fitting -= 1
            link.waiting -= 1
            link.idle.discard(stamp)
            link.busy.add(stamp)
            self.proven = max(self.proven or self.sent[stamp], self.sent[stamp])
        elif age < START_DELAY + IDLE_TIMEOUT:
            link.idle.add(stamp)
        elif stamp in link.idle:
            link.idle.discard(stamp)
            self.grid.batch.end(glidein_id, 0, "it had no job")
            self.empty.append(EmptyPilot(self.sent[stamp], self.grid.now))

    def _update_empty_returns(self) -> None:
        returns = empty_returns(self.empty, self.proven, self.grid.now)
        of_queue = EmptyReturns(returns.pilots, returns.sendings, returns.last_ago) if returns else EmptyReturns()
        self.grid.link.empty[QUEUE] = of_queue


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(DirectorGrid(tmp_path))


async def test_unservable_demand_gets_only_probe_pilots(site: Site) -> None:
    site.grid.link.waiting = 1000
    cycle = site.grid.director().run_once
    assert await site.pass_time(2 * HOUR, cycle) <= 10 + 5 + 2 + 1 + 2
    assert 1 <= await site.pass_time(6 * HOUR, cycle) <= 6 * HOUR / (IDLE_TIMEOUT + START_DELAY + timedelta(minutes=19))


async def test_restarted_director_keeps_sending_only_probes(site: Site) -> None:
    site.grid.link.waiting = 1000
    await site.pass_time(5 * HOUR, site.grid.director().run_once)
    assert await site.pass_time(2 * HOUR, site.grid.director().run_once) <= 4


async def test_probe_that_finds_work_reopens_the_queue(site: Site) -> None:
    site.grid.link.waiting = 1000
    cycle = site.grid.director().run_once
    await site.pass_time(5 * HOUR, cycle)
    site.fitting = 100
    site.grid.link.waiting += 100
    await site.pass_time(HOUR, cycle)
    assert site.fitting == 0


async def test_busy_older_pilots_do_not_hide_empty_new_ones(site: Site) -> None:
    cycle = site.grid.director(ramp_start=20).run_once
    site.fitting = site.grid.link.waiting = 20
    await site.pass_time(HOUR, cycle)
    assert len(site.grid.link.busy) == 20
    site.grid.link.waiting = 200
    await site.pass_time(4 * HOUR, cycle)
    assert await site.pass_time(4 * HOUR, cycle) <= 8


async def test_servable_demand_is_not_slowed(site: Site) -> None:
    site.fitting = site.grid.link.waiting = 200
    await site.pass_time(timedelta(minutes=10), site.grid.director().run_once)
    assert site.fitting == 0


async def test_dry_run_reports_empty_pilots(site: Site) -> None:
    site.grid.link.waiting = 5
    site.grid.link.empty[QUEUE] = EmptyReturns(18, 4, timedelta(seconds=20))
    (line,) = await site.grid.director().dry_run()
    assert line == (
        "Lyon/ce1/short: 0 pilots (no pilot for 5 jobs: the last 18 pilots came back without having run a job; "
        "the next probe goes in 40 s)"
    )


async def test_empty_pilots_of_one_queue_do_not_pause_another(site: Site) -> None:
    site.grid.link.waiting = 5
    site.grid.link.empty[QUEUE] = EmptyReturns(18, 4)
    site.grid.link.tree = (a_queue(), a_queue(QueueId("Lyon", "ce1", "long")))
    await site.grid.director().run_once()
    assert {request.queue for request in site.grid.batch.requests.values()} == {"long"}
