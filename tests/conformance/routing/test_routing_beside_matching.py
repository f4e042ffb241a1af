"""Pilots and job routers ask for the same jobs at once, on every database: each goes to one, limits stay exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.rules import Rules, RunningLimit
from pilotage_server.operations.startup.loading import refresh_state
from pilotage_server.storage.database.engine import Database
from support.grid import LONG, Grid, Pilot, a_slot
from support.routers import Router
from support.virtual_clock import VirtualClock

PILOTS = ROUTERS = 3
JOBS, ROUTED = 60, 40
"""Routers ask for the last of the jobs; pilots take at most 48, so that both get some."""


def at_once(*acts: Callable[[], list[int]]) -> list[list[int]]:
    """Run these in threads that start together, and return what came of each."""
    start = Barrier(len(acts))

    def run(act: Callable[[], list[int]]) -> list[int]:
        start.wait(timeout=30)
        return act()

    with ThreadPoolExecutor(len(acts)) as threads:
        return list(threads.map(run, acts))


def asking(pilot: Pilot) -> Callable[[], list[int]]:
    """Return what asks for jobs again and again."""
    return lambda: [job for _ in range(8) for job in pilot.claim(a_slot("a"), a_slot("b"))]


def routing(router: Router, ids: list[int]) -> Callable[[], list[int]]:
    """Return what takes jobs, the last first, a few at a time."""
    return lambda: [job for place in range(0, len(ids), 4) for job in router.take(*ids[place : place + 4])]


@pytest.mark.parametrize("has_servers_of_their_own", [False, True])
def test_no_job_goes_to_a_pilot_and_to_a_router_and_none_is_forgotten(
    database: Database, clock: VirtualClock, has_servers_of_their_own: bool
) -> None:
    grid = Grid(database, clock)
    ids = grid.submit(count=JOBS)
    pilots = [grid.start_pilot() for _ in range(PILOTS)]
    routers = [Router(grid, f"router {number}").begin() for number in range(ROUTERS)]
    if has_servers_of_their_own:
        for pilot, router in zip(pilots, routers, strict=True):
            pilot.grid, router.grid = grid.restarted(), grid.restarted()
    given = at_once(*map(asking, pilots), *(routing(router, ids[: -ROUTED - 1 : -1]) for router in routers))
    taken = Counter(job for jobs in given for job in jobs)
    assert set(taken.values()) == {1}
    assert any(given[:PILOTS])
    assert any(given[PILOTS:])
    left = {id_ for id_, job in grid.jobs(ids).items() if job.state is JobState.WAITING}
    assert left | taken.keys() == set(ids)
    assert left.isdisjoint(taken)
    for router in routers:
        assert len(router.copies()) == len(router.attempts)
    grid.state.matcher.check()
    if has_servers_of_their_own:
        grid.read(refresh_state)
    rest = [grid.start_pilot().claim() for _ in range(len(left) + 1)]
    assert sorted(job for jobs in rest for job in jobs) == sorted(left)


def test_a_running_limit_is_never_passed_by_pilots_and_routers_together(
    database: Database, clock: VirtualClock
) -> None:
    limit = RunningLimit("CERN", None, None, "vo", "lhcb", 25)
    grid = Grid(database, clock, LONG, rules=Rules(running_limits=(limit,)))
    ids = grid.submit(count=JOBS)
    pilots = [grid.start_pilot() for _ in range(PILOTS)]
    routers = [Router(grid, f"router {number}").begin() for number in range(ROUTERS)]
    given = at_once(*map(asking, pilots), *(routing(router, ids[: -ROUTED - 1 : -1]) for router in routers))
    assert len({job for jobs in given for job in jobs}) == sum(map(len, given)) == limit.at_most
    assert grid.start_pilot().claim() == []
