"""What attempts have used: kept from reports and heartbeats, shown in job ads, and read by policies of jobs."""

from __future__ import annotations

import pytest

from pilotage.classads.library import AdValue
from pilotage.job_description import JobPolicy
from pilotage.values.attempts import AttemptKey, Outcome
from pilotage_server.core.attempts.reports import RunningUsage
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.jobs.usage import USAGE_NAMES, AttemptUsage
from pilotage_server.operations.jobs.queries import details_of, get_ad
from pilotage_server.storage.database.engine import Database
from support.grid import Grid, PolicyGrid
from support.jobs import an_operator
from support.sql_statements import statements
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> PolicyGrid:
    return PolicyGrid(database, clock)


def usage_of(grid: Grid, job_id: int) -> AttemptUsage:
    job = grid.job(job_id)
    return grid.read(lambda transaction, state: details_of(transaction, state, [job]).usages)[job_id]


def ad_of(grid: Grid, job_id: int) -> dict[str, AdValue]:
    return dict(grid.read(lambda transaction, _: get_ad(transaction, an_operator(), job_id)))


def used(key: AttemptKey, memory_mib: int = 612) -> RunningUsage:
    return RunningUsage(key.job_id, key.attempt, 90.0, 15.0, memory_mib, 20)


def test_report_of_end_has_all_figures(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit()
    assert grid.read(lambda transaction, state: details_of(transaction, state, [grid.job(job_id)]).usages) == {}
    pilot = grid.start_pilot()
    match = pilot.take()
    pilot.start(match)
    grid.pass_time(minutes=5)
    figures = {"wall_s": 200.0, "suspended_s": 90.0, "peak_memory_mib": 700, "peak_disk_mib": 30}
    pilot.report(match, Outcome.EXITED, exit_code=0, cpu_s=150.0, system_cpu_s=20.0, **figures)
    assert usage_of(grid, job_id) == AttemptUsage(1, 1, 0, 150.0, 20.0, 200.0, 90.0, 700, 30)
    ad = ad_of(grid, job_id)
    assert ad["MemoryUsage"] == 700
    assert ad["ResidentSetSize"] == 700 * 1024
    assert ad["DiskUsage"] == 30 * 1024
    assert (ad["RemoteUserCpu"], ad["RemoteSysCpu"]) == (130.0, 20.0)
    assert ad["RemoteWallClockTime"] == 290.0


def test_heartbeat_updates_running_attempt(grid: PolicyGrid) -> None:
    grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    pilot.start(match)
    grid.pass_time(seconds=100)
    pilot.beat(usages=(used(pilot.held[0]),))
    assert usage_of(grid, match.job_id) == AttemptUsage(1, 1, 0, 90.0, 15.0, 100.0, 0.0, 612, 20)
    pilot.report(match, state=JobState.SUSPENDED, wall_s=100.0)
    grid.pass_time(seconds=50)
    suspended = usage_of(grid, match.job_id)
    assert (suspended.wall_s, suspended.suspended_s) == (100.0, 50.0)
    assert suspended.peak_memory_mib == 612, "a report without figures erases none"
    pilot.report(match, state=JobState.RUNNING, wall_s=100.0, suspended_s=50.0)
    grid.pass_time(seconds=10)
    going = usage_of(grid, match.job_id)
    assert (going.wall_s, going.suspended_s) == (110.0, 50.0)


def test_heartbeat_changes_attempts_of_its_leases_only(grid: PolicyGrid) -> None:
    grid.submit(count=2)
    pilot, other = grid.start_pilot(), grid.start_pilot()
    mine, removed = pilot.take(), pilot.take()
    grid.change(JobChange.REMOVE, removed.job_id)
    (job_id,) = grid.submit()
    theirs = other.take()
    assert theirs.job_id == job_id
    keys = [AttemptKey(match.job_id, match.attempt) for match in (mine, removed, theirs)]
    pilot.beat(usages=tuple(map(used, keys)))
    assert [usage_of(grid, key.job_id).peak_memory_mib for key in keys] == [612, 0, 0]


def test_heartbeat_without_usage_needs_no_statement(grid: PolicyGrid, database: Database) -> None:
    grid.submit()
    pilot = grid.start_pilot()
    pilot.start(pilot.take())
    with statements(database) as without:
        pilot.beat()
    with statements(database) as with_usage:
        pilot.beat(usages=(used(pilot.held[0]),))
    assert len(with_usage) == len(without) + 1


def test_policy_reads_usage_of_running_job(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit(policy=JobPolicy(periodic_hold="MemoryUsage > 600", periodic_hold_reason='"too large"'))
    grid.evaluate_changed()
    pilot = grid.start_pilot()
    pilot.start(pilot.take())
    pilot.beat(usages=(used(pilot.held[0], 500),))
    assert grid.evaluate_watched() == []
    pilot.beat(usages=(used(pilot.held[0]),))
    assert grid.evaluate_watched() == [job_id]
    assert (grid.job(job_id).state, grid.job(job_id).reason) == (JobState.HELD, "too large")
    assert ad_of(grid, job_id)["MemoryUsage"] == 612, "it is that of the last attempt"


def test_job_that_never_ran_has_no_usage(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit()
    assert USAGE_NAMES.isdisjoint(name.lower() for name in ad_of(grid, job_id))
