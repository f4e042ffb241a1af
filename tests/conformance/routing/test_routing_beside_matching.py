"""Pilots and job routers that request the same jobs concurrently: each job goes to one, limits are exact."""

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
"""Routers request the last jobs; pilots take at most 48, so that both get some."""


def run_concurrently(*actions: Callable[[], list[int]]) -> list[list[int]]:
    """Run these in threads that start together, and return the result of each."""
    start = Barrier(len(actions))

    def run(action: Callable[[], list[int]]) -> list[int]:
        start.wait(timeout=30)
        return action()

    with ThreadPoolExecutor(len(actions)) as threads:
        return list(threads.map(run, actions))


def claims_of(pilot: Pilot) -> Callable[[], list[int]]:
    """Return an action that requests jobs repeatedly."""
    return lambda: [job for _ in range(8) for job in pilot.claim(a_slot("a"), a_slot("b"))]


def routes_of(router: Router, ids: list[int]) -> Callable[[], list[int]]:
    """Return an action that routes jobs in this order, four at a time."""
    return lambda: [job for start in range(0, len(ids), 4) for job in router.take(*ids[start : start + 4])]


@pytest.mark.parametrize("has_several_servers", [False, True])
def test_each_job_goes_to_one_pilot_or_router(
    database: Database, clock: VirtualClock, has_several_servers: bool
) -> None:
    grid = Grid(database, clock)
    ids = grid.submit(count=JOBS)
    pilots = [grid.start_pilot() for _ in range(PILOTS)]
    routers = [Router(grid, f"router {number}").begin() for number in range(ROUTERS)]
    if has_several_servers:
        for pilot, router in zip(pilots, routers, strict=True):
            pilot.grid, router.grid = grid.restarted(), grid.restarted()
    results = run_concurrently(
        *map(claims_of, pilots), *(routes_of(router, ids[: -ROUTED - 1 : -1]) for router in routers)
    )
    taken = Counter(job for jobs in results for job in jobs)
    assert set(taken.values()) == {1}
    assert any(results[:PILOTS])
    assert any(results[PILOTS:])
    waiting = {id_ for id_, job in grid.jobs(ids).items() if job.state is JobState.WAITING}
    assert waiting | taken.keys() == set(ids)
    assert waiting.isdisjoint(taken)
    for router in routers:
        assert len(router.copies()) == len(router.attempts)
    grid.state.matcher.check()
    if has_several_servers:
        grid.read(refresh_state)
    remaining = [grid.start_pilot().claim() for _ in range(len(waiting) + 1)]
    assert sorted(job for jobs in remaining for job in jobs) == sorted(waiting)


def test_pilots_and_routers_share_running_limit(database: Database, clock: VirtualClock) -> None:
    limit = RunningLimit("CERN", None, None, "vo", "lhcb", 25)
    grid = Grid(database, clock, LONG, rules=Rules(running_limits=(limit,)))
    ids = grid.submit(count=JOBS)
    pilots = [grid.start_pilot() for _ in range(PILOTS)]
    routers = [Router(grid, f"router {number}").begin() for number in range(ROUTERS)]
    results = run_concurrently(
        *map(claims_of, pilots), *(routes_of(router, ids[: -ROUTED - 1 : -1]) for router in routers)
    )
    assert len({job for jobs in results for job in jobs}) == sum(map(len, results)) == limit.at_most
    assert grid.start_pilot().claim() == []
