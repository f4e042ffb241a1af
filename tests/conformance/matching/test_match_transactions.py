"""Matches in failing transactions, and beside other changes of one transaction, on every database."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from pilotage.errors import WorldError
from pilotage.job_description import JobDescription
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.matching.bind import SlotRequest, bind_jobs
from pilotage_server.operations.matching.offers import RequestingPilot, read_offers
from pilotage_server.operations.matching.work import WorkRequest
from pilotage_server.operations.server_state import ServerState
from pilotage_server.operations.startup.loading import count_pending, queue_recounts
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from support.grid import Grid, Pilot, a_slot, request_jobs
from support.jobs import a_user, an_operator
from support.virtual_clock import VirtualClock


def charged_cores(grid: Grid, job_id: int) -> float:
    """Return the weighted cores that a job's account is charged for."""
    task_queue = grid.state.waiting.task_queue(grid.job(job_id).task_queue_id)
    assert task_queue is not None
    return grid.state.shares.use(task_queue.account, grid.clock()).cores


def test_jobs_of_uncommitted_match_wait_again(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    ids = grid.submit(count=3)
    pilot = grid.start_pilot()

    def match_and_fail(transaction: Transaction, state: ServerState) -> None:
        answer = request_jobs(transaction, state, pilot.identity, WorkRequest((a_slot("a"), a_slot("b"))))
        assert [match.job_id for match in answer.matches] == ids[:2]
        raise LookupError("after the match")

    with pytest.raises(LookupError):
        grid.write(match_and_fail)
    assert charged_cores(grid, ids[0]) == 0
    assert pilot.claim(*(a_slot(f"s{number}") for number in range(4))) == ids


def test_jobs_reserved_before_connection_loss_wait_again(postgresql_database: Database, clock: VirtualClock) -> None:
    grid = Grid(postgresql_database, clock)
    ids = grid.submit(count=3)
    pilot = grid.start_pilot()
    with pytest.raises(WorldError):
        grid.write(
            lambda transaction, state: _bind_over_lost_connection(transaction, state, pilot, postgresql_database)
        )
    assert charged_cores(grid, ids[0]) == 0
    assert pilot.claim(*(a_slot(f"s{number}") for number in range(4))) == ids


def test_jobs_of_match_that_fails_between_two_task_queues_wait_again(
    database: Database, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = Grid(database, clock)
    ids = grid.submit(count=2) + grid.submit(count=2, request_memory_mib=0)
    pilot, slots = grid.start_pilot(), [a_slot(f"s{number}") for number in range(4)]
    sizes = _FailingSizes()
    with monkeypatch.context() as patch:
        patch.setattr(type(grid.state.descriptions), "sizes", lambda *_: sizes)
        with pytest.raises(LookupError, match="second task queue"):
            pilot.claim(*slots)
    assert charged_cores(grid, ids[0]) == 0
    assert sorted(pilot.claim(*slots)) == ids
    assert not any(grid.state.waiting.jobs_left(each) for each in grid.state.waiting.ids())


class _FailingSizes(dict[int, int]):
    """Sizes of descriptions, of which the third cannot be read: two jobs of the first task queue have theirs."""

    looks = 0

    def get(self, _template_id: int, default: Any = None, /) -> Any:
        self.looks += 1
        if self.looks == 3:
            raise LookupError("at the first job of the second task queue")
        return default


def _bind_over_lost_connection(transaction: Transaction, state: ServerState, pilot: Pilot, database: Database) -> None:
    credential = pilot.identity.pilot
    assert credential is not None
    backend_pid = transaction.session.execute(text("SELECT pg_backend_pid()")).scalar_one()
    with database.engine.connect() as other:
        other.execute(text("SELECT pg_terminate_backend(:backend_pid, 10000)"), {"backend_pid": backend_pid})
    offers = read_offers(state, credential.queue, [a_slot("a"), a_slot("b")])
    bind_jobs(transaction, state, [SlotRequest(RequestingPilot(credential, "node1"), offers)])


ONE_SLOT = WorkRequest((a_slot(),))


def match_one(transaction: Transaction, state: ServerState, pilot: Pilot) -> list[int]:
    """Request one job in this transaction and return its id."""
    return [match.job_id for match in request_jobs(transaction, state, pilot.identity, ONE_SLOT).matches]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_match_after_removal_counts_jobs_once(database: Database, clock: VirtualClock, count: int) -> None:
    grid = Grid(database, clock)
    pilot = grid.start_pilot()
    first, *others = [job_id for _ in range(count) for job_id in grid.submit()]

    def remove_and_match(transaction: Transaction, state: ServerState) -> list[int]:
        change_jobs(transaction, state, an_operator(), [first], JobChange.REMOVE, "")
        return match_one(transaction, state, pilot)

    matched_ids = grid.write(remove_and_match)
    others += grid.submit()
    assert matched_ids + [job_id for _ in range(count) for job_id in pilot.claim()] == others


def test_better_job_of_same_transaction_is_matched_first(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    pilot = grid.start_pilot()
    ids = grid.submit() + grid.submit()

    def submit_and_match(transaction: Transaction, state: ServerState) -> tuple[list[int], list[int]]:
        better = submit_jobs(transaction, state, a_user(), single_groups([JobDescription("/bin/true", priority=5)]))
        return list(better.job_ids), match_one(transaction, state, pilot)

    better, matched_ids = grid.write(submit_and_match)
    assert matched_ids == better
    assert pilot.claim(a_slot("a"), a_slot("b"), a_slot("c")) == ids


def test_recount_finds_job_missing_from_memory(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    pilot = grid.start_pilot()
    (job_id,) = grid.submit()
    grid.state.remove_waiting(grid.job(job_id).task_queue_id, job_id)
    assert pilot.claim() == []
    queue_recounts(grid.state)
    before = grid.state.waiting.snapshot()
    grid.read(lambda transaction, state: count_pending(transaction, state, before))
    assert pilot.claim() == [job_id]


def test_failed_removal_notifies_waiting_requests_again(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    pilot = grid.start_pilot()
    ids = [job_id for _ in range(3) for job_id in grid.submit()]
    notified: list[int] = []
    grid.state.waiting_listeners.append(lambda _, count: notified.append(count))

    def remove_and_fail(transaction: Transaction, state: ServerState) -> None:
        change_jobs(transaction, state, an_operator(), ids[:2], JobChange.REMOVE, "")
        assert match_one(transaction, state, pilot) == ids[2:]
        raise LookupError("before the commit")

    with pytest.raises(LookupError):
        grid.write(remove_and_fail)
    assert sum(notified) == 2
    assert {job.state for job in grid.jobs(ids).values()} == {JobState.WAITING}
    assert [job_id for _ in range(4) for job_id in pilot.claim()] == ids
