"""Leases: renewal, expiry, re-adoption, and server downtime."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from threading import Event

import pytest

from pilotage import clock as machine
from pilotage.values.pilots import GlideinReport, PilotState
from pilotage_server.background import LeaseTasks
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.attempts.expiry import record_server_life
from pilotage_server.operations.attempts.pilot_calls import DrainPilot
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.storage.database.engine import Database, record_schema
from support.grid import Grid
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def test_expired_lease_requeues_job(grid: Grid) -> None:
    (job_id,) = grid.submit()
    grid.start_pilot().take()
    assert grid.pass_time(minutes=19).jobs == ()
    assert grid.pass_time(minutes=2).jobs == (job_id,)
    assert (grid.job(job_id).state, grid.job(job_id).spent_attempts) == (JobState.WAITING, 1)
    assert grid.start_pilot().claim() == [job_id]


def test_heartbeats_renew_lease(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.take()
    for _ in range(6):
        assert grid.pass_time(minutes=15).jobs == ()
        assert [lease.job_id for lease in pilot.beat().renewed] == [job_id]


def test_job_may_set_its_lease_length(grid: Grid) -> None:
    (job_id,) = grid.submit(lease=timedelta(minutes=2))
    pilot = grid.start_pilot()
    assert pilot.take().lease == timedelta(minutes=2)
    assert pilot.beat().next_in == timedelta(seconds=30)
    assert grid.pass_time(minutes=3).jobs == (job_id,)


def test_heartbeat_readopts_lost_attempt(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.start(pilot.take())
    grid.pass_time(minutes=30)
    answer = pilot.beat()
    assert ([lease.job_id for lease in answer.renewed], answer.lost) == ([job_id], ())
    assert (grid.job(job_id).state, grid.job(job_id).spent_attempts) == (JobState.RUNNING, 0)


def test_heartbeat_answer_lists_lost_attempts(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.pass_time(minutes=30)
    grid.start_pilot().take()
    (lost,) = pilot.beat().lost
    assert (lost.job_id, lost.attempt) == (job_id, match.attempt)
    assert "lease lost" in lost.reason


def test_end_of_glidein_ends_its_leases_at_once(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.take()
    grid.glidein_ended(pilot)
    job = grid.job(job_id)
    assert (job.state, job.spent_attempts) == (JobState.WAITING, 1)
    assert isinstance(pilot.request_jobs().commands[-1], DrainPilot)


@pytest.mark.parametrize("seconds_later", [0, 10], ids=["node-failed", "called-since"])
def test_leases_outlast_glidein_that_may_still_run(grid: Grid, seconds_later: int) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.start(pilot.take())
    grid.pass_time(seconds=seconds_later)
    pilot.beat()
    age = timedelta(seconds=seconds_later)
    ended = GlideinReport(pilot.stamp, "42", PilotState.ENDED, "gone", processes_ended=bool(seconds_later), age=age)
    assert grid.glidein(ended).worked == (pilot.stamp,)
    assert grid.start_pilot().claim() == []
    assert (grid.job(job_id).state, pilot.request_jobs().commands) == (JobState.RUNNING, ())
    assert grid.pass_time(minutes=21).jobs == (job_id,)


def test_ending_pilot_requeues_jobs_without_spending_attempts(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.take()
    pilot.beat(ending=True, ending_reason="its time is over")
    job = grid.job(job_id)
    assert (job.state, job.spent_attempts, job.reason) == (JobState.WAITING, 0, "its time is over")
    assert pilot.claim() == []


def test_sweep_after_server_downtime_expires_no_lease(grid: Grid) -> None:
    (job_id,) = grid.submit()
    grid.start_pilot().take()
    grid.sweep()
    grid.clock.advance(timedelta(hours=3))
    swept = grid.sweep()
    assert (swept.jobs, swept.gap) == ((), timedelta(hours=3))
    assert grid.job(job_id).state is JobState.MATCHED


def test_server_downtime_extends_leases(grid: Grid) -> None:
    (job_id,) = grid.submit()
    grid.write(record_server_life)
    pilot = grid.start_pilot()
    pilot.take()
    grid.clock.advance(hours=3)
    assert grid.write(record_server_life) == timedelta(hours=3)
    assert grid.sweep().jobs == ()
    assert grid.sweep().pilots == ()
    assert grid.pass_time(minutes=21).jobs == (job_id,)


@pytest.mark.parametrize(("jump_s", "gap_s"), [(20, 20), (1, 0), (-20, 0)])
def test_leases_last_as_long_when_the_clock_is_set(grid: Grid, jump_s: float, gap_s: float) -> None:
    (job_id,) = grid.submit()
    grid.write(record_server_life)
    grid.start_pilot().take()
    grid.clock.advance(seconds=10 + jump_s)
    elapsed = timedelta(seconds=10)
    assert grid.write(partial(record_server_life, elapsed=elapsed)) == timedelta(seconds=gap_s)
    assert grid.pass_time(minutes=19, seconds=48).jobs == ()
    assert grid.pass_time(seconds=3 + max(0, -jump_s)).jobs == (job_id,)


async def test_slow_transaction_is_not_taken_for_a_set_clock(
    sqlite_database: Database, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_database.write(lambda transaction: record_schema(transaction.session))
    grid = Grid(sqlite_database, clock)
    monkeypatch.setattr(machine, "boot_time_s", lambda: grid.clock().timestamp())
    (job_id,) = grid.submit()
    grid.start_pilot().take()
    lease_until = grid.job(job_id).lease_until
    tasks = LeaseTasks(Transactions(grid.database, grid.state), lambda _: None, lambda _: None)
    may_go_on = Event()
    grid.database.submit_write(lambda _: may_go_on.wait(60))
    grid.database.submit_write(lambda _: grid.clock.advance(seconds=5))
    alive = asyncio.ensure_future(tasks.note_alive())
    await asyncio.sleep(0)  # it waits for the writer now, and shares the transaction of the slow operation
    may_go_on.set()
    await alive
    await tasks.note_alive()
    assert grid.job(job_id).lease_until == lease_until


def test_server_with_slow_clock_does_not_set_life_mark_back(grid: Grid) -> None:
    grid.write(record_server_life)
    grid.clock.advance(hours=-3)
    assert grid.write(record_server_life) == timedelta(0)
    grid.clock.advance(hours=3)
    assert grid.write(record_server_life) == timedelta(0)
