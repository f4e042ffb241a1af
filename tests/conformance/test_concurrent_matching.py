"""Many threads ask for jobs at once, on every database: no job twice, none forgotten, limits exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier, Event
from typing import TypeVar
from unittest.mock import ANY

import pytest
from sqlalchemy import text

from pilotage.errors import PilotageError
from pilotage.job_description import JobDescription
from pilotage_server.core.job_changes import JobChange
from pilotage_server.core.jobs import JobState
from pilotage_server.core.reports import JobReport, Outcome
from pilotage_server.core.rules import Rules, RunningLimit
from pilotage_server.operations.change_jobs import change_jobs
from pilotage_server.operations.edit_job import edit_job
from pilotage_server.operations.following import follow
from pilotage_server.operations.idempotency import Asked
from pilotage_server.operations.load_world import count_uncounted, refresh_world, share_doubts
from pilotage_server.operations.reports import record_reports
from pilotage_server.operations.work import WorkAnswer, WorkRequest
from pilotage_server.operations.work_batch import WorkBatch, WorkCall, WorkDone
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Database, Unit
from pilotage_server.storage.task_queues import load_task_queues
from support.database import somebody_waits
from support.grid import LONG, Grid, Pilot, a_slot, request_jobs
from support.submissions import an_operator
from support.virtual_clock import VirtualClock

THREADS = 6

Result = TypeVar("Result")


def at_once(act: Callable[[int], Result]) -> list[Result]:
    """Run `act` in many threads that start together, and return what came of it."""
    start = Barrier(THREADS)

    def run(number: int) -> Result:
        start.wait(timeout=30)
        return act(number)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(run, range(THREADS)))


def take_all(pilot: Pilot, *, rounds: int) -> list[int]:
    """Ask again and again, two slots at a time, and return the ids of all that came."""
    return [job for _ in range(rounds) for job in pilot.claim(a_slot("a"), a_slot("b"))]


def test_no_job_goes_to_two_pilots_and_none_is_forgotten(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    ids = grid.submit(count=30) + grid.submit(count=30, request_memory_mib=0, priority=1)
    pilots = [grid.start_pilot() for _ in range(THREADS)]
    taken = [job for jobs in at_once(lambda n: take_all(pilots[n], rounds=4)) for job in jobs]
    assert max(Counter(taken).values()) == 1
    left = [job for job, record in grid.jobs(ids).items() if record.state is JobState.WAITING]
    assert sorted(taken + left) == ids
    assert take_all(grid.start_pilot(), rounds=1 + len(left) // 2) == sorted(left, key=lambda job: (job <= 30, job))


def test_servers_that_share_a_database_never_give_a_job_twice(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    ids = grid.submit(count=40)
    pilots = [grid.start_pilot() for _ in range(THREADS)]
    servers = [grid.restarted() for _ in range(THREADS)]
    for pilot, server in zip(pilots, servers, strict=True):
        pilot.grid = server
    taken = [job for jobs in at_once(lambda n: take_all(pilots[n], rounds=3)) for job in jobs]
    assert max(Counter(taken).values()) == 1
    grid.read(lambda unit, world: refresh_world(unit, world))
    rest = take_all(grid.start_pilot(), rounds=20)
    assert sorted(taken + rest) == ids


def test_a_running_limit_holds_when_all_ask_at_once(database: Database, clock: VirtualClock) -> None:
    limit = RunningLimit("CERN", None, None, "owner", "alice", at_most=5)
    grid = Grid(database, clock, LONG, rules=Rules(running_limits=(limit,)))
    grid.submit(count=40)
    pilots = [grid.start_pilot() for _ in range(THREADS)]
    servers = [grid.restarted() for _ in range(THREADS)]
    for pilot, server in zip(pilots, servers, strict=True):
        pilot.grid = server
    taken = [job for jobs in at_once(lambda n: take_all(pilots[n], rounds=3)) for job in jobs]
    assert len(taken) == 5


def test_outcomes_and_sweeps_that_race_are_recorded_once(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    ids = grid.submit(count=THREADS * 2)
    pilots = [grid.start_pilot() for _ in range(THREADS)]
    matches = [[pilot.take(), pilot.take()] for pilot in pilots]
    clock.advance(minutes=30)

    def race(number: int) -> int:
        grid.sweep()
        return sum(pilots[number].report(match, Outcome.EXITED, exit_code=0).accepted for match in matches[number])

    accepted = sum(at_once(race))
    states = Counter(record.state for record in grid.jobs(ids).values())
    assert states[JobState.DONE] == accepted == len(ids)


def test_a_server_hears_of_jobs_that_another_took_in(database: Database, clock: VirtualClock) -> None:
    one, other = Grid(database, clock), Grid(database, clock)
    told: list[tuple[str, int]] = []
    other.world.on_enqueued.append(lambda queue, count: told.append((queue.account.owner, count)))
    one.submit(count=3)
    other.read(refresh_world)
    other.read(refresh_world)
    assert told == [("alice", 3)]


def test_a_release_that_meets_an_edit_lets_the_job_wait_where_its_new_description_belongs(
    postgresql_database: Database, clock: VirtualClock
) -> None:
    database = postgresql_database
    grid = Grid(database, clock)
    (job_id,) = grid.submit(hold=True)
    edited, go_on = Event(), Event()

    def edit(unit: Unit) -> None:
        edit_job(unit, grid.world, an_operator(), job_id, JobDescription("/bin/true", request_cpus=4))
        edited.set()
        assert go_on.wait(timeout=30)

    editing = database.submit_write(edit)
    assert edited.wait(timeout=30)
    releasing = database.submit_write(
        lambda unit: change_jobs(unit, grid.world, an_operator(), [job_id], JobChange.RELEASE, "")
    )
    while not database.read(somebody_waits):
        assert not releasing.done()
    go_on.set()
    editing.result(timeout=30)
    releasing.result(timeout=30)
    (task_queue,) = database.read(lambda unit: load_task_queues(unit.session, [grid.job(job_id).task_queue_id]))
    assert (grid.job(job_id).state, task_queue.needs.cpus) == (JobState.WAITING, 4)
    assert grid.start_pilot().claim(a_slot(cpus=4)) == [job_id]


def test_of_reports_that_say_different_things_the_pilots_are_locked_in_one_order(
    postgresql_database: Database, clock: VirtualClock
) -> None:
    database = postgresql_database
    grid = Grid(database, clock)
    grid.submit(count=2)
    pilots = [grid.start_pilot() for _ in range(2)]
    matches = [pilot.take() for pilot in pilots]
    locked, go_on = Event(), Event()

    def lock(unit: Unit) -> None:
        locking = text("SELECT stamp FROM pilots WHERE stamp = :stamp FOR UPDATE NOWAIT")
        unit.session.execute(locking, {"stamp": pilots[0].stamp})
        locked.set()
        assert go_on.wait(timeout=30)
        unit.session.execute(locking, {"stamp": pilots[1].stamp})

    ended = [
        (pilot.identity, [JobReport(match.job_id, 1, outcome=Outcome.EXITED, exit_code=code)])
        for pilot, match, code in zip(pilots, matches, (1, 0), strict=True)
    ]
    other = database.submit_write(lock)
    assert locked.wait(timeout=30)
    reporting = database.submit_write(lambda unit: record_reports(unit, grid.world, ended[::-1]))
    while not database.read(somebody_waits):
        assert not reporting.done()
    go_on.set()
    other.result(timeout=30)
    assert [result.accepted for (result,) in reporting.result(timeout=30)] == [True, True]


def test_a_request_that_two_servers_serve_at_once_gets_one_answer(
    postgresql_database: Database, clock: VirtualClock
) -> None:
    database = postgresql_database
    here = Grid(database, clock)
    ids = here.submit(count=2)
    pilot = here.start_pilot()
    one, other = (WorkBatch(grid.world, _jobs_of) for grid in (here, here.restarted()))
    call = WorkCall(Asked.of(pilot.identity, "RequestJobs", "r1", "digest"), WorkRequest((a_slot(),)))
    again: list[Future[WorkDone]] = []

    def serve_both(unit: Unit) -> list[WorkDone | PilotageError]:
        done = one.run(unit, [call])
        again.append(database.submit_batch(other, call))
        while not database.read(somebody_waits):
            assert not again[0].done()
        return done

    assert database.write(serve_both) == [WorkDone(b"1", ANY)]
    assert again[0].result(timeout=30) == WorkDone(b"1", None)
    states = [here.job(job_id).state for job_id in ids]
    assert states == [JobState.MATCHED, JobState.WAITING]


def _jobs_of(answer: WorkAnswer, _waited: timedelta) -> bytes:
    return b",".join(b"%d" % match.job_id for match in answer.matches)


def test_who_follows_another_server_in_many_threads_at_once_counts_its_jobs_once(
    postgresql_database: Database, clock: VirtualClock
) -> None:
    there = Grid(postgresql_database, clock)
    there.submit()
    here = there.restarted()
    (task_queue_id,) = here.world.waiting.ids()
    for round_ in range(1, 6):
        there.submit(count=3)
        assert sum(at_once(lambda _: here.read(follow))) == 3
        assert here.world.waiting.count(task_queue_id) == 1 + 3 * round_


def test_jobs_that_another_server_could_not_keep_are_found_again(
    postgresql_database: Database, clock: VirtualClock
) -> None:
    here = Grid(postgresql_database, clock)
    ids = here.submit(count=2)
    there = here.restarted()
    mine, others = here.start_pilot(), there.start_pilot()
    told: list[int] = []
    here.world.on_enqueued.append(lambda task_queue, count: told.append(count))

    def match_and_fail(unit: Unit, world: World) -> None:
        request_jobs(unit, world, others.identity, WorkRequest((a_slot("a"), a_slot("b"))))
        assert mine.claim() == []
        raise LookupError("before the commit")

    with pytest.raises(LookupError):
        there.write(match_and_fail)
    assert mine.claim() == []
    share_doubts(here.world)
    before = here.world.waiting.snapshot()
    here.read(lambda unit, world: count_uncounted(unit, world, before))
    assert told == [2]
    assert mine.claim(a_slot("a"), a_slot("b")) == ids
