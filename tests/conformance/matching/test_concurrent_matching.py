"""Concurrent requests for jobs, on every database: each job is matched once, and limits are exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier, Event
from typing import TypeVar

import pytest
from sqlalchemy import text

from pilotage.errors import PilotageError
from pilotage.job_description import JobDescription
from pilotage.values.attempts import Outcome
from pilotage.values.offers import OccupiedSlot
from pilotage_server.core.accounting.limits import limit_key
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.matching.job_views import SINGLE_JOBS_AT_ONCE
from pilotage_server.core.rules import Rules, RunningLimit
from pilotage_server.operations.attempts.expiry import record_server_life
from pilotage_server.operations.attempts.reports import record_reports
from pilotage_server.operations.attempts.transitions import release_fences_of_pilots
from pilotage_server.operations.idempotency import IdempotentRequest
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.edit import edit_job
from pilotage_server.operations.matching.request_jobs import WorkBatch, WorkCall, WorkDone
from pilotage_server.operations.matching.work import WorkAnswer, WorkRequest
from pilotage_server.operations.server_state import ServerState
from pilotage_server.operations.startup.loading import count_pending, queue_recounts, refresh_state
from pilotage_server.operations.startup.sync import sync_events
from pilotage_server.storage.accounting import lock_counts
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.task_queues import load_task_queues
from support.database import has_lock_waiter, run_against_row_locks
from support.grid import LONG, Grid, Pilot, a_slot, request_jobs
from support.jobs import an_operator
from support.match_bench import a_slot_with
from support.virtual_clock import VirtualClock

THREADS = 6

Result = TypeVar("Result")


def run_concurrently(act: Callable[[int], Result]) -> list[Result]:
    """Run `act` in many threads that start together, and return the results."""
    start = Barrier(THREADS)

    def run(number: int) -> Result:
        start.wait(timeout=30)
        return act(number)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(run, range(THREADS)))


def take_all(pilot: Pilot, *, calls: int) -> list[int]:
    """Request jobs for two slots at a time, `calls` times, and return all job ids."""
    return [job for _ in range(calls) for job in pilot.claim(a_slot("a"), a_slot("b"))]


def test_concurrent_requests_match_each_job_once(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    ids = grid.submit(count=30) + grid.submit(count=30, request_memory_mib=0, priority=1)
    pilots = [grid.start_pilot() for _ in range(THREADS)]
    taken = [job for jobs in run_concurrently(lambda n: take_all(pilots[n], calls=4)) for job in jobs]
    assert max(Counter(taken).values()) == 1
    left = [job for job, record in grid.jobs(ids).items() if record.state is JobState.WAITING]
    assert sorted(taken + left) == ids
    assert take_all(grid.start_pilot(), calls=1 + len(left) // 2) == sorted(left, key=lambda job: (job <= 30, job))


def test_servers_of_one_database_match_each_job_once(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    ids = grid.submit(count=40)
    pilots = [grid.start_pilot() for _ in range(THREADS)]
    servers = [grid.restarted() for _ in range(THREADS)]
    for pilot, server in zip(pilots, servers, strict=True):
        pilot.grid = server
    taken = [job for jobs in run_concurrently(lambda n: take_all(pilots[n], calls=3)) for job in jobs]
    assert max(Counter(taken).values()) == 1
    grid.read(lambda transaction, state: refresh_state(transaction, state))
    rest = take_all(grid.start_pilot(), calls=20)
    assert sorted(taken + rest) == ids


def test_running_limit_holds_under_concurrent_requests(database: Database, clock: VirtualClock) -> None:
    limit = RunningLimit("CERN", None, None, "owner", "alice", at_most=5)
    grid = Grid(database, clock, LONG, rules=Rules(running_limits=(limit,)))
    grid.submit(count=40)
    pilots = [grid.start_pilot() for _ in range(THREADS)]
    servers = [grid.restarted() for _ in range(THREADS)]
    for pilot, server in zip(pilots, servers, strict=True):
        pilot.grid = server
    taken = [job for jobs in run_concurrently(lambda n: take_all(pilots[n], calls=3)) for job in jobs]
    assert len(taken) == 5


def test_outcomes_are_recorded_once_beside_sweeps(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    ids = grid.submit(count=THREADS * 2)
    pilots = [grid.start_pilot() for _ in range(THREADS)]
    matches = [[pilot.take(), pilot.take()] for pilot in pilots]
    clock.advance(minutes=30)

    def race(number: int) -> int:
        grid.sweep()
        return sum(pilots[number].report(match, Outcome.EXITED, exit_code=0).accepted for match in matches[number])

    accepted = sum(run_concurrently(race))
    states = Counter(record.state for record in grid.jobs(ids).values())
    assert states[JobState.DONE] == accepted == len(ids)


def test_jobs_submitted_to_another_server_notify_waiting_requests(database: Database, clock: VirtualClock) -> None:
    one, other = Grid(database, clock), Grid(database, clock)
    notified: list[tuple[str, int]] = []
    other.state.waiting_listeners.append(lambda queue, count: notified.append((queue.account.owner, count)))
    one.submit(count=3)
    other.read(refresh_state)
    other.read(refresh_state)
    assert notified == [("alice", 3)]


def test_release_beside_an_edit_uses_the_new_description(postgresql_database: Database, clock: VirtualClock) -> None:
    database = postgresql_database
    grid = Grid(database, clock)
    (job_id,) = grid.submit(hold=True)
    edited, go_on = Event(), Event()

    def edit(transaction: Transaction) -> None:
        edit_job(transaction, grid.state, an_operator(), job_id, JobDescription("/bin/true", request_cpus=4))
        edited.set()
        assert go_on.wait(timeout=30)

    editing = database.submit_write(edit)
    assert edited.wait(timeout=30)
    releasing = database.submit_write(
        lambda transaction: change_jobs(transaction, grid.state, an_operator(), [job_id], JobChange.RELEASE, "")
    )
    while not database.read(has_lock_waiter):
        assert not releasing.done()
    go_on.set()
    editing.result(timeout=30)
    releasing.result(timeout=30)
    (task_queue,) = database.read(
        lambda transaction: load_task_queues(transaction.session, [grid.job(job_id).task_queue_id])
    )
    assert (grid.job(job_id).state, task_queue.needs.cpus) == (JobState.WAITING, 4)
    assert grid.start_pilot().claim(a_slot(cpus=4)) == [job_id]


def _hold_both(transaction: Transaction, pilot: Pilot) -> None:
    ids = [lease.job_id for lease in pilot.held]
    change_jobs(transaction, pilot.grid.state, an_operator(), ids[::-1], JobChange.HOLD, "")


def _extend_leases(transaction: Transaction, pilot: Pilot) -> None:
    assert record_server_life(transaction, pilot.grid.state) == timedelta(hours=3)


def _end_pilot(transaction: Transaction, pilot: Pilot) -> None:
    release_fences_of_pilots(transaction, pilot.grid.state, [pilot.stamp])


@pytest.mark.parametrize("act", [_hold_both, _extend_leases, _end_pilot])
def test_rows_of_several_jobs_are_locked_in_order_of_ids(
    postgresql_database: Database, clock: VirtualClock, act: Callable[[Transaction, Pilot], None]
) -> None:
    database = postgresql_database
    grid = Grid(database, clock)
    first, second = grid.submit(count=2)
    pilot = grid.start_pilot()
    pilot.claim(a_slot("a"), a_slot("b"))
    if act is _end_pilot:
        grid.change(JobChange.RESCHEDULE, first, second)
    grid.write(record_server_life)
    clock.advance(hours=3)
    # A changed row moves behind the others of its table.
    move_back = text("UPDATE jobs SET priority = priority + 1 WHERE id = :id")
    database.write(lambda transaction: transaction.session.execute(move_back, {"id": first}))

    def act_in_order_of_rows(transaction: Transaction) -> None:
        transaction.session.execute(text("SET LOCAL enable_indexscan = off"))
        act(transaction, pilot)

    lock = "SELECT id FROM jobs WHERE id = :key FOR UPDATE NOWAIT"
    run_against_row_locks(database, lock, [first, second], act_in_order_of_rows)


def test_pilots_of_different_reports_are_locked_in_one_order(
    postgresql_database: Database, clock: VirtualClock
) -> None:
    database = postgresql_database
    grid = Grid(database, clock)
    grid.submit(count=2)
    pilots = [grid.start_pilot() for _ in range(2)]
    matches = [pilot.take() for pilot in pilots]
    ended = [
        (pilot.identity, [JobReport(match.job_id, 1, outcome=Outcome.EXITED, exit_code=code)])
        for pilot, match, code in zip(pilots, matches, (1, 0), strict=True)
    ]
    results = run_against_row_locks(
        database,
        "SELECT stamp FROM pilots WHERE stamp = :key FOR UPDATE NOWAIT",
        [pilot.stamp for pilot in pilots],
        lambda transaction: record_reports(transaction, grid.state, ended[::-1]),
    )
    assert [result.accepted for (result,) in results] == [True, True]


def test_request_served_by_two_servers_gets_one_answer(postgresql_database: Database, clock: VirtualClock) -> None:
    database = postgresql_database
    server = Grid(database, clock)
    ids = server.submit(count=2)
    pilot = server.start_pilot()
    one, other = (WorkBatch(grid.state, _jobs_of) for grid in (server, server.restarted()))
    call = WorkCall(IdempotentRequest.of(pilot.identity, "RequestJobs", "r1", "digest"), WorkRequest((a_slot(),)))
    repeated: list[Future[WorkDone]] = []

    def serve_both(transaction: Transaction) -> list[WorkDone | PilotageError]:
        done = one.run(transaction, [call])
        repeated.append(database.submit_batch(other, call))
        while not database.read(has_lock_waiter):
            assert not repeated[0].done()
        return done

    (done,) = database.write(serve_both)
    assert isinstance(done, WorkDone)
    assert done.response == b"1"
    assert repeated[0].result(timeout=30) == WorkDone(b"1", None)
    states = [server.job(job_id).state for job_id in ids]
    assert states == [JobState.MATCHED, JobState.WAITING]


def _jobs_of(answer: WorkAnswer, _waited: timedelta) -> bytes:
    return b",".join(b"%d" % match.job_id for match in answer.matches)


def test_concurrent_syncs_count_jobs_of_another_server_once(postgresql_database: Database, clock: VirtualClock) -> None:
    other_server = Grid(postgresql_database, clock)
    other_server.submit()
    server = other_server.restarted()
    (task_queue_id,) = server.state.waiting.ids()
    for cycle in range(1, 6):
        other_server.submit(count=3)
        assert sum(run_concurrently(lambda _: server.read(sync_events))) == 3
        assert server.state.waiting.count(task_queue_id) == 1 + 3 * cycle


def test_jobs_of_failed_match_on_another_server_are_found_again(
    postgresql_database: Database, clock: VirtualClock
) -> None:
    server = Grid(postgresql_database, clock)
    ids = server.submit(count=2)
    other_server = server.restarted()
    pilot, other_pilot = server.start_pilot(), other_server.start_pilot()
    notified: list[int] = []
    server.state.waiting_listeners.append(lambda task_queue, count: notified.append(count))

    def match_and_fail(transaction: Transaction, state: ServerState) -> None:
        request_jobs(transaction, state, other_pilot.identity, WorkRequest((a_slot("a"), a_slot("b"))))
        assert pilot.claim() == []
        raise LookupError("before the commit")

    with pytest.raises(LookupError):
        other_server.write(match_and_fail)
    assert pilot.claim() == []
    queue_recounts(server.state)
    before = server.state.waiting.snapshot()
    server.read(lambda transaction, state: count_pending(transaction, state, before))
    assert notified == [2]
    assert pilot.claim(a_slot("a"), a_slot("b")) == ids


def test_job_evaluated_alone_is_left_to_the_server_that_locked_it(
    postgresql_database: Database, clock: VirtualClock
) -> None:
    server = Grid(postgresql_database, clock)
    ids = server.submit(count=6, requirements_expression="MY.ProcId % 2 == 1")
    other_server = server.restarted()
    pilot, other_pilot = server.start_pilot(), other_server.start_pilot()

    def match_beside(transaction: Transaction, state: ServerState) -> list[int]:
        answer = request_jobs(transaction, state, other_pilot.identity, WorkRequest((a_slot("a"), a_slot("b"))))
        assert pilot.claim(a_slot("c"), a_slot("d")) == [ids[5]], "the others are locked"
        return [match.job_id for match in answer.matches]

    assert other_server.write(match_beside) == [ids[1], ids[3]]
    assert pilot.claim(a_slot("c"), a_slot("d")) == []
    assert [server.job(id_).state for id_ in ids] == [JobState.WAITING, JobState.MATCHED] * 3


def test_concurrent_requests_match_jobs_evaluated_alone_once(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    ids = grid.submit(count=SINGLE_JOBS_AT_ONCE, requirements_expression="MY.ProcId % 2 == 1")
    pilots = [grid.start_pilot() for _ in range(THREADS)]
    taken = [job for jobs in run_concurrently(lambda n: take_all(pilots[n], calls=3)) for job in jobs]
    assert sorted(taken + take_all(grid.start_pilot(), calls=1)) == ids[1::2]


def test_certain_job_that_another_request_gets_leaves_the_next_one_waiting(
    postgresql_database: Database, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = Grid(postgresql_database, clock)
    ids = grid.submit(count=2)
    pilot, other_pilot = grid.start_pilot(), grid.start_pilot()
    wants_first = a_slot_with("a", Start="TARGET.ProcId == 0")
    (waiting,) = (grid.state.waiting.get(id_) for id_ in grid.state.waiting.ids())
    assert waiting is not None
    lock, claimed, taken = grid.state.lock, waiting.claimed, list[int]()

    class InterruptedLock:
        """The lock of the server's state; another request is served after the first one has claimed a job."""

        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()
            if set(claimed) == set(ids[:1]) and not taken:
                monkeypatch.setattr(grid.state, "lock", lock)
                taken.extend(other_pilot.claim())

    monkeypatch.setattr(grid.state, "lock", InterruptedLock())
    assert (pilot.claim(wants_first), taken) == ([], ids[:1])
    assert pilot.claim() == ids[1:]


def test_certain_job_locks_no_first_job_that_no_slot_gets(postgresql_database: Database, clock: VirtualClock) -> None:
    grid = Grid(postgresql_database, clock)
    ids = grid.submit(count=4)
    pilot, other_pilot = grid.start_pilot(), grid.start_pilot()
    slots = (a_slot_with("a", Start="TARGET.ProcId == 3"), a_slot("b"))

    def match_beside(transaction: Transaction, state: ServerState) -> None:
        answer = request_jobs(transaction, state, pilot.identity, WorkRequest(slots))
        assert [match.job_id for match in answer.matches] == [ids[3], ids[0]]
        assert other_pilot.claim(a_slot("c"), a_slot("d")) == ids[1:3]

    grid.write(match_beside)


def test_reading_ends_where_other_transactions_have_locked_very_many_jobs(
    postgresql_database: Database, clock: VirtualClock
) -> None:
    grid = Grid(postgresql_database, clock)
    ids = grid.submit(count=1200, requirements_expression="MY.ProcId >= 0")
    pilot = grid.start_pilot()
    slots = [a_slot(f"slot{number}") for number in range(64)]

    def match_beside(transaction: Transaction) -> None:
        transaction.session.execute(text("SELECT id FROM jobs WHERE id <= :last FOR UPDATE"), {"last": ids[1099]})
        assert pilot.claim(*slots) == []

    postgresql_database.write(match_beside)
    assert pilot.claim(*slots) == ids[:64]


def test_missed_certain_job_takes_no_other_one(postgresql_database: Database, clock: VirtualClock) -> None:
    server = Grid(postgresql_database, clock)
    ids = server.submit(count=3)
    other_server = server.restarted()
    pilot, other_pilot = server.start_pilot(), other_server.start_pilot()
    wants_first = a_slot_with("a", Start="TARGET.ProcId == 0")

    def match_beside(transaction: Transaction, state: ServerState) -> None:
        answer = request_jobs(transaction, state, other_pilot.identity, WorkRequest((a_slot(),)))
        assert [match.job_id for match in answer.matches] == ids[:1]
        assert pilot.claim(wants_first, a_slot("b")) == ids[1:2]

    other_server.write(match_beside)
    assert server.state.matcher.committed_total == 1
    assert pilot.claim() == ids[2:]


def test_occupied_slots_lock_no_counters_of_limits(postgresql_database: Database, clock: VirtualClock) -> None:
    database = postgresql_database
    limit = RunningLimit("CERN", None, None, "owner", "alice", at_most=3)
    grid = Grid(database, clock, LONG, rules=Rules(running_limits=(limit,)))
    grid.submit(count=2)
    pilot = grid.start_pilot()
    occupied = tuple(
        a_slot(job.slot)._replace(occupied=OccupiedSlot(job.job_id, job.attempt, 0.0, ordered=False))
        for job in pilot.request_jobs(a_slot("a"), a_slot("b")).matches
    )

    def request_beside(transaction: Transaction) -> None:
        lock_counts(transaction.session, [limit_key(limit)])
        requested = database.submit_write(
            lambda other: request_jobs(other, grid.state, pilot.identity, WorkRequest(occupied))
        )
        assert requested.result(timeout=30).vacates == ()

    database.write(request_beside)
