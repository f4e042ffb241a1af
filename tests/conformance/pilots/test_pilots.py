"""What a server knows of its pilots and their slots, and when they get no more work, on every database."""

from __future__ import annotations

import pytest

from pilotage.errors import NotFoundError
from pilotage.resources.tree import QueueId
from pilotage.values.pilots import GlideinReport, PilotState
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.attempts.pilot_calls import DrainPilot
from pilotage_server.operations.pilots.nodes import list_slots
from pilotage_server.operations.pilots.pilots import list_pilots
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.pilots import load_pilots
from support.grid import LONG, Grid, Pilot, an_idle_slot
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def test_a_draining_pilot_gets_no_work_and_keeps_what_it_has(grid: Grid) -> None:
    first, _ = grid.submit(count=2)
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.drain(pilot)
    answer = pilot.ask()
    assert (answer.matches, answer.commands) == ((), (DrainPilot("maintenance", evict=False),))
    assert pilot.finish(match).accepted
    assert grid.job(first).state is JobState.DONE


def test_a_pilot_that_drains_by_itself_drains_until_it_says_otherwise(grid: Grid) -> None:
    pilot = grid.start_pilot()
    pilot.show(an_idle_slot(), draining=True)
    pilot.beat()
    assert state_of(grid, pilot) is PilotState.DRAINING
    pilot.show(an_idle_slot(), draining=False)
    assert state_of(grid, pilot) is PilotState.RUNNING


def state_of(grid: Grid, pilot: Pilot) -> PilotState:
    """Return the state that the server has a pilot in."""
    return grid.read(lambda transaction, _: load_pilots(transaction.session, [pilot.stamp]))[pilot.stamp].state


def test_a_pilot_that_is_only_registered_ends_as_soon_as_it_is_drained(grid: Grid) -> None:
    pilot = grid.start_pilot()
    grid.drain(pilot)
    assert state_of(grid, pilot) is PilotState.ENDED


def test_a_stamp_that_nobody_uses_keeps_its_queue_for_minutes_and_one_in_a_batch_queue_for_days(grid: Grid) -> None:
    unused, submitted = grid.start_pilot(), grid.start_pilot()
    grid.glidein(GlideinReport(submitted.stamp, "42", PilotState.SUBMITTED))
    assert grid.pass_time(minutes=11).pilots == (unused.stamp,)
    assert grid.pass_time(days=6).pilots == ()
    assert grid.pass_time(days=2).pilots == (submitted.stamp,)


def test_a_pilot_whose_batch_system_has_it_still_is_waited_for_from_that_word_on(grid: Grid) -> None:
    pilot = grid.start_pilot()
    for _ in range(3):
        grid.glidein(GlideinReport(pilot.stamp, "42", PilotState.SUBMITTED))
        assert grid.pass_time(days=6).pilots == ()
    assert grid.pass_time(days=2).pilots == (pilot.stamp,)


def test_a_pilot_that_may_be_in_a_batch_queue_is_waited_for_as_one_that_is(grid: Grid) -> None:
    pilot = grid.start_pilot()
    grid.glidein(GlideinReport(pilot.stamp, "", PilotState.SUBMITTED))
    assert grid.pass_time(days=6).pilots == ()


def test_a_pilot_that_was_given_up_before_it_came_and_is_in_a_batch_queue_is_on_its_way_again(grid: Grid) -> None:
    pilot, other = grid.start_pilot(), grid.start_pilot()
    other.beat()
    grid.pass_time(hours=1)
    for each in (pilot, other):
        grid.glidein(GlideinReport(each.stamp, "42", PilotState.SUBMITTED))
    assert (state_of(grid, pilot), state_of(grid, other)) == (PilotState.SUBMITTED, PilotState.LOST)
    assert grid.pass_time(days=6).pilots == ()


def test_a_pilot_that_was_lost_and_speaks_lives_again(grid: Grid) -> None:
    pilot = grid.start_pilot()
    pilot.show()
    assert grid.pass_time(hours=1).pilots == (pilot.stamp,)
    grid.submit()
    assert pilot.beat().node_wanted
    assert len(pilot.claim()) == 1


def test_slots_are_kept_as_their_pilot_last_showed_them(grid: Grid) -> None:
    pilot = grid.start_pilot()
    assert pilot.beat().node_wanted
    assert not pilot.show(an_idle_slot("a"), an_idle_slot("b")).node_wanted
    assert not pilot.beat().node_wanted
    pilot.show(an_idle_slot("b", cpus=4), an_idle_slot("c"))
    slots = grid.read(lambda transaction, _: list_slots(transaction, QueueId.parse(LONG)))
    assert [(each.info.slot.name, each.info.slot.free.cpus, each.info.pilot_stamp) for each in slots] == [
        ("b", 4, pilot.stamp),
        ("c", 1, pilot.stamp),
    ]
    pilot.beat(ending=True)
    assert grid.read(lambda transaction, _: list_slots(transaction)) == ()


def test_pilots_are_listed_with_what_they_hold(grid: Grid) -> None:
    grid.submit(count=3)
    busy, idle = grid.start_pilot(), grid.start_pilot()
    match = busy.take()
    busy.take()
    busy.finish(match)
    grid.glidein_ended(idle)
    assert grid.glidein(GlideinReport("nobody", "1", PilotState.RUNNING)).unknown == ("nobody",)
    (info,) = grid.read(lambda transaction, _: list_pilots(transaction))
    assert (info.pilot.stamp, info.pilot.state, info.jobs, info.pilot.jobs_ended) == (
        busy.stamp,
        PilotState.RUNNING,
        1,
        1,
    )
    every = grid.read(lambda transaction, _: list_pilots(transaction, QueueId.parse(LONG), ended=True))
    assert {each.pilot.stamp: each.pilot.state for each in every}[idle.stamp] is PilotState.ENDED


def test_a_pilot_that_was_lost_of_late_is_listed_among_those_that_live(grid: Grid) -> None:
    def listed() -> list[tuple[str, PilotState]]:
        found = grid.read(lambda transaction, _: list_pilots(transaction))
        return [(each.pilot.stamp, each.pilot.state) for each in found]

    came, _never_came = grid.start_pilot(), grid.start_pilot()
    came.show()
    grid.pass_time(hours=1)
    assert listed() == [(came.stamp, PilotState.LOST)]
    grid.pass_time(minutes=61)
    assert listed() == []


def test_a_pilot_cannot_be_registered_for_a_queue_that_is_not_there(grid: Grid) -> None:
    with pytest.raises(NotFoundError, match="CERN/ce01/none"):
        grid.start_pilot("CERN/ce01/none")
