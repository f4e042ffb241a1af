"""A task-queue director in virtual time: the batch system chooses the queues of its pilots."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import cycle
from pathlib import Path

import pytest

from pilotage.resources.tree import QueueId
from pilotage.values.demand import EmptyReturns, LimitRoom
from support.director_grid import DirectorGrid, a_queue

LYON, RAL, CERN = QueueId("Lyon", "ce1", "q"), QueueId("RAL", "ce2", "q"), QueueId("CERN", "ce3", "q")
START_DELAY, IDLE_TIMEOUT = timedelta(minutes=1), timedelta(minutes=20)
INTERVAL = timedelta(seconds=30)


@dataclass
class WorkloadManager:
    """A system that starts pilots after a while, in these queues in turn; a pilot without a job ends after a time.

    In `broken` queues it ends in error at once.
    """

    grid: DirectorGrid
    places: Iterable[QueueId]
    broken: frozenset[QueueId] = frozenset()
    sent: dict[str, datetime] = field(default_factory=dict)
    landed: dict[str, QueueId] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._next = cycle(self.places)

    async def pass_time(self, time: timedelta, **settings: object) -> None:
        """Run cycles of a director of the set for this time."""
        director, until = self.grid.task_queue_director(queues=("*/*/*",), **settings), self.grid.now + time
        while self.grid.now < until:
            await director.run_once()
            for request in self.grid.batch.requests.values():
                self.sent.setdefault(request.stamp, self.grid.now)
            self.grid.now += INTERVAL
            for glidein_id, request in self.grid.batch.requests.items():
                self._advance(glidein_id, request.stamp)

    def _advance(self, glidein_id: str, stamp: str) -> None:
        link, age = self.grid.link, self.grid.now - self.sent[stamp]
        if age < START_DELAY or stamp in link.busy or stamp in link.ended:
            return
        if stamp not in self.landed:
            self.landed[stamp] = link.registered[stamp] = next(self._next)
            if self.landed[stamp] in self.broken:
                self.grid.batch.end(glidein_id, 1, "exit code 1")
                return
        queue = self.landed[stamp]
        if link.waiting_at.get(queue):
            link.waiting_at[queue] -= 1
            link.idle.discard(stamp)
            link.busy.add(stamp)
        elif age < START_DELAY + IDLE_TIMEOUT:
            link.idle.add(stamp)
        else:
            link.idle.discard(stamp)
            self.grid.batch.end(glidein_id, 0, "it had no job")


@pytest.fixture
def grid(tmp_path: Path) -> DirectorGrid:
    grid = DirectorGrid(tmp_path)
    grid.link.tree = (a_queue(LYON), a_queue(RAL), a_queue(CERN))
    return grid


async def test_jobs_of_many_queues_are_counted_once(grid: DirectorGrid) -> None:
    grid.link.waiting = 3
    director = grid.task_queue_director(queues=("Lyon/*/*", "RAL/*/*"))
    for _ in range(3):
        await director.run_once()
    assert len(grid.submitted) == 3
    assert grid.link.queue_sets == [("Lyon/*/*", "RAL/*/*")]
    assert [grid.link.calls.count(call) for call in ("demand", "queues")] == [3, 1]


async def test_pilot_gets_no_pools_and_the_sizes_of_the_settings(grid: DirectorGrid) -> None:
    grid.link.waiting = 2
    await grid.task_queue_director(queues=("*/*/*",), cpus=2, memory_mib=500, batch_queue="grid").run_once()
    (request,) = grid.batch.requests.values()
    config = json.loads((request.folder / "pilot.json").read_text())
    assert (request.queue, request.shape.cpus, request.shape.memory_mib) == ("grid", 2, 500)
    assert config["queue"] == {"cpus": 2, "memory_mib": 500, "wall_time_s": 7 * 86400}
    assert "pools_file" not in config
    assert not (request.folder / "pools.json").exists()


async def test_jobs_of_each_queue_get_pilots_until_enough_have_landed_there(grid: DirectorGrid) -> None:
    grid.link.waiting_at = {LYON: 4, RAL: 2}
    manager = WorkloadManager(grid, (LYON, RAL, CERN))
    await manager.pass_time(timedelta(hours=1))
    assert grid.link.waiting_at == {LYON: 0, RAL: 0}
    assert len(grid.link.busy) == 6
    before = len(grid.submitted)
    await manager.pass_time(timedelta(hours=1))
    assert len(grid.submitted) == before


@pytest.mark.parametrize(("limited", "expected"), [((0, 1, 2), 2), ((0, 1), 7)], ids=["all queues", "some queues"])
async def test_running_limit_of_all_queues_bounds_the_set(
    grid: DirectorGrid, limited: tuple[int, ...], expected: int
) -> None:
    grid.link.waiting, grid.link.limits = 7, (LimitRoom("at most 5 jobs", 2, limited),)
    await grid.task_queue_director(queues=("*/*/*",)).run_once()
    assert len(grid.submitted) == expected


async def test_idle_pilots_elsewhere_cover_nothing_but_bound_the_set(grid: DirectorGrid) -> None:
    grid.link.waiting_at = {LYON: 1000}
    manager = WorkloadManager(grid, (RAL,))
    await manager.pass_time(IDLE_TIMEOUT)
    assert len(grid.link.idle) == len(grid.submitted) == 10


async def test_idle_slots_and_pilots_on_their_way_count_against_the_demand(grid: DirectorGrid) -> None:
    grid.link.waiting_at = {LYON: 3}
    (idle, _) = [pilot.stamp for pilot in await grid.link.register_pilots(None, 2, (), 0, ("*/*/*",))]
    grid.link.registered[idle] = LYON
    grid.link.idle.add(idle)
    assert await grid.task_queue_director(queues=("*/*/*",)).dry_run() == (
        "Lyon/ce1/q: 0 pilots (the batch system chooses the queue; "
        "idle slots and pilots on their way take 1 waiting job)",
        "RAL/ce2/q: 0 pilots (the batch system chooses the queue)",
        "CERN/ce3/q: 0 pilots (the batch system chooses the queue)",
        "*/*/*: 1 pilots (idle slots and pilots on their way take 1 waiting job; 1 job more to run)",
    )


async def test_empty_returns_of_the_set_leave_only_probes(grid: DirectorGrid) -> None:
    grid.link.waiting, grid.link.set_empty = 100, EmptyReturns(18, 4, timedelta(minutes=30))
    await grid.task_queue_director(queues=("*/*/*",)).run_once()
    assert len(grid.submitted) == 1


async def test_limit_of_the_set_counts_pilots_at_all_its_queues(grid: DirectorGrid) -> None:
    grid.link.waiting_at = {LYON: 8, RAL: 8}
    await WorkloadManager(grid, (LYON, RAL)).pass_time(timedelta(hours=1), max_pilots=5)
    assert len(grid.link.busy) == 5


async def test_closed_queues_get_no_pilots(grid: DirectorGrid) -> None:
    grid.link.waiting_at = {LYON: 5, RAL: 1}
    grid.link.held = {LYON}
    grid.link.throttled = {LYON: "a black hole"}
    await grid.task_queue_director(queues=("*/*/*",)).run_once()
    assert len(grid.submitted) == 1
    grid.link.banned = {RAL, CERN}
    *_, of_set = await grid.task_queue_director(queues=("*/*/*",)).dry_run()
    assert of_set == "*/*/*: 0 pilots (no queue of the set is open: a black hole)"
    *_, of_none = await grid.task_queue_director(queues=("KIT/*/*",)).dry_run()
    assert of_none == "KIT/*/*: 0 pilots (the tree has no queue of the set)"


async def test_broken_queue_does_not_pause_the_set(grid: DirectorGrid) -> None:
    grid.link.waiting_at = {LYON: 30}
    await WorkloadManager(grid, (RAL, LYON), frozenset({RAL})).pass_time(timedelta(minutes=30))
    assert grid.link.waiting_at == {LYON: 0}


async def test_failed_submissions_pause_the_set_until_one_succeeds(grid: DirectorGrid) -> None:
    grid.link.waiting, grid.batch.refuses = 1, "no"
    director = grid.task_queue_director(queues=("*/*/*",))
    for _ in range(60):
        await director.run_once()
        grid.now += timedelta(seconds=1)
    assert grid.link.calls.count("register_pilots") == 5  # at 0, 2, 6, 14 and 30 s
    grid.batch.refuses = ""
    grid.now += timedelta(minutes=1)
    await director.run_once()
    assert len(grid.submitted) == 1
    grid.link.waiting, grid.batch.refuses = 2, "no"
    for _ in range(2):
        await director.run_once()
        grid.now += timedelta(seconds=2)
    assert grid.link.calls.count("register_pilots") == 8


async def test_restarted_director_adopts_its_pilots(grid: DirectorGrid) -> None:
    grid.link.waiting, grid.batch.loses_answers = 1, True
    await grid.task_queue_director(queues=("*/*/*",)).run_once()
    await grid.task_queue_director(queues=("*/*/*",)).run_once()
    assert [(each.stamp, each.glidein_id) for each in grid.folders().records()] == [("stamp0", "fake.1")]
    assert len(grid.submitted) == 1
