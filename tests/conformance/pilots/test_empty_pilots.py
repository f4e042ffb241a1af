"""Empty pilots: pilots that ended without having run a job, as part of the demand."""

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
from support.sql_statements import plan_of, statements
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

SHORT = "CERN/ce01/short"


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def empty_returns_of(grid: Grid) -> EmptyReturns | None:
    (supply,) = grid.read(lambda transaction, state: get_demand(transaction, state, [QueueId.parse(LONG)])).supplies
    return supply.empty_returns


def end_pilot(pilot: Pilot, *, empty: bool = True) -> None:
    pilot.beat(ending=True, ending_reason="it had no job", came_back_empty=empty)


def test_demand_counts_empty_pilots(grid: Grid) -> None:
    first, second = grid.start_pilot(), grid.start_pilot()
    first.show(an_idle_slot())
    grid.pass_time(minutes=5)
    end_pilot(first)
    end_pilot(second)
    grid.pass_time(minutes=3)
    end_pilot(grid.start_pilot())
    grid.pass_time(minutes=1)
    assert empty_returns_of(grid) == EmptyReturns(3, 2, timedelta(minutes=1))


def test_empty_pilots_are_counted_by_queue(grid: Grid) -> None:
    grid.put(a_tree(LONG, SHORT, "CERN/ce01/idle"))
    end_pilot(grid.start_pilot(SHORT))
    end_pilot(grid.start_pilot(SHORT))
    end_pilot(grid.start_pilot(LONG))
    queues = [QueueId.parse(name) for name in ("CERN/ce01/idle", LONG, SHORT)]
    supplies = grid.read(lambda transaction, state: get_demand(transaction, state, queues)).supplies
    assert [supply.empty_returns and supply.empty_returns.pilots for supply in supplies] == [None, 1, 2]


def test_stopped_drained_or_refused_pilots_are_not_empty(grid: Grid) -> None:
    stopped, drained, cancelled, refused = (grid.start_pilot() for _ in range(4))
    end_pilot(stopped, empty=False)
    grid.glidein_ended(stopped)
    drained.show(an_idle_slot())
    grid.drain(drained)
    grid.glidein_ended(drained)
    grid.glidein(GlideinReport(cancelled.stamp, "42", PilotState.ENDED, "CANCELLED", called_back=True))
    grid.glidein(GlideinReport(refused.stamp, "", PilotState.ENDED, "the submission failed"))
    assert empty_returns_of(grid) is None


def test_pilot_killed_before_its_first_job_is_empty(grid: Grid) -> None:
    waiting, idle = grid.start_pilot(), grid.start_pilot()
    idle.show(an_idle_slot())
    grid.glidein(GlideinReport(waiting.stamp, "41", PilotState.SUBMITTED))
    grid.pass_time(minutes=1)
    grid.glidein(GlideinReport(waiting.stamp, "", PilotState.ENDED, "CANCELLED"))
    grid.glidein_ended(idle, "PREEMPTED")
    assert empty_returns_of(grid) == EmptyReturns(2, 1, timedelta(0))


def test_pilot_killed_with_its_first_job_is_not_empty(grid: Grid) -> None:
    end_pilot(grid.start_pilot())
    grid.pass_time(minutes=1)
    grid.submit()
    pilot = grid.start_pilot()
    pilot.start(pilot.take())
    grid.glidein_ended(pilot, "PREEMPTED")
    assert empty_returns_of(grid) is None


def test_answer_to_glidein_ends_lists_pilots_that_ran_jobs(grid: Grid) -> None:
    grid.submit(count=2)
    done, working, idle = (grid.start_pilot() for _ in range(3))
    done.finish(done.take())
    end_pilot(done, empty=False)
    working.start(working.take())
    idle.show(an_idle_slot())
    ends = [GlideinReport(pilot.stamp, "42", PilotState.ENDED, "gone") for pilot in (done, working, idle)]
    assert grid.glidein(*ends).worked == (done.stamp, working.stamp)


def test_pilot_of_removed_queue_is_not_empty(grid: Grid) -> None:
    pilot = grid.start_pilot()
    grid.put(a_tree(SHORT))
    grid.glidein_ended(pilot)
    grid.put(a_tree(SHORT, LONG))
    assert empty_returns_of(grid) is None


def test_first_started_job_resets_empty_pilots_of_queue(grid: Grid) -> None:
    end_pilot(grid.start_pilot())
    grid.pass_time(minutes=1)
    grid.submit()
    productive = grid.start_pilot()
    match = productive.take()
    assert empty_returns_of(grid) is not None
    productive.start(match)
    assert empty_returns_of(grid) is None
    productive.finish(match)
    assert empty_returns_of(grid) is None


def test_pilot_that_declined_all_jobs_is_empty(grid: Grid) -> None:
    grid.submit()
    pilot = grid.start_pilot()
    pilot.report(pilot.take(), Outcome.DECLINED, reason="START has changed")
    end_pilot(pilot)
    assert empty_returns_of(grid) == EmptyReturns(1, 1, timedelta(0))


def test_old_empty_pilots_do_not_count(grid: Grid) -> None:
    end_pilot(grid.start_pilot())
    grid.pass_time(hours=25)
    assert empty_returns_of(grid) is None


def test_only_pilots_since_first_empty_one_are_read(grid: Grid) -> None:
    productive = grid.start_pilot()
    grid.submit()
    productive.finish(productive.take())
    grid.pass_time(minutes=1)
    end_pilot(grid.start_pilot())
    assert empty_returns_of(grid) == EmptyReturns(1, 1, timedelta(0))
    queue, now = QueueId.parse(LONG), grid.read(lambda transaction, _: transaction.now)

    def proven(since: datetime) -> datetime | None:
        return grid.read(lambda transaction, _: load_proven(transaction.session, queue, since))

    assert proven(now - timedelta(minutes=1)) == now - timedelta(minutes=1)
    assert proven(now) is None


def test_empty_pilots_of_all_queues_are_read_once(grid: Grid) -> None:
    grid.put(a_tree(LONG, SHORT))
    for name in (LONG, SHORT):
        end_pilot(grid.start_pilot(name))
    queues = [QueueId.parse(name) for name in (LONG, SHORT)]
    with statements(grid.database) as executed:
        supplies = grid.read(lambda transaction, state: get_demand(transaction, state, queues)).supplies
    assert [supply.empty_returns and supply.empty_returns.pilots for supply in supplies] == [1, 1]
    assert sum("WHERE came_back_empty" in statement for statement in executed) == 1
    assert sum("NOT came_back_empty" in statement for statement in executed) == len(queues)


def test_queries_use_indexes(database: Database) -> None:
    queue = QueueId.parse(LONG)
    assert "ix_pilots_empty" in plan_of(
        database, lambda transaction: load_empty_pilots(transaction.session, transaction.now, [queue])
    )
    assert "ix_pilots_queue" in plan_of(
        database, lambda transaction: load_proven(transaction.session, queue, transaction.now)
    )
