"""The Bologna Batch System over hours: the hour that short jobs may run, and preemption by user priority."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from pilotage.job_description import JobPolicy
from pilotage_pilot.core.events import ContinueRequested, SuspendRequested
from pilotage_pilot.core.rules import PilotRules as PilotRules
from pilotage_server.core.rules import Rules, Sharing
from pilotage_server.storage.database.engine import Database
from support.site_policies import HOUR_S, LONG, OTHER, POLL_S, SHORT, Bologna, SitePolicies, in_bologna
from support.virtual_clock import VirtualClock
from support.virtual_grid import VirtualGrid
from support.virtual_node import VirtualNode

SLOW_UPDATES = PilotRules(wait_s=600, sample_s=600)
SLOW_POLLING = "POLLING_INTERVAL = 300"
"""For tests that do not depend on the exact time of a slot's policy evaluation."""

REMOVAL_IN_SCRIPT = "LongRunningJob =!= True && (RemoteWallClockTime > 60*60)"
REMOVAL_IN_TEXT = "LongRunningJob =!= True && (RemoteWallClockTime < 60*60)"


@pytest.fixture
def grid(sqlite_database: Database, clock: VirtualClock) -> VirtualGrid:
    sharing = Sharing(half_life=timedelta(hours=1))
    rules = Rules(
        lease=timedelta(hours=4), heartbeat=timedelta(minutes=30), pilot_silence=timedelta(hours=8), sharing=sharing
    )
    return VirtualGrid(sqlite_database, clock, maintenance_interval=timedelta(minutes=5), rules=in_bologna(rules))


@pytest.fixture(params=[True, False], ids=["shipped", "published"])
def bologna(request: pytest.FixtureRequest, grid: VirtualGrid, policies: SitePolicies) -> Bologna:
    return Bologna(grid, policies, request.param)


def evict(grid: VirtualGrid, node: VirtualNode) -> None:
    """Drain a node as an operator; all jobs are evicted at once."""
    grid.drain(node, evict=True)
    grid.pass_time(0)
    assert node.running() == {}


# 8: short jobs have an hour -------------------------------------------------------------------------------------


def test_r8a_short_job_is_evicted_after_an_hour(grid: VirtualGrid, bologna: Bologna) -> None:
    node = bologna.server(rules=SLOW_UPDATES)
    short = bologna.job(SHORT, 4000, term_s=3)
    grid.pass_time(HOUR_S)
    assert node.state_and_activity("slot1") == ["Claimed/Busy"]
    grid.pass_time(POLL_S + 1)
    assert node.state_and_activity("slot1") == ["Preempting/Vacating"]
    grid.pass_time(3)
    assert node.running() == {}
    assert grid.states(short) == ["WAITING"]
    assert "PREEMPT" in grid.job(short).reason
    assert grid.job(short).wall_clock == timedelta(seconds=HOUR_S + POLL_S + 3)


def test_r8a_long_job_is_never_evicted_for_its_age(grid: VirtualGrid, bologna: Bologna) -> None:
    bologna.server(added=SLOW_POLLING, rules=SLOW_UPDATES)
    long = bologna.by_template("bologna-long", 3 * HOUR_S)
    assert grid.until(lambda: grid.finished(long), within_s=4 * HOUR_S) == pytest.approx(3 * HOUR_S, abs=1)
    assert grid.job(long).attempt == 1


@pytest.mark.parametrize(("ran_s", "starts"), [(HOUR_S - 1, True), (HOUR_S, False), (HOUR_S + 1, False)])
def test_r8b_short_job_starts_nowhere_after_an_hour_of_run_time(
    grid: VirtualGrid, bologna: Bologna, ran_s: int, starts: bool
) -> None:
    first = bologna.server(added=SLOW_POLLING, rules=SLOW_UPDATES)
    short = bologna.job(SHORT, 4000)
    grid.pass_time(ran_s)
    evict(grid, first)
    assert grid.job(short).wall_clock == timedelta(seconds=ran_s)
    bologna.server(added=SLOW_POLLING, rules=SLOW_UPDATES)
    grid.pass_time(600)
    assert (grid.place(short) == "node2/slot1") is starts


def test_r8c_short_job_is_removed_after_an_hour_of_run_time(grid: VirtualGrid, bologna: Bologna) -> None:
    bologna.server(added=SLOW_POLLING, rules=SLOW_UPDATES)
    short = bologna.by_template("bologna-short", 4000)
    grid.pass_time(HOUR_S)
    assert grid.states(short) == ["RUNNING"], "the time of a run counts after its end"
    grid.until(lambda: grid.states(short) == ["REMOVED"], within_s=600)
    assert "periodic_remove" in grid.job(short).reason.lower()


def test_e1_removal_rule_of_the_published_text_removes_new_jobs(grid: VirtualGrid, bologna: Bologna) -> None:
    as_written = bologna.job(SHORT, policy=JobPolicy(periodic_remove=REMOVAL_IN_TEXT))
    as_meant = bologna.job(SHORT, policy=JobPolicy(periodic_remove=REMOVAL_IN_SCRIPT))
    grid.pass_time(600)
    assert grid.states(as_written, as_meant) == ["REMOVED", "WAITING"]


def test_e2_only_the_shipped_template_removes_at_exactly_an_hour(grid: VirtualGrid, bologna: Bologna) -> None:
    node = bologna.server(added=SLOW_POLLING, rules=SLOW_UPDATES)
    shipped = bologna.by_template("bologna-short", 4000)
    published = bologna.job(SHORT, 4000, policy=JobPolicy(periodic_remove=REMOVAL_IN_SCRIPT))
    grid.pass_time(HOUR_S)
    evict(grid, node)
    bologna.server(rules=SLOW_UPDATES)
    grid.pass_time(600)
    assert grid.states(shipped, published) == ["REMOVED", "WAITING"]
    assert grid.job(published).starts == 1, "no slot takes it and no rule removes it"


def test_e3_hour_is_the_total_of_completed_runs(grid: VirtualGrid, bologna: Bologna) -> None:
    first = bologna.server(added=SLOW_POLLING, rules=SLOW_UPDATES)
    jobs = [bologna.by_template("bologna-short", run_s) for run_s in (2500, 3000)]
    grid.pass_time(2000)
    evict(grid, first)
    second = bologna.server(added=SLOW_POLLING, rules=SLOW_UPDATES)
    assert grid.until(lambda: grid.finished(jobs[0])) == pytest.approx(2500, abs=1)
    evict(grid, second)
    assert grid.job(jobs[1]).wall_clock == pytest.approx(timedelta(seconds=4500), abs=timedelta(seconds=1))
    grid.pass_time(600)
    assert grid.states(jobs[1]) == ["REMOVED"], "although its last run was shorter than an hour"


def test_e4_hour_restarts_when_a_suspended_job_continues(grid: VirtualGrid, bologna: Bologna) -> None:
    node = bologna.server(rules=SLOW_UPDATES)
    short = bologna.job(SHORT, 2 * HOUR_S)
    grid.pass_time(3000)
    node.feed(SuspendRequested())
    grid.pass_time(60)
    assert grid.states(short) == ["SUSPENDED"]
    node.feed(ContinueRequested())
    grid.pass_time(HOUR_S)
    assert grid.states(short) == ["RUNNING"]
    grid.pass_time(POLL_S + 1)
    assert grid.states(short) == ["WAITING"]


# 9: preemption among other jobs ---------------------------------------------------------------------------------

FREQUENT_REQUESTS = replace(SLOW_UPDATES, wait_s=60)
ONE_SHORT_SLOT = "BB_SHORT_SLOTS = 1\nNUM_SHORT_RUNNING_VMS = 1"
TWO_HOURS_S = 2 * HOUR_S
MINUTE_S = 60


def test_r9b_batch_job_is_never_preempted_by_user_priority(grid: VirtualGrid, bologna: Bologna) -> None:
    bologna.server(added=SLOW_POLLING, rules=FREQUENT_REQUESTS)
    greedy = [bologna.job(LONG, 3 * HOUR_S, user="carla") for _ in range(4)]
    greedy += [bologna.job(SHORT, HOUR_S, user="carla") for _ in range(4)]
    modest = [bologna.job(kind, 300, user="anna") for kind in (LONG, OTHER)]
    grid.pass_time(2 * TWO_HOURS_S - HOUR_S - 60)
    assert [grid.job(job).attempt for job in greedy] == [1] * 8, "no job was preempted"
    assert grid.finished(*greedy[4:])
    assert grid.job(modest[0]).starts == 0


@pytest.mark.parametrize(("starts_after_s", "is_better"), [(2200, True), (1900, False)])
def test_r9c_much_better_user_preempts_an_other_job_after_two_hours(
    grid: VirtualGrid, bologna: Bologna, starts_after_s: float, is_better: bool
) -> None:
    # With a half-life of an hour, use that starts after 2200 s is at least a sixth less; after 1900 s it is not.
    bologna.server(added=f"{SLOW_POLLING}\n{ONE_SHORT_SLOT}", rules=FREQUENT_REQUESTS)
    worse = bologna.job(OTHER, 5 * HOUR_S, user="wilma")
    grid.pass_time(starts_after_s)
    grid.node(cpus=1, rules=SLOW_UPDATES)
    elsewhere = bologna.job({"JobUniverse": 1}, 5 * HOUR_S, user="betty")
    grid.pass_time(TWO_HOURS_S - MINUTE_S - starts_after_s)
    better = bologna.job(OTHER, 300, user="betty")
    grid.pass_time(MINUTE_S - 1)
    assert [grid.place(job) for job in (elsewhere, worse, better)] == ["node2/slot1_1", "node1/slot1", ""]
    grid.pass_time(2 * MINUTE_S)
    assert [grid.place(job) for job in (worse, better)] == (["", "node1/slot1"] if is_better else ["node1/slot1", ""])
    assert ("betty has a job waiting" in grid.job(worse).reason) is is_better


@pytest.mark.parametrize("worklife", ["-1", "1200"])
def test_e13_only_the_published_text_counts_two_hours_over_the_claim(
    grid: VirtualGrid, bologna: Bologna, worklife: str
) -> None:
    is_one_claim = worklife == "-1"
    bologna.server(added=f"{SLOW_POLLING}\n{ONE_SHORT_SLOT}\nCLAIM_WORKLIFE = {worklife}", rules=FREQUENT_REQUESTS)
    first, second = (bologna.job(OTHER, run_s, user="wilma") for run_s in (TWO_HOURS_S - 600, 5 * HOUR_S))
    grid.until(lambda: grid.finished(first), within_s=TWO_HOURS_S)
    grid.pass_time(60)
    better = bologna.job(OTHER, 300, user="betty")
    assert bologna.places(second, better) == ["slot1", ""]
    grid.pass_time(900)
    is_preempted = is_one_claim and not bologna.ours
    assert (grid.job(second).attempt > 1 or bologna.places(second) == [""]) is is_preempted
