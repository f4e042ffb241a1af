"""Glidein reports beside concurrent changes of the pilot or of its jobs."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

import pytest

from pilotage.values.pilots import GlideinReport, PilotState
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.attempts.heartbeats import end_pilot_leases
from pilotage_server.operations.attempts.pilot_calls import record_contact
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.retention import remove_ended_pilots
from pilotage_server.operations.pilots.pilots import drain_pilots, report_glideins
from pilotage_server.operations.routing.route_jobs import route_jobs
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.pilots import load_pilots
from support.database import has_lock_waiter
from support.grid import LONG, Grid, Pilot
from support.jobs import an_operator
from support.routers import Router, a_copy
from support.virtual_clock import VirtualClock


@pytest.fixture
def grid(postgresql_database: Database, clock: VirtualClock) -> Grid:
    return Grid(postgresql_database, clock)


def end_glidein_while(grid: Grid, pilot: Pilot, first: Callable[[Transaction, ServerState], object]) -> None:
    """Report the end of the pilot's glidein, as `report_while` does."""
    report_while(grid, ended(pilot), first)


def report_while(grid: Grid, report: GlideinReport, first: Callable[[Transaction, ServerState], object]) -> None:
    """Report a glidein while the transaction of `first` is open; it commits once the report waits for it."""

    def record_report(transaction: Transaction, state: ServerState) -> None:
        assert report_glideins(transaction, state, an_operator(), [report]).unknown == ()

    run_overlapping(grid, first, record_report)


def run_overlapping(
    grid: Grid,
    first: Callable[[Transaction, ServerState], object],
    second: Callable[[Transaction, ServerState], object],
) -> None:
    """Run `second` while the transaction of `first` is open; `first` commits once `second` waits for it."""
    database = grid.database
    is_first_done, go_on = Event(), Event()

    def run_first(transaction: Transaction) -> None:
        first(transaction, grid.state)
        is_first_done.set()
        assert go_on.wait(timeout=30)

    first_future = database.submit_write(run_first)
    assert is_first_done.wait(timeout=30)
    second_future = database.submit_write(lambda transaction: second(transaction, grid.state))
    while not database.read(has_lock_waiter):
        assert not second_future.done()
    go_on.set()
    first_future.result(timeout=30)
    second_future.result(timeout=30)


def test_job_held_beside_end_of_glidein_is_not_lost(grid: Grid) -> None:
    held, other = grid.submit(count=2)
    pilot = grid.start_pilot()
    assert sorted(pilot.claim() + pilot.claim()) == [held, other]

    def hold(transaction: Transaction, state: ServerState) -> None:
        change_jobs(transaction, state, an_operator(), [held], JobChange.HOLD, "stop")

    end_glidein_while(grid, pilot, hold)
    assert (grid.job(held).state, grid.job(held).reason) == (JobState.HELD, "stop")
    assert (grid.job(other).state, grid.job(other).spent_attempts) == (JobState.WAITING, 1)
    assert grid.history(held) == [(1, "held")]


def test_attempt_of_next_holder_survives_end_of_glidein(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot, router = grid.start_pilot(), Router(grid).begin()
    assert pilot.claim() == [job_id]

    def give_to_router(transaction: Transaction, state: ServerState) -> None:
        end_pilot_leases(transaction, state, pilot.stamp, "given back")
        route_jobs(transaction, state, router.turn, [a_copy(job_id, LONG)])

    end_glidein_while(grid, pilot, give_to_router)
    job = grid.job(job_id)
    assert (job.state, job.attempt, job.slot, job.spent_attempts) == (JobState.MATCHED, 2, "north", 0)


def ended(pilot: Pilot) -> GlideinReport:
    return GlideinReport(pilot.stamp, "17", PilotState.ENDED, "it was cancelled", processes_ended=True)


def submitted(pilot: Pilot) -> GlideinReport:
    return GlideinReport(pilot.stamp, "17", PilotState.SUBMITTED)


def state_of(grid: Grid, pilot: Pilot) -> PilotState:
    return grid.read(lambda transaction, _: load_pilots(transaction.session, [pilot.stamp]))[pilot.stamp].state


def test_first_contact_beside_submitted_report_leaves_pilot_running(grid: Grid) -> None:
    pilot = grid.start_pilot()
    report_while(grid, submitted(pilot), lambda transaction, _: record_contact(transaction, {pilot.stamp: None}))
    assert state_of(grid, pilot) is PilotState.RUNNING


def test_drain_beside_submitted_report_ends_pilot(grid: Grid) -> None:
    pilot = grid.start_pilot()

    def drain(transaction: Transaction, state: ServerState) -> None:
        drain_pilots(transaction, state, an_operator(), [pilot.stamp], "maintenance", evict=False)

    report_while(grid, submitted(pilot), drain)
    assert state_of(grid, pilot) is PilotState.ENDED


def test_end_of_glidein_beside_first_contact_ends_pilot(grid: Grid) -> None:
    pilot = grid.start_pilot()

    def report_end(transaction: Transaction, state: ServerState) -> None:
        report_glideins(transaction, state, an_operator(), [ended(pilot)])

    run_overlapping(grid, report_end, lambda transaction, _: record_contact(transaction, {pilot.stamp: None}))
    assert state_of(grid, pilot) is PilotState.ENDED
    pilot.beat()
    assert state_of(grid, pilot) is PilotState.ENDED


def draining(pilot: Pilot) -> Callable[[Transaction, ServerState], object]:
    return lambda transaction, state: drain_pilots(
        transaction, state, an_operator(), [pilot.stamp], "maintenance", evict=False
    )


def test_drain_after_first_contact_leaves_pilot_draining(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    run_overlapping(grid, lambda transaction, _: record_contact(transaction, {pilot.stamp: None}), draining(pilot))
    assert state_of(grid, pilot) is PilotState.DRAINING
    assert [type(command).__name__ for command in pilot.beat().commands] == ["DrainPilot"]
    assert (pilot.claim(), grid.job(job_id).state) == ([], JobState.WAITING)


def test_first_contact_after_drain_finds_pilot_ended(grid: Grid) -> None:
    pilot = grid.start_pilot()
    run_overlapping(grid, draining(pilot), lambda transaction, _: record_contact(transaction, {pilot.stamp: None}))
    assert state_of(grid, pilot) is PilotState.ENDED


def test_drain_after_submitted_report_orders_pilot_to_drain(grid: Grid) -> None:
    pilot = grid.start_pilot()
    run_overlapping(
        grid,
        lambda transaction, state: report_glideins(transaction, state, an_operator(), [submitted(pilot)]),
        draining(pilot),
    )
    assert state_of(grid, pilot) is PilotState.SUBMITTED
    assert [type(command).__name__ for command in pilot.beat().commands] == ["DrainPilot"]


def test_drain_returns_pilot_whose_glidein_just_ended(grid: Grid) -> None:
    pilot = grid.start_pilot()
    drained: list[str] = []

    def drain(transaction: Transaction, state: ServerState) -> None:
        done = drain_pilots(transaction, state, an_operator(), [pilot.stamp], "maintenance", evict=False)
        drained.extend(done.unknown)

    run_overlapping(
        grid, lambda transaction, state: report_glideins(transaction, state, an_operator(), [ended(pilot)]), drain
    )
    assert (drained, state_of(grid, pilot)) == ([pilot.stamp], PilotState.ENDED)


def test_report_of_removed_pilot_does_not_block_other_reports(
    grid: Grid,
) -> None:
    old = grid.start_pilot()
    grid.glidein_ended(old)
    grid.pass_time(days=400)
    other = grid.start_pilot()

    def contact_and_remove(transaction: Transaction, state: ServerState) -> None:
        record_contact(transaction, {other.stamp: None})
        assert remove_ended_pilots(transaction, state) == 1

    def report_both(transaction: Transaction, state: ServerState) -> None:
        report_glideins(transaction, state, an_operator(), [ended(old), submitted(other)])

    run_overlapping(grid, contact_and_remove, report_both)
    assert state_of(grid, other) is PilotState.RUNNING
