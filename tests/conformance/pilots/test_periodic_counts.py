"""The counts of a server's metrics, on every database: who waits and runs, pilots, slots and leaderships."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.metrics.table import (
    FEED_POSITION,
    JOBS_RUNNING,
    JOBS_WAITING,
    LEADER_UNTIL,
    PILOTS,
    SLOTS,
    MetricDefinition,
)
from pilotage.values.leadership import Leadership
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.metrics import MISSED_FOR, PAUSE_FACTOR, EndedJobs, PeriodicCounts
from pilotage_server.operations.leadership import take_leadership
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.events import feed_bounds
from support.grid import Grid, a_tree, an_idle_slot
from support.jobs import a_user
from support.virtual_clock import VirtualClock

SHORT = "CERN/ce01/short"
PLACE = ("CERN", "ce01")


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


class BootTime:
    """A boot clock that advances with each reading."""

    def __init__(self, step_s: float) -> None:
        self.now_s = 0.0
        self.step_s = step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def values(counts: PeriodicCounts, metric: MetricDefinition) -> dict[tuple[str, ...], object]:
    return {sample.labels: sample.value for sample in counts.samples() if sample.metric is metric}


async def test_counts_are_those_of_the_database(grid: Grid, clock: VirtualClock) -> None:
    ended = EndedJobs(grid.state)
    grid.put(a_tree("CERN/ce01/long", SHORT, Memory=4000))
    first, second, *_ = grid.submit(count=5)
    grid.submit(a_user("zoe", "atlas"))
    grid.change(JobChange.REMOVE, first)
    one, two = grid.start_pilot(), grid.start_pilot(SHORT)
    grid.start_pilot(SHORT)
    one.show(an_idle_slot("slot1"), an_idle_slot("slot2"))
    two.show(an_idle_slot("slot1"))
    grid.drain(two)
    match = one.take()
    assert match.job_id == second
    one.finish(match)
    one.take()
    leadership = Leadership("site director", "replica")
    grid.write(lambda transaction, _: take_leadership(transaction, leadership, timedelta(seconds=30), "host"))
    counts = PeriodicCounts(Transactions(grid.database, grid.state), BootTime(0))

    await counts.refresh()

    assert values(counts, JOBS_WAITING) == {("lhcb",): 2, ("atlas",): 1}
    assert values(counts, JOBS_RUNNING)[("lhcb",)] == 1
    assert values(counts, PILOTS) == {
        (*PLACE, "long", "running"): 1,
        (*PLACE, "short", "draining"): 1,
        (*PLACE, "short", "registered"): 1,
    }
    assert values(counts, SLOTS) == {(*PLACE, "long"): 2, (*PLACE, "short"): 1}
    assert values(counts, LEADER_UNTIL) == {("site director",): (clock() + timedelta(seconds=30)).timestamp()}
    assert {sample.labels: sample.value for sample in ended.samples()} == {
        ("done",): 1,
        ("failed",): 0,
        ("removed",): 1,
    }
    events = grid.read(lambda transaction, _: feed_bounds(transaction.session))
    assert values(counts, FEED_POSITION) == {(): events[1]}


async def test_agent_that_is_gone_for_a_week_is_forgotten(grid: Grid, clock: VirtualClock) -> None:
    length = timedelta(seconds=30)
    grid.write(lambda transaction, _: take_leadership(transaction, Leadership("racer", "replica"), length, "host"))
    counts = PeriodicCounts(Transactions(grid.database, grid.state), BootTime(0))
    clock.advance(MISSED_FOR)
    await counts.refresh()
    assert values(counts, LEADER_UNTIL).keys() == {("racer",)}

    clock.advance(length)
    await counts.refresh()

    assert values(counts, LEADER_UNTIL) == {}


async def test_slow_counts_are_made_more_rarely(grid: Grid) -> None:
    boot = BootTime(2.0)
    counts = PeriodicCounts(Transactions(grid.database, grid.state), boot)
    await counts.refresh()
    grid.submit()
    boot.step_s = 0.0

    boot.now_s += 2.0 * PAUSE_FACTOR - 1.0
    await counts.refresh()
    assert values(counts, JOBS_WAITING) == {}

    boot.now_s += 1.0
    await counts.refresh()
    assert values(counts, JOBS_WAITING) == {("lhcb",): 1}


async def test_counts_that_cannot_be_read_are_missing(grid: Grid) -> None:
    grid.submit()
    counts = PeriodicCounts(Transactions(grid.database, grid.state), BootTime(0))
    await counts.refresh()
    assert values(counts, JOBS_WAITING)

    def run(statement: str) -> None:
        grid.write(lambda transaction, _: transaction.session.connection().exec_driver_sql(statement))

    run("ALTER TABLE turns RENAME TO t")
    try:
        with pytest.raises(Exception, match="turns"):
            await counts.refresh()
    finally:  # other tests use the same database
        run("ALTER TABLE t RENAME TO turns")

    assert list(counts.samples()) == []
