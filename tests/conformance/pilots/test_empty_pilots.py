"""What a server tells of pilots that came back empty, on every database."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from pilotage.resources.tree import QueueId
from pilotage.values.attempts import Outcome
from pilotage.values.demand import EmptyReturns
from pilotage.values.pilots import GlideinReport, PilotState
from pilotage_server.operations.matching.demand import get_demand
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.pilots import load_empty_pilots, load_proven
from support.grid import LONG, Grid, Pilot, a_tree, an_idle_slot
from support.statements import plan_of, statements
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

SHORT = "CERN/ce01/short"


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def told(grid: Grid) -> EmptyReturns | None:
    (supply,) = grid.read(lambda transaction, state: get_demand(transaction, state, [QueueId.parse(LONG)])).supplies
    return supply.empty_returns


def come_back(pilot: Pilot, *, empty: bool = True) -> None:
    pilot.beat(ending=True, ending_reason="it had no job", came_back_empty=empty)


def test_pilots_that_came_back_empty_are_told_with_the_demand(grid: Grid) -> None:
    first, second = grid.start_pilot(), grid.start_pilot()
    first.show(an_idle_slot())
    grid.pass_time(minutes=5)
    come_back(first)
    come_back(second)
    grid.pass_time(minutes=3)
    come_back(grid.start_pilot())
    grid.pass_time(minutes=1)
    assert told(grid) == EmptyReturns(3, 2, timedelta(minutes=1))


def test_each_queue_is_told_of_its_own_pilots(grid: Grid) -> None:
    grid.put(a_tree(LONG, SHORT, "CERN/ce01/idle"))
    come_back(grid.start_pilot(SHORT))
    come_back(grid.start_pilot(SHORT))
    come_back(grid.start_pilot(LONG))
    queues = [QueueId.parse(name) for name in ("CERN/ce01/idle", LONG, SHORT)]
    supplies = grid.read(lambda transaction, state: get_demand(transaction, state, queues)).supplies
    assert [each.empty_returns and each.empty_returns.pilots for each in supplies] == [None, 1, 2]


def test_a_pilot_that_ended_otherwise_did_not_come_back_empty(grid: Grid) -> None:
    told_to_stop, drained, cancelled, refused = (grid.start_pilot() for _ in range(4))
    come_back(told_to_stop, empty=False)
    grid.glidein_ended(told_to_stop)
    drained.show(an_idle_slot())
    grid.drain(drained)
    grid.glidein_ended(drained)
    grid.glidein(GlideinReport(cancelled.stamp, "42", PilotState.ENDED, "CANCELLED", called_back=True))
    grid.glidein(GlideinReport(refused.stamp, "", PilotState.ENDED, "the submission failed"))
    assert told(grid) is None


def test_a_pilot_that_is_killed_before_it_has_run_a_job_came_back_empty(grid: Grid) -> None:
    waiting, idle = grid.start_pilot(), grid.start_pilot()
    idle.show(an_idle_slot())
    grid.glidein(GlideinReport(waiting.stamp, "41", PilotState.SUBMITTED))
    grid.pass_time(minutes=1)
    grid.glidein(GlideinReport(waiting.stamp, "", PilotState.ENDED, "CANCELLED"))
    grid.glidein_ended(idle, "PREEMPTED")
    assert told(grid) == EmptyReturns(2, 1, timedelta(0))


def test_a_pilot_that_is_killed_with_its_first_job_did_not_come_back_empty(grid: Grid) -> None:
    come_back(grid.start_pilot())
    grid.pass_time(minutes=1)
    grid.submit()
    pilot = grid.start_pilot()
    pilot.start(pilot.take())
    grid.glidein_ended(pilot, "PREEMPTED")
    assert told(grid) is None


def test_whoever_reports_ends_hears_which_of_the_pilots_had_run_a_job(grid: Grid) -> None:
    grid.submit(count=2)
    done, at_work, idle = (grid.start_pilot() for _ in range(3))
    done.finish(done.take())
    come_back(done, empty=False)
    at_work.start(at_work.take())
    idle.show(an_idle_slot())
    ends = [GlideinReport(pilot.stamp, "42", PilotState.ENDED, "gone") for pilot in (done, at_work, idle)]
    assert grid.glidein(*ends).worked == (done.stamp, at_work.stamp)


def test_a_pilot_whose_queue_is_gone_did_not_come_back_empty(grid: Grid) -> None:
    pilot = grid.start_pilot()
    grid.put(a_tree(SHORT))
    grid.glidein_ended(pilot)
    grid.put(a_tree(SHORT, LONG))
    assert told(grid) is None


def test_a_pilot_that_runs_its_first_job_speaks_for_its_queue(grid: Grid) -> None:
    come_back(grid.start_pilot())
    grid.pass_time(minutes=1)
    grid.submit()
    good = grid.start_pilot()
    match = good.take()
    assert told(grid) is not None
    good.start(match)
    assert told(grid) is None
    good.finish(match)
    assert told(grid) is None


def test_a_pilot_that_declined_all_it_was_given_does_not_speak_for_its_queue(grid: Grid) -> None:
    grid.submit()
    pilot = grid.start_pilot()
    pilot.report(pilot.take(), Outcome.DECLINED, reason="START has changed")
    come_back(pilot)
    assert told(grid) == EmptyReturns(1, 1, timedelta(0))


def test_what_came_back_long_ago_does_not_count(grid: Grid) -> None:
    come_back(grid.start_pilot())
    grid.pass_time(hours=25)
    assert told(grid) is None


def test_no_pilot_is_looked_at_that_came_before_all_that_were_empty(grid: Grid) -> None:
    good = grid.start_pilot()
    grid.submit()
    good.finish(good.take())
    grid.pass_time(minutes=1)
    come_back(grid.start_pilot())
    assert told(grid) == EmptyReturns(1, 1, timedelta(0))
    queue, now = QueueId.parse(LONG), grid.read(lambda transaction, _: transaction.now)

    def proven(since: datetime) -> datetime | None:
        return grid.read(lambda transaction, _: load_proven(transaction.session, queue, since))

    assert proven(now - timedelta(minutes=1)) == now - timedelta(minutes=1)
    assert proven(now) is None


def test_those_that_were_empty_are_read_once_for_all_queues_that_are_asked_for(grid: Grid) -> None:
    grid.put(a_tree(LONG, SHORT))
    for name in (LONG, SHORT):
        come_back(grid.start_pilot(name))
    with statements(grid.database) as asked:
        told(grid)
    for question in ("WHERE came_back_empty", "NOT came_back_empty"):
        assert sum(question in each for each in asked) == 1


def test_indexes_serve(database: Database) -> None:
    queue = QueueId.parse(LONG)
    assert "ix_pilots_empty" in plan_of(
        database, lambda transaction: load_empty_pilots(transaction.session, transaction.now, [queue])
    )
    assert "ix_pilots_queue" in plan_of(
        database, lambda transaction: load_proven(transaction.session, queue, transaction.now)
    )
