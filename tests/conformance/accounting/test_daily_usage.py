"""Daily sums of what attempts have used: what counts, on which day, once each; and their queries."""

from __future__ import annotations

from dataclasses import astuple, replace
from datetime import timedelta

import pytest

from pilotage.errors import PermissionDeniedError
from pilotage.values.attempts import Outcome
from pilotage_server.core.accounting.usage_sums import UsageKey, UsageQuery, UsageSum
from pilotage_server.core.attempts.reports import JobReport, RunningUsage
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.files import JobLimits
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.rules import Rules
from pilotage_server.core.submission.submit_policy import SubmitPolicy, SubmitTransform
from pilotage_server.operations.accounting.usage_sums import list_usage
from pilotage_server.operations.jobs.retention import REMOVALS
from pilotage_server.operations.matching.work import Match
from pilotage_server.storage.database.engine import Database
from support.grid import Grid, Pilot, a_slot
from support.jobs import a_user, an_operator, recorded_in_batches
from support.sql_statements import statements
from support.virtual_clock import START, VirtualClock

pytestmark = pytest.mark.any_database

SITES = ("CERN/ce01/long", "LYON/ce01/long")
TODAY = START.date().isoformat()
LONG_LEASES = Rules(lease=timedelta(days=2))


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock, *SITES, rules=LONG_LEASES)


def usage(
    grid: Grid, *by: UsageKey, user: Identity | None = None, **selected: object
) -> dict[tuple[str, ...], UsageSum]:
    """Return the sums by these keys."""
    query = replace(UsageQuery(by=by), **selected)  # type: ignore[arg-type]
    return dict(grid.read(lambda transaction, _: list_usage(transaction, user or an_operator(), query)))


def total(grid: Grid) -> UsageSum:
    return usage(grid).get((), UsageSum())


def start_job(grid: Grid, owner: str = "alice", site: str = SITES[0], cpus: int = 2) -> tuple[Pilot, Match]:
    grid.submit(a_user(owner), request_cpus=cpus)
    pilot = grid.start_pilot(site)
    match = pilot.take(a_slot(cpus=cpus))
    pilot.start(match)
    return pilot, match


def assert_sum(found: UsageSum, **figures: float) -> None:
    assert astuple(found) == pytest.approx(astuple(UsageSum(**figures)), abs=1e-6)  # type: ignore[arg-type]


def test_attempts_count_by_result(grid: Grid) -> None:
    outcomes = {
        "done": {"outcome": Outcome.EXITED, "exit_code": 0, "wall_s": 3000.0, "suspended_s": 600.0, "cpu_s": 5400.0},
        "failed": {"outcome": Outcome.EXITED, "exit_code": 3, "wall_s": 3600.0, "cpu_s": 10.0},
        "limited": {"outcome": Outcome.LIMIT_EXCEEDED, "reason": "why", "wall_s": 3600.0},
        "evicted": {"outcome": Outcome.EVICTED, "wall_s": 3600.0, "cpu_s": 20.0},
    }
    for report in outcomes.values():
        pilot, match = start_job(grid)
        grid.pass_time(hours=1)
        assert pilot.report(match, **report).accepted  # type: ignore[arg-type]
    hours = {"done_core_s": 7200.0, "failed_core_s": 14400.0, "interrupted_core_s": 7200.0}
    assert_sum(total(grid), done=1, failed=2, interrupted=1, cpu_s=5430.0, **hours)


def test_attempt_without_figures_counts_by_servers_clock(grid: Grid) -> None:
    pilot, match = start_job(grid)
    grid.pass_time(hours=2)
    pilot.finish(match)
    assert_sum(total(grid), done=1, done_core_s=2 * 7200.0)


def test_impossible_figures_are_bounded(grid: Grid) -> None:
    pilot, match = start_job(grid)
    grid.pass_time(seconds=1)
    pilot.report(match, Outcome.EXITED, exit_code=0, wall_s=1e300, cpu_s=1e300)
    assert_sum(total(grid), done=1, done_core_s=2.0, cpu_s=10_000.0)


def test_attempt_that_has_not_started_is_no_waste(grid: Grid) -> None:
    grid.submit()
    pilot = grid.start_pilot()
    pilot.report(pilot.take(), Outcome.DECLINED)
    assert usage(grid) == {}
    (job_id,) = grid.submit()
    pilot.report(pilot.take(), Outcome.REFUSED_BY_JOB, reason="no such program")
    assert_sum(total(grid), failed=1)
    assert grid.job(job_id).state is not JobState.DONE


def test_each_run_of_a_retried_job_counts(grid: Grid) -> None:
    (job_id,) = grid.submit(retries=2)
    pilot = grid.start_pilot()
    for exit_code in (3, 4, 0):
        match = pilot.take()
        pilot.start(match)
        grid.pass_time(hours=1)
        pilot.finish(match, exit_code)
    assert grid.job(job_id).state is JobState.DONE
    assert_sum(total(grid), done=1, failed=2, done_core_s=3600.0, failed_core_s=7200.0)


@pytest.mark.parametrize("retries", [None, 1], ids=["in a batch", "singly"])
def test_owner_of_the_job_counts_and_charged_group(
    database: Database, clock: VirtualClock, retries: int | None
) -> None:
    policy = SubmitPolicy((SubmitTransform("AccountingGroup", '"wide.multi"'),))
    grid = Grid(database, clock, rules=replace(LONG_LEASES, submission=policy))
    grid.submit(a_user("alice"), retries=retries)
    pilot = grid.start_pilot()
    match = pilot.take()
    pilot.start(match)
    end = JobReport(match.job_id, match.attempt, outcome=Outcome.EXITED, exit_code=3)
    if retries is None:
        grid.write(lambda transaction, state: recorded_in_batches(transaction, state, pilot.identity, [end]))
    else:
        pilot.finish(match, 3)
    assert [*usage(grid, UsageKey.OWNER, UsageKey.GROUP)] == [("alice", "wide")]


def test_gpu_time_is_summed(grid: Grid) -> None:
    grid.submit(request_gpus=2)
    pilot = grid.start_pilot()
    match = pilot.take(a_slot(gpus=2))
    pilot.start(match)
    grid.pass_time(hours=1)
    pilot.finish(match)
    assert_sum(total(grid), done=1, done_core_s=3600.0, gpu_s=7200.0)


def test_sums_are_divided_and_selected(grid: Grid, clock: VirtualClock) -> None:
    for owner, site in (("alice", SITES[0]), ("alice", SITES[1]), ("bob", SITES[0])):
        pilot, match = start_job(grid, owner, site, cpus=1)
        grid.pass_time(hours=1)
        pilot.finish(match)
    clock.advance(days=30)
    pilot, match = start_job(grid, "bob", cpus=1)
    grid.pass_time(hours=1)
    pilot.finish(match)
    later = clock().date().isoformat()
    done = {key: found.done for key, found in usage(grid, UsageKey.OWNER, UsageKey.SITE).items()}
    assert done == {("alice", "CERN"): 1, ("alice", "LYON"): 1, ("bob", "CERN"): 2}
    assert {key: found.done for key, found in usage(grid, UsageKey.DAY).items()} == {(TODAY,): 3, (later,): 1}
    assert set(usage(grid, UsageKey.MONTH)) == {(TODAY[:7],), (later[:7],)}
    assert usage(grid, since=later)[()].done == 1
    assert usage(grid, until=TODAY)[()].done == 3
    assert usage(grid, owners=frozenset({"alice"}), sites=frozenset({"CERN", "RAL"}))[()].done == 1
    assert usage(grid, groups=frozenset({"users"}), vo="lhcb")[()].done == 4
    assert usage(grid, vo="atlas") == {}


def test_users_see_sums_of_their_vo_only(grid: Grid) -> None:
    pilot, match = start_job(grid)
    pilot.finish(match)
    assert usage(grid, user=a_user("bob"))[()].done == 1
    assert usage(grid, user=replace(a_user("bob"), vo="")) == {}
    with pytest.raises(PermissionDeniedError, match="atlas"):
        usage(grid, user=a_user("bob"), vo="atlas")


def test_lost_attempt_that_returns_counts_once(grid: Grid) -> None:
    pilot, match = start_job(grid)
    grid.pass_time(days=3)
    assert_sum(total(grid), interrupted=1, interrupted_core_s=3 * 86400 * 2.0)
    assert pilot.beat().lost == ()
    assert_sum(total(grid))
    grid.pass_time(hours=1)
    pilot.finish(match)
    assert_sum(total(grid), done=1, done_core_s=(3 * 86400 + 3600) * 2.0)


def test_late_report_corrects_sum_on_day_of_end(grid: Grid, clock: VirtualClock) -> None:
    pilot, match = start_job(grid)
    grid.pass_time(hours=1)
    grid.change(JobChange.REMOVE, match.job_id)
    assert_sum(total(grid), interrupted=1, interrupted_core_s=7200.0)
    clock.advance(days=1)
    pilot.report(match, Outcome.KILLED, wall_s=1800.0, cpu_s=900.0)
    assert_sum(usage(grid, UsageKey.DAY)[TODAY,], interrupted=1, interrupted_core_s=3600.0, cpu_s=900.0)
    assert len(usage(grid, UsageKey.DAY)) == 1


def test_lost_attempt_counts_cpu_time_of_its_last_heartbeat(grid: Grid) -> None:
    pilot, match = start_job(grid)
    grid.pass_time(hours=1)
    pilot.beat(usages=(RunningUsage(match.job_id, match.attempt, 1000.0, 10.0, 612, 3),))
    grid.pass_time(days=3)
    assert total(grid).cpu_s == 1000.0


def test_sums_outlive_their_jobs(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=replace(LONG_LEASES, jobs=JobLimits()))
    pilot, match = start_job(grid)
    pilot.finish(match)
    grid.pass_time(days=400)
    for remove in REMOVALS:
        while grid.write(remove):
            pass
    assert grid.jobs([match.job_id]) == {}
    assert total(grid).done == 1


@pytest.mark.parametrize("count", [1, 40])
def test_batch_of_ends_writes_sums_by_one_statement(grid: Grid, database: Database, count: int) -> None:
    grid.submit(count=count)
    pilot = grid.start_pilot()
    matches = [pilot.take() for _ in range(count)]
    reports = [JobReport(match.job_id, match.attempt, state=JobState.RUNNING) for match in matches]
    with statements(database) as starting:
        grid.write(lambda transaction, state: recorded_in_batches(transaction, state, pilot.identity, reports))
    ends = [JobReport(match.job_id, match.attempt, outcome=Outcome.EXITED, exit_code=0) for match in matches]
    with statements(database) as ending:
        grid.write(lambda transaction, state: recorded_in_batches(transaction, state, pilot.identity, ends))
    assert [text for text in starting if "daily_usage" in text] == []
    assert len([text for text in ending if "daily_usage" in text]) == 1
    assert total(grid).done == count
