"""More copies than one answer has room for, on every database: they are told of and given up part by part."""

from __future__ import annotations

import pytest

from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.routing.routed_jobs import (
    MAX_GIVEN_UP,
    MAX_REASON_LENGTH,
    MAX_UNWANTED,
    list_copies,
    unwanted_copies,
)
from pilotage_server.storage.database.engine import Database
from support.grid import Grid
from support.jobs import an_operator
from support.routers import Router, open_jobs, router
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

__all__ = ["router"]

BEYOND = 3
"""So many copies more than one answer holds."""


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def test_unwanted_copies_are_told_a_thousand_at_a_time_and_those_after_them_when_they_are_asked_for(
    grid: Grid, router: Router
) -> None:
    ids = grid.submit(count=MAX_UNWANTED + BEYOND)
    router.take(*ids)
    grid.change(JobChange.REMOVE, *ids)
    first = grid.read(lambda transaction, _: unwanted_copies(transaction, router.name))
    assert ([each.job_id for each in first.copies], first.more) == (ids[:MAX_UNWANTED], True)
    last = first.copies[-1]
    rest = grid.read(lambda transaction, _: unwanted_copies(transaction, router.name, (last.job_id, last.attempt)))
    assert ([each.job_id for each in rest.copies], rest.more) == (ids[MAX_UNWANTED:], False)


def test_what_was_told_to_be_over_makes_room_for_the_next(grid: Grid, router: Router) -> None:
    ids = grid.submit(count=MAX_UNWANTED + BEYOND)
    router.take(*ids)
    grid.change(JobChange.REMOVE, *ids)
    router.finish(*ids[:BEYOND])
    assert [job_id for job_id, _ in router.unwanted()] == ids[BEYOND:]


def test_a_long_reason_is_cut_for_the_router(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    grid.write(
        lambda transaction, state: change_jobs(
            transaction, state, an_operator(), [job_id], JobChange.HOLD, "why " * 400
        )
    )
    (unwanted,) = router.tell().unwanted
    (listed,) = router.copies()
    assert len(unwanted.reason) == MAX_REASON_LENGTH
    assert unwanted.reason == listed.unwanted
    assert unwanted.reason.startswith(f"attempt 1 of job {job_id} has ended (held: ")


def test_copies_are_listed_from_any_of_them_on(grid: Grid, router: Router) -> None:
    ids = grid.submit(count=3)
    router.take(*ids)
    listed = grid.read(lambda transaction, _: list_copies(transaction, router.name, (ids[0], 1)))
    assert (open_jobs(listed.copies), listed.more) == (ids[1:], False)


def test_a_router_with_many_copies_is_given_up_a_thousand_at_a_time(grid: Grid, router: Router) -> None:
    ids = grid.submit(count=MAX_GIVEN_UP + BEYOND)
    router.take(*ids)
    grid.change(JobChange.HOLD, *ids[:BEYOND])
    router.stop()
    first, second = router.give_up(), router.give_up()
    assert (len(first.copies), first.more) == (MAX_GIVEN_UP, True)
    assert (len(second.copies), second.more) == (BEYOND, False)
    assert sorted(open_jobs((*first.copies, *second.copies))) == ids
    assert [job.lease_until for job in grid.jobs(ids).values()] == [None] * len(ids)
    assert {grid.job(each).state for each in ids[BEYOND:]} == {JobState.WAITING}
    assert router.give_up().copies == (), "there is nothing left to give up, and it is no error to ask"


def test_giving_up_leaves_jobs_of_pilots_and_of_other_routers_alone(grid: Grid, router: Router) -> None:
    mine, others, pilots = grid.submit(count=3)
    router.take(mine)
    other = Router(grid, "another").begin()
    other.take(others)
    assert grid.start_pilot().claim() == [pilots]
    router.stop()
    assert open_jobs(router.give_up().copies) == [mine]
    assert [grid.job(each).state for each in (others, pilots)] == [JobState.MATCHED] * 2
