"""Jobs of a race that end at the same moment on different servers: exactly one wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import pytest

from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.record import FeedEvent
from pilotage_server.core.jobs.states import FINAL, JobCause, JobState
from pilotage_server.operations.jobs.queries import get_events
from pilotage_server.storage.database.engine import Database
from support.grid import Grid
from support.jobs import an_operator
from support.races import SITES, B, C, PilotedJob, race_of, start_copy, start_race
from support.virtual_clock import VirtualClock

REPETITIONS = 8


def run_concurrently(actions: Sequence[Callable[[], object]]) -> None:
    """Run all actions, each in its own thread; raise the first error."""
    start = Barrier(len(actions))

    def run(action: Callable[[], object]) -> None:
        start.wait(timeout=30)
        action()

    with ThreadPoolExecutor(len(actions)) as threads:
        list(threads.map(run, actions))


def events_of(grid: Grid, job_id: int) -> tuple[FeedEvent, ...]:
    return grid.read(lambda transaction, _: get_events(transaction, an_operator(), job_id))


def three_racers(grid: Grid) -> list[PilotedJob]:
    """Start a race of three jobs, each of which reports to its own server."""
    original, _ = start_race(grid)
    racers = [original, PilotedJob(grid, B)]
    start_copy(grid, original.job.id)
    racers.append(PilotedJob(grid, C))
    for racer in racers:
        racer.pilot.grid = grid.restarted()
    return racers


@pytest.mark.parametrize("codes", [(0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1)])
def test_one_of_simultaneous_ends_wins(database: Database, clock: VirtualClock, codes: tuple[int, ...]) -> None:
    grid = Grid(database, clock, *SITES)
    for _ in range(REPETITIONS):
        racers = three_racers(grid)
        run_concurrently([partial(racer.finish, code) for racer, code in zip(racers, codes, strict=True)])
        job = racers[0].job
        assert job.state is (JobState.FAILED if all(codes) else JobState.DONE)
        events = events_of(grid, job.id)
        assert sum(event.to_state in FINAL for event in events) == 1
        race = race_of(grid, job.id).race
        won_by_copy = any(event.cause is JobCause.WON for event in events)
        assert (race.winner not in {0, job.id}) == won_by_copy
        assert all(racer.job.state in FINAL for racer in racers)


def test_removal_during_end_of_copy_gives_one_final_state(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, *SITES)
    for _ in range(REPETITIONS):
        original, copy, other = three_racers(grid)
        run_concurrently([copy.finish, partial(grid.change, JobChange.REMOVE, original.job.id), other.finish])
        assert original.job.state in {JobState.DONE, JobState.REMOVED}
        assert all(racer.job.state in FINAL for racer in (copy, other))
        assert race_of(grid, original.job.id).race.ended is not None


def test_copy_created_during_end_does_not_outlive_race(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, *SITES)
    for _ in range(REPETITIONS):
        original, copy, other = three_racers(grid)
        run_concurrently([original.finish, partial(start_copy, grid.restarted(), original.match.job_id)])
        assert original.job.state is JobState.DONE
        copies = race_of(grid, original.job.id).copies
        assert all(copy.state in FINAL for copy in copies)
        assert {copy.job.id, other.job.id} <= {copy.id for copy in copies}
