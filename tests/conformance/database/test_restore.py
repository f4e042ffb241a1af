"""A restore of a backup: numbers, fences and feed positions of the new incarnation.

The lost time is what happened between `snapshot` and `restore`. Here nothing happens in it that the database would
show, so a test restores the database that it has: a server does not know what was lost either.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.errors import FeedPositionLostError, NotFoundError
from pilotage.values.attempts import AttemptKey, Outcome
from pilotage_server.core.incarnation import STEPS, LastSeen
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.installation import Belongings, Restored, begin_incarnation
from pilotage_server.operations.jobs import queries
from pilotage_server.operations.jobs.new_jobs import PART_JOBS, store_part
from pilotage_server.operations.jobs.queries import read_feed, read_news
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.storage.database.engine import Database, record_schema
from pilotage_server.storage.database.installation import load_installation
from pilotage_server.storage.submission.parts import unfinished_submissions
from support.grid import Grid
from support.jobs import a_description, a_user, an_operator
from support.virtual_clock import VirtualClock

LEASE = timedelta(minutes=20)
"""The default lease of the rules."""


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    database.write(lambda transaction: record_schema(transaction.session))
    return Grid(database, clock)


def restore(grid: Grid, seen: LastSeen | None = None, known: int = 0) -> tuple[Grid, Restored]:
    """Begin a new incarnation and return the grid with a new server, and the result."""
    own = Belongings({}, None, seen)
    restored = grid.database.write(lambda transaction: begin_incarnation(transaction, own, LEASE, known))
    return grid.restarted(), restored


def test_waiting_job_is_fenced_for_its_own_lease(grid: Grid) -> None:
    (usual,) = grid.submit()
    (short,) = grid.submit(lease=timedelta(seconds=60))
    grid, _ = restore(grid)
    pilot = grid.start_pilot()
    assert pilot.claim() == []
    assert grid.why(usual).summary.endswith("UTC: a backup was restored, and an attempt of the lost time may be alive.")
    grid.pass_time(seconds=61)
    match = pilot.take()
    assert match.job_id == short
    pilot.finish(match)
    grid.pass_time(minutes=18)
    assert pilot.claim() == []
    grid.pass_time(minutes=2)
    match = pilot.take()
    assert (match.job_id, match.attempt) == (usual, STEPS.attempt + 1)


def test_parts_of_a_long_submission_are_stored_after_the_fence(grid: Grid) -> None:
    groups = single_groups([a_description(count=PART_JOBS + 1)])
    ids = grid.write(lambda transaction, state: submit_jobs(transaction, state, a_user(), groups)).job_ids
    grid, _ = restore(grid)

    assert not grid.write(lambda transaction, state: store_part(transaction, state, ids[0]))
    with pytest.raises(NotFoundError):
        grid.job(ids[-1])
    grid.pass_time(minutes=21)
    assert grid.read(lambda transaction, _: unfinished_submissions(transaction.session, transaction.now)) == [ids[0]]
    grid.write(lambda transaction, state: store_part(transaction, state, ids[0]))
    assert grid.job(ids[-1]).next_attempt == STEPS.attempt + 1


def test_lease_of_backup_goes_on_with_its_pilot(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    pilot.start(match)
    grid.clock.advance(timedelta(days=2))
    grid, _ = restore(grid)
    pilot.grid = grid
    grid.sweep()
    assert [lease.attempt for lease in pilot.beat().renewed] == [1]
    assert pilot.finish(match).refusal == ""
    assert grid.job(job_id).state is JobState.DONE


@pytest.mark.parametrize("outcome", [Outcome.EVICTED, Outcome.DECLINED, Outcome.KILLED, Outcome.START_FAILED])
def test_end_of_attempt_of_backup_does_not_end_the_fence(grid: Grid, outcome: Outcome) -> None:
    (job_id,) = grid.submit()
    first = grid.start_pilot()
    match = first.take()
    grid, _ = restore(grid)
    first.grid = grid
    second = grid.start_pilot()
    first.report(match, outcome)
    assert grid.job(job_id).state is JobState.WAITING
    assert second.claim() == []
    grid.pass_time(minutes=19)
    assert second.claim() == []
    grid.pass_time(minutes=2)
    assert second.take().attempt == STEPS.attempt + 1


@pytest.mark.parametrize("ends", ["report", "pilot", "glidein"])
def test_end_of_taken_attempt_does_not_end_the_fence(grid: Grid, ends: str) -> None:
    (job_id,) = grid.submit()
    first = grid.start_pilot()
    match = first.take()
    grid.change(JobChange.RESCHEDULE, job_id)
    grid, _ = restore(grid)
    first.grid = grid
    second = grid.start_pilot()
    if ends == "report":
        first.report(match, Outcome.KILLED)
    elif ends == "pilot":
        first.beat(ending=True)
    else:
        grid.glidein_ended(first)
    assert second.claim() == []
    grid.pass_time(minutes=21)
    assert second.claim() == [job_id]


@pytest.mark.parametrize("before", [JobChange.HOLD, JobChange.REMOVE])
def test_job_that_waits_again_within_a_lease_is_fenced(grid: Grid, before: JobChange) -> None:
    (job_id,) = grid.submit()
    grid.change(before, job_id)
    grid, _ = restore(grid)
    grid.change(JobChange.RELEASE if before is JobChange.HOLD else JobChange.RESCHEDULE, job_id)
    pilot = grid.start_pilot()
    assert grid.job(job_id).state is JobState.WAITING
    assert pilot.claim() == []
    grid.pass_time(minutes=21)
    assert pilot.claim() == [job_id]


def test_job_that_waits_again_later_is_not_fenced(grid: Grid) -> None:
    (job_id,) = grid.submit()
    grid.change(JobChange.HOLD, job_id)
    grid, _ = restore(grid)
    grid.pass_time(minutes=21)
    grid.change(JobChange.RELEASE, job_id)
    assert grid.start_pilot().take().attempt == STEPS.attempt + 1


def test_attempt_lost_before_the_backup_is_not_adopted(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.pass_time(minutes=21)
    grid, _ = restore(grid)
    pilot.grid = grid
    assert [lease.job_id for lease in pilot.beat().lost] == [job_id]
    assert pilot.finish(match).refusal != ""
    assert grid.job(job_id).state is JobState.WAITING


def test_attempts_of_the_lost_time_are_refused(grid: Grid) -> None:
    (job_id,) = grid.submit()
    grid, restored = restore(grid)
    pilot = grid.start_pilot()
    lost = [AttemptKey(job_id, 1), AttemptKey(restored.incarnation.backup.job + 3, 1)]
    pilot.held = list(lost)
    assert [(lease.job_id, lease.attempt) for lease in pilot.beat().lost] == lost
    assert all(pilot.report(each, Outcome.EXITED, exit_code=0).refusal for each in lost)
    assert grid.job(job_id).state is JobState.WAITING


def test_new_jobs_are_not_fenced_and_count_attempts_from_one(grid: Grid) -> None:
    (old,) = grid.submit()
    grid, _ = restore(grid)
    ids = grid.submit(count=3)
    assert ids == [STEPS.job + 1, STEPS.job + 2, STEPS.job + 3]
    match = grid.start_pilot().take()
    assert (match.job_id, match.attempt) == (ids[0], 1)
    assert grid.job(old).state is JobState.WAITING


def test_restored_backup_continues_above_every_number_known(grid: Grid) -> None:
    grid.submit(count=3)
    known = grid.database.read(lambda transaction: load_installation(transaction.session))
    seen = LastSeen(known.database_id, 4, STEPS.job * 5 + 17, STEPS.position * 5 + 170)
    _, restored = restore(grid, seen, known=2)
    assert restored.incarnation.number == 5
    assert restored.incarnation.base[:2] == (STEPS.job * 6, STEPS.position * 6)
    _, again = restore(grid, known=9)
    assert again.incarnation.number == 10
    assert again.incarnation.base == (STEPS.job * 9, STEPS.position * 9, STEPS.attempt * 9)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a page of the feed end between the events of two incarnations."""
    monkeypatch.setattr(queries, "WINDOW", 4)
    monkeypatch.setattr(queries, "NEWS_WINDOW", 4)


@pytest.mark.usefixtures("narrow")
def test_reader_crosses_the_gap_of_a_restore(grid: Grid) -> None:
    old = grid.submit(count=6)
    grid, restored = restore(grid)
    new = grid.submit(count=6)
    read: list[int] = []
    position, at_end = 0, False
    while not at_end:
        page = grid.read(lambda transaction, _: read_feed(transaction, an_operator(), position))  # noqa: B023
        read += [event.job_id for event in page.events]
        position, at_end = page.position, page.at_end
    assert read == old + new
    news, pages = grid.read(lambda transaction, _: read_news(transaction, restored.incarnation.backup.position)), 1
    while not news.at_end:
        news = grid.read(lambda transaction, _: read_news(transaction, news.position))  # noqa: B023
        pages += 1
    assert pages == 2


def test_positions_of_the_lost_time_are_refused(grid: Grid) -> None:
    grid.submit(count=2)
    last = grid.read(lambda transaction, _: read_feed(transaction, an_operator(), 0)).position
    grid, _ = restore(grid)
    (new,) = grid.submit()
    for lost in (last + 1, STEPS.position - 1):
        with pytest.raises(FeedPositionLostError, match="it is of the time that the restore of") as error:
            grid.read(lambda transaction, _: read_feed(transaction, an_operator(), lost))  # noqa: B023
        assert error.value.resume_after == last
    for kept in (last, STEPS.position):
        page = grid.read(lambda transaction, _: read_feed(transaction, an_operator(), kept))  # noqa: B023
        assert [event.job_id for event in page.events] == [new]
