"""More routed jobs than one response holds: they are listed and given up page by page."""

from __future__ import annotations

import pytest

from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.routing.routed_jobs import (
    MAX_GIVEN_UP,
    MAX_REASON_LENGTH,
    MAX_UNWANTED,
    list_routed_jobs,
    unwanted_routed_jobs,
)
from pilotage_server.storage.database.engine import Database
from support.grid import Grid
from support.jobs import an_operator
from support.routers import Router, open_jobs, router
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

__all__ = ["router"]

BEYOND = 3
"""The number of routed jobs above the limit of one response."""


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def test_unwanted_routed_jobs_are_listed_in_pages(grid: Grid, router: Router) -> None:
    ids = grid.submit(count=MAX_UNWANTED + BEYOND)
    router.take(*ids)
    grid.change(JobChange.REMOVE, *ids)
    first = grid.read(lambda transaction, _: unwanted_routed_jobs(transaction, router.name))
    assert ([routed_job.job_id for routed_job in first.copies], first.more) == (ids[:MAX_UNWANTED], True)
    last = first.copies[-1]
    rest = grid.read(lambda transaction, _: unwanted_routed_jobs(transaction, router.name, (last.job_id, last.attempt)))
    assert ([routed_job.job_id for routed_job in rest.copies], rest.more) == (ids[MAX_UNWANTED:], False)


def test_reported_ends_make_room_for_next_unwanted_jobs(grid: Grid, router: Router) -> None:
    ids = grid.submit(count=MAX_UNWANTED + BEYOND)
    router.take(*ids)
    grid.change(JobChange.REMOVE, *ids)
    router.finish(*ids[:BEYOND])
    assert [job_id for job_id, _ in router.unwanted()] == ids[BEYOND:]


def test_long_reason_is_truncated(grid: Grid, router: Router) -> None:
    (job_id,) = grid.submit()
    router.take(job_id)
    grid.write(
        lambda transaction, state: change_jobs(
            transaction, state, an_operator(), [job_id], JobChange.HOLD, "why " * 400
        )
    )
    (unwanted,) = router.send_reports().unwanted
    (listed,) = router.copies()
    assert len(unwanted.reason) == MAX_REASON_LENGTH
    assert unwanted.reason == listed.unwanted
    assert unwanted.reason.startswith(f"attempt 1 of job {job_id} has ended (held: ")


def test_lists_routed_jobs_after_a_key(grid: Grid, router: Router) -> None:
    ids = grid.submit(count=3)
    router.take(*ids)
    listed = grid.read(lambda transaction, _: list_routed_jobs(transaction, router.name, (ids[0], 1)))
    assert (open_jobs(listed.copies), listed.more) == (ids[1:], False)


def test_giving_up_releases_jobs_in_pages(grid: Grid, router: Router) -> None:
    ids = grid.submit(count=MAX_GIVEN_UP + BEYOND)
    router.take(*ids)
    grid.change(JobChange.HOLD, *ids[:BEYOND])
    router.stop()
    first, second = router.give_up(), router.give_up()
    assert (len(first.copies), first.more) == (MAX_GIVEN_UP, True)
    assert (len(second.copies), second.more) == (BEYOND, False)
    assert sorted(open_jobs((*first.copies, *second.copies))) == ids
    assert [job.lease_until for job in grid.jobs(ids).values()] == [None] * len(ids)
    assert {grid.job(job_id).state for job_id in ids[BEYOND:]} == {JobState.WAITING}
    assert router.give_up().copies == (), "giving up nothing is no error"


def test_giving_up_affects_only_jobs_of_the_router(grid: Grid, router: Router) -> None:
    own, others, pilots = grid.submit(count=3)
    router.take(own)
    other = Router(grid, "another").begin()
    other.take(others)
    assert grid.start_pilot().claim() == [pilots]
    router.stop()
    assert open_jobs(router.give_up().copies) == [own]
    assert [grid.job(job_id).state for job_id in (others, pilots)] == [JobState.MATCHED] * 2
