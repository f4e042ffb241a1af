"""Those who take part in a race come to their ends at the same moment, on different servers: one of them wins."""

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
from support.races import SITES, B, C, Runner, race_of, start_copy, start_race
from support.virtual_clock import VirtualClock

ROUNDS = 8


def at_once(acts: Sequence[Callable[[], object]]) -> None:
    """Do all of these, each in a thread of its own; what one of them raises is raised."""
    start = Barrier(len(acts))

    def run(act: Callable[[], object]) -> None:
        start.wait(timeout=30)
        act()

    with ThreadPoolExecutor(len(acts)) as threads:
        list(threads.map(run, acts))


def events_of(grid: Grid, job_id: int) -> tuple[FeedEvent, ...]:
    return grid.read(lambda transaction, _: get_events(transaction, an_operator(), job_id))


def three_racers(grid: Grid) -> list[Runner]:
    """Start a race of three, each of whom speaks to a server of his own."""
    original, _ = start_race(grid)
    racers = [original, Runner(grid, B)]
    start_copy(grid, original.job.id)
    racers.append(Runner(grid, C))
    for racer in racers:
        racer.pilot.grid = grid.restarted()
    return racers


@pytest.mark.parametrize("codes", [(0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1)])
def test_of_those_who_end_at_once_one_wins_whoever_comes_first(
    database: Database, clock: VirtualClock, codes: tuple[int, ...]
) -> None:
    grid = Grid(database, clock, *SITES)
    for _ in range(ROUNDS):
        racers = three_racers(grid)
        at_once([partial(racer.ends, code) for racer, code in zip(racers, codes, strict=True)])
        job = racers[0].job
        assert job.state is (JobState.FAILED if all(codes) else JobState.DONE)
        events = events_of(grid, job.id)
        assert sum(event.to_state in FINAL for event in events) == 1
        race = race_of(grid, job.id).race
        won_by_copy = any(event.cause is JobCause.WON for event in events)
        assert (race.winner not in {0, job.id}) == won_by_copy
        assert all(racer.job.state in FINAL for racer in racers)


def test_an_original_that_is_removed_while_a_copy_ends_is_either_removed_or_done(
    database: Database, clock: VirtualClock
) -> None:
    grid = Grid(database, clock, *SITES)
    for _ in range(ROUNDS):
        original, copy, other = three_racers(grid)
        at_once([copy.ends, partial(grid.change, JobChange.REMOVE, original.job.id), other.ends])
        assert original.job.state in {JobState.DONE, JobState.REMOVED}
        assert all(racer.job.state in FINAL for racer in (copy, other))
        assert race_of(grid, original.job.id).race.ended is not None


def test_a_copy_is_made_while_its_original_ends_and_never_outlives_the_race(
    database: Database, clock: VirtualClock
) -> None:
    grid = Grid(database, clock, *SITES)
    for _ in range(ROUNDS):
        original, copy, other = three_racers(grid)
        at_once([original.ends, partial(start_copy, grid.restarted(), original.match.job_id)])
        assert original.job.state is JobState.DONE
        copies = race_of(grid, original.job.id).copies
        assert all(each.state in FINAL for each in copies)
        assert {copy.job.id, other.job.id} <= {each.id for each in copies}
