"""What a batch system says of a glidein while others move its pilot, or the pilot's jobs: what they did stands."""

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
from support.database import somebody_waits
from support.grid import LONG, Grid, Pilot
from support.jobs import an_operator
from support.routers import Router, a_copy
from support.virtual_clock import VirtualClock


@pytest.fixture
def grid(postgresql_database: Database, clock: VirtualClock) -> Grid:
    return Grid(postgresql_database, clock)


def lose_while(grid: Grid, pilot: Pilot, act: Callable[[Transaction, ServerState], object]) -> None:
    """Report that the pilot's glidein is gone, as in `report_while`."""
    report_while(grid, gone(pilot), act)


def report_while(grid: Grid, report: GlideinReport, act: Callable[[Transaction, ServerState], object]) -> None:
    """Report of a glidein; the report meets `act`, which is committed once the report waits."""

    def tell(transaction: Transaction, state: ServerState) -> None:
        assert report_glideins(transaction, state, an_operator(), [report]).unknown == ()

    meet(grid, act, tell)


def meet(
    grid: Grid, act: Callable[[Transaction, ServerState], object], late: Callable[[Transaction, ServerState], object]
) -> None:
    """Let `late` meet `act`, which is committed once `late` waits for it."""
    database = grid.database
    acted, go_on = Event(), Event()

    def act_slowly(transaction: Transaction) -> None:
        act(transaction, grid.state)
        acted.set()
        assert go_on.wait(timeout=30)

    acting = database.submit_write(act_slowly)
    assert acted.wait(timeout=30)
    waiting = database.submit_write(lambda transaction: late(transaction, grid.state))
    while not database.read(somebody_waits):
        assert not waiting.done()
    go_on.set()
    acting.result(timeout=30)
    waiting.result(timeout=30)


def test_a_job_that_is_taken_away_at_once_is_no_loss_and_the_others_are_lost(grid: Grid) -> None:
    taken_away, other = grid.submit(count=2)
    pilot = grid.start_pilot()
    assert sorted(pilot.claim() + pilot.claim()) == [taken_away, other]

    def hold(transaction: Transaction, state: ServerState) -> None:
        change_jobs(transaction, state, an_operator(), [taken_away], JobChange.HOLD, "stop")

    lose_while(grid, pilot, hold)
    assert (grid.job(taken_away).state, grid.job(taken_away).reason) == (JobState.HELD, "stop")
    assert (grid.job(other).state, grid.job(other).spent_attempts) == (JobState.WAITING, 1)
    assert grid.history(taken_away) == [(1, "held")]


def test_an_attempt_that_another_has_by_then_goes_on(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot, router = grid.start_pilot(), Router(grid).begin()
    assert pilot.claim() == [job_id]

    def pass_on(transaction: Transaction, state: ServerState) -> None:
        end_pilot_leases(transaction, state, pilot.stamp, "given back")
        route_jobs(transaction, state, router.turn, [a_copy(job_id, LONG)])

    lose_while(grid, pilot, pass_on)
    job = grid.job(job_id)
    assert (job.state, job.attempt, job.slot, job.spent_attempts) == (JobState.MATCHED, 2, "north", 0)


def gone(pilot: Pilot) -> GlideinReport:
    return GlideinReport(pilot.stamp, "17", PilotState.ENDED, "it was cancelled")


def there(pilot: Pilot) -> GlideinReport:
    return GlideinReport(pilot.stamp, "17", PilotState.SUBMITTED)


def state_of(grid: Grid, pilot: Pilot) -> PilotState:
    return grid.read(lambda transaction, _: load_pilots(transaction.session, [pilot.stamp]))[pilot.stamp].state


def test_a_pilot_that_comes_while_its_glidein_is_said_to_be_there_runs(grid: Grid) -> None:
    pilot = grid.start_pilot()
    report_while(grid, there(pilot), lambda transaction, _: record_contact(transaction, {pilot.stamp: None}))
    assert state_of(grid, pilot) is PilotState.RUNNING


def test_a_pilot_that_is_drained_while_its_glidein_is_said_to_be_there_has_ended(grid: Grid) -> None:
    pilot = grid.start_pilot()

    def drain(transaction: Transaction, state: ServerState) -> None:
        drain_pilots(transaction, state, [pilot.stamp], "maintenance", evict=False)

    report_while(grid, there(pilot), drain)
    assert state_of(grid, pilot) is PilotState.ENDED


def test_a_pilot_whose_glidein_is_said_to_be_gone_as_it_comes_has_ended(grid: Grid) -> None:
    pilot = grid.start_pilot()

    def tell(transaction: Transaction, state: ServerState) -> None:
        report_glideins(transaction, state, an_operator(), [gone(pilot)])

    meet(grid, tell, lambda transaction, _: record_contact(transaction, {pilot.stamp: None}))
    assert state_of(grid, pilot) is PilotState.ENDED
    pilot.beat()
    assert state_of(grid, pilot) is PilotState.ENDED


def draining(pilot: Pilot) -> Callable[[Transaction, ServerState], object]:
    return lambda transaction, state: drain_pilots(transaction, state, [pilot.stamp], "maintenance", evict=False)


def test_a_pilot_that_comes_as_it_is_drained_runs_on_and_is_told_to_drain(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    meet(grid, lambda transaction, _: record_contact(transaction, {pilot.stamp: None}), draining(pilot))
    assert state_of(grid, pilot) is PilotState.DRAINING
    assert [type(each).__name__ for each in pilot.beat().commands] == ["DrainPilot"]
    assert (pilot.claim(), grid.job(job_id).state) == ([], JobState.WAITING)


def test_a_pilot_that_is_drained_as_it_comes_has_ended(grid: Grid) -> None:
    pilot = grid.start_pilot()
    meet(grid, draining(pilot), lambda transaction, _: record_contact(transaction, {pilot.stamp: None}))
    assert state_of(grid, pilot) is PilotState.ENDED


def test_a_pilot_whose_glidein_is_said_to_be_there_as_it_is_drained_comes_and_is_told_to_drain(grid: Grid) -> None:
    pilot = grid.start_pilot()
    meet(
        grid,
        lambda transaction, state: report_glideins(transaction, state, an_operator(), [there(pilot)]),
        draining(pilot),
    )
    assert state_of(grid, pilot) is PilotState.SUBMITTED
    assert [type(each).__name__ for each in pilot.beat().commands] == ["DrainPilot"]


def test_a_pilot_that_ends_as_it_is_drained_is_said_to_be_over(grid: Grid) -> None:
    pilot = grid.start_pilot()
    over: list[str] = []

    def drain(transaction: Transaction, state: ServerState) -> None:
        over.extend(drain_pilots(transaction, state, [pilot.stamp], "maintenance", evict=False))

    meet(grid, lambda transaction, state: report_glideins(transaction, state, an_operator(), [gone(pilot)]), drain)
    assert (over, state_of(grid, pilot)) == ([pilot.stamp], PilotState.ENDED)


def test_an_end_that_is_told_again_of_a_pilot_that_is_just_being_forgotten_keeps_no_other_from_being_heard(
    grid: Grid,
) -> None:
    old = grid.start_pilot()
    grid.glidein_ended(old)
    grid.pass_time(days=400)
    other = grid.start_pilot()

    def come_and_forget(transaction: Transaction, state: ServerState) -> None:
        record_contact(transaction, {other.stamp: None})
        assert remove_ended_pilots(transaction, state) == 1

    def tell(transaction: Transaction, state: ServerState) -> None:
        report_glideins(transaction, state, an_operator(), [gone(old), there(other)])

    meet(grid, come_and_forget, tell)
    assert state_of(grid, other) is PilotState.RUNNING
