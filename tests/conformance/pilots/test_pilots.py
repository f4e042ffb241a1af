"""States of pilots on the server: registration, draining, loss, expiry, and lists of pilots and slots."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.errors import NotFoundError
from pilotage.resources.tree import QueueId
from pilotage.values.pilots import GlideinReport, PilotState
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.pilots.nodes import NodeId
from pilotage_server.core.pilots.pilots import PilotFilter
from pilotage_server.core.resources.bans import TreeNode
from pilotage_server.operations.attempts.pilot_calls import DrainPilot
from pilotage_server.operations.jobs.retention import remove_ended_pilots
from pilotage_server.operations.pilots.nodes import list_slots
from pilotage_server.operations.pilots.pilots import (
    LONGEST_LOG,
    drain_pilots,
    get_pilot_log,
    list_pilots,
    put_pilot_logs,
)
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.pilots import find_pilot_log, load_pilots
from support.grid import LONG, Grid, Pilot, a_tree, an_idle_slot
from support.jobs import an_operator
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def test_draining_pilot_gets_no_job_and_finishes_its_own(grid: Grid) -> None:
    first, _ = grid.submit(count=2)
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.drain(pilot)
    answer = pilot.request_jobs()
    assert (answer.matches, answer.commands) == ((), (DrainPilot("maintenance", evict=False),))
    assert pilot.finish(match).accepted
    assert grid.job(first).state is JobState.DONE


def test_pilot_drains_while_it_reports_draining(grid: Grid) -> None:
    pilot = grid.start_pilot()
    pilot.show(an_idle_slot(), draining=True)
    pilot.beat()
    assert state_of(grid, pilot) is PilotState.DRAINING
    pilot.show(an_idle_slot(), draining=False)
    assert state_of(grid, pilot) is PilotState.RUNNING


def state_of(grid: Grid, pilot: Pilot) -> PilotState:
    """Return a pilot's stored state."""
    return grid.read(lambda transaction, _: load_pilots(transaction.session, [pilot.stamp]))[pilot.stamp].state


def test_drain_ends_registered_pilot(grid: Grid) -> None:
    pilot = grid.start_pilot()
    grid.drain(pilot)
    assert state_of(grid, pilot) is PilotState.ENDED


def test_unused_stamp_expires_earlier_than_submitted_one(grid: Grid) -> None:
    unused, submitted = grid.start_pilot(), grid.start_pilot()
    grid.glidein(GlideinReport(submitted.stamp, "42", PilotState.SUBMITTED))
    assert grid.pass_time(minutes=11).pilots == (unused.stamp,)
    assert grid.pass_time(days=6).pilots == ()
    assert grid.pass_time(days=2).pilots == (submitted.stamp,)


def test_submitted_report_extends_wait_for_pilot(grid: Grid) -> None:
    pilot = grid.start_pilot()
    for _ in range(3):
        grid.glidein(GlideinReport(pilot.stamp, "42", PilotState.SUBMITTED))
        assert grid.pass_time(days=6).pilots == ()
    assert grid.pass_time(days=2).pilots == (pilot.stamp,)


def test_pilot_without_glidein_id_waits_as_submitted(grid: Grid) -> None:
    pilot = grid.start_pilot()
    grid.glidein(GlideinReport(pilot.stamp, "", PilotState.SUBMITTED))
    assert grid.pass_time(days=6).pilots == ()


def test_submitted_report_revives_pilot_lost_before_contact(grid: Grid) -> None:
    pilot, other = grid.start_pilot(), grid.start_pilot()
    other.beat()
    grid.pass_time(hours=1)
    for reported in (pilot, other):
        grid.glidein(GlideinReport(reported.stamp, "42", PilotState.SUBMITTED))
    assert (state_of(grid, pilot), state_of(grid, other)) == (PilotState.SUBMITTED, PilotState.LOST)
    assert grid.pass_time(days=6).pilots == ()


def test_lost_pilot_runs_again_after_contact(grid: Grid) -> None:
    pilot = grid.start_pilot()
    pilot.show()
    assert grid.pass_time(hours=1).pilots == (pilot.stamp,)
    grid.submit()
    assert pilot.beat().node_wanted
    assert len(pilot.claim()) == 1


def test_slots_are_stored_as_last_reported(grid: Grid) -> None:
    pilot = grid.start_pilot()
    assert pilot.beat().node_wanted
    assert not pilot.show(an_idle_slot("a"), an_idle_slot("b")).node_wanted
    assert not pilot.beat().node_wanted
    pilot.show(an_idle_slot("b", cpus=4), an_idle_slot("c"))
    slots = grid.read(lambda transaction, _: list_slots(transaction, QueueId.parse(LONG)))
    assert [(slot.info.slot.name, slot.info.slot.free.cpus, slot.info.pilot_stamp) for slot in slots] == [
        ("b", 4, pilot.stamp),
        ("c", 1, pilot.stamp),
    ]
    pilot.beat(ending=True)
    assert grid.read(lambda transaction, _: list_slots(transaction)) == ()


def test_pilots_are_listed_with_their_jobs(grid: Grid) -> None:
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
    all_pilots = grid.read(
        lambda transaction, _: list_pilots(transaction, PilotFilter(QueueId.parse(LONG), ended=True))
    )
    assert {info.pilot.stamp: info.pilot.state for info in all_pilots}[idle.stamp] is PilotState.ENDED


def test_recently_lost_pilot_is_listed_among_live_ones(grid: Grid) -> None:
    def listed() -> list[tuple[str, PilotState]]:
        pilots = grid.read(lambda transaction, _: list_pilots(transaction))
        return [(info.pilot.stamp, info.pilot.state) for info in pilots]

    contacted, _not_contacted = grid.start_pilot(), grid.start_pilot()
    contacted.show()
    grid.pass_time(hours=1)
    assert listed() == [(contacted.stamp, PilotState.LOST)]
    grid.pass_time(minutes=61)
    assert listed() == []


def test_pilot_of_unknown_queue_cannot_be_registered(grid: Grid) -> None:
    with pytest.raises(NotFoundError, match="CERN/ce01/none"):
        grid.start_pilot("CERN/ce01/none")


def test_output_of_a_pilot_that_died_is_stored_until_the_pilot_goes(grid: Grid, clock: VirtualClock) -> None:
    died, polite = grid.start_pilot(), grid.start_pilot()
    for pilot in (died, polite):
        pilot.show()
    polite.beat(ending=True, ending_reason="no more jobs")
    reports = [GlideinReport(pilot.stamp, "42", PilotState.ENDED, "exit code 1") for pilot in (died, polite)]
    assert grid.glidein(*reports).silent == (died.stamp,)
    logs = [(died.stamp, "x" * LONGEST_LOG + "the end"), ("unknown", "lost")]
    grid.write(lambda transaction, _: put_pilot_logs(transaction, an_operator(), logs))
    sent, text = grid.read(lambda transaction, _: get_pilot_log(transaction, died.stamp))
    assert (sent, len(text), text[-8:]) == (clock(), LONGEST_LOG, "xthe end")
    with pytest.raises(NotFoundError, match=polite.stamp):
        grid.read(lambda transaction, _: get_pilot_log(transaction, polite.stamp))
    with pytest.raises(NotFoundError, match="unknown"):
        grid.read(lambda transaction, _: get_pilot_log(transaction, "unknown"))
    clock.advance(grid.state.rules.retention.pilots + timedelta(days=1))
    grid.write(lambda transaction, state: remove_ended_pilots(transaction, state))
    assert grid.read(lambda transaction, _: find_pilot_log(transaction.session, died.stamp)) is None


def test_pilots_of_a_place_drain_together(grid: Grid) -> None:
    grid.put(a_tree(LONG, "CERN/ce01/short"))
    here, other, elsewhere = grid.start_pilot(), grid.start_pilot(), grid.start_pilot("CERN/ce01/short")
    for pilot, node in ((here, "n1"), (other, "n2"), (elsewhere, "n1")):
        pilot.show(name=node)

    def drain(place: TreeNode | NodeId) -> set[str]:
        return set(
            grid.write(
                lambda transaction, state: drain_pilots(
                    transaction, state, an_operator(), place, "maintenance", evict=False
                )
            ).stamps
        )

    assert drain(NodeId("CERN", "n1")) == {here.stamp, elsewhere.stamp}
    assert drain(TreeNode("cern", "ce01", "long")) == {here.stamp, other.stamp}
    with pytest.raises(NotFoundError, match="live pilot on node CERN/n9"):
        drain(NodeId("CERN", "n9"))
