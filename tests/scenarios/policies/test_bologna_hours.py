"""The Bologna Batch System over hours: the hour of short jobs, and who has had more than his share."""

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

LAZY = PilotRules(wait_s=600, sample_s=600)
SELDOM = "POLLING_INTERVAL = 300"
"""Where it does not matter when exactly a slot looks at itself."""

SCRIPTS_REMOVAL = "LongRunningJob =!= True && (RemoteWallClockTime > 60*60)"
TEXTS_REMOVAL = "LongRunningJob =!= True && (RemoteWallClockTime < 60*60)"


@pytest.fixture
def grid(sqlite_database: Database, clock: VirtualClock) -> VirtualGrid:
    sharing = Sharing(half_life=timedelta(hours=1))
    rules = Rules(
        lease=timedelta(hours=4), heartbeat=timedelta(minutes=30), pilot_silence=timedelta(hours=8), sharing=sharing
    )
    return VirtualGrid(sqlite_database, clock, duties_every=timedelta(minutes=5), rules=in_bologna(rules))


@pytest.fixture(params=[True, False], ids=["ours", "theirs"])
def bologna(request: pytest.FixtureRequest, grid: VirtualGrid, policies: SitePolicies) -> Bologna:
    return Bologna(grid, policies, request.param)


def evict(grid: VirtualGrid, node: VirtualNode) -> None:
    """Let an operator send all jobs of a node away, at once."""
    grid.drain(node, evict=True)
    grid.pass_time(0)
    assert node.running() == {}


# 8: short jobs have an hour -------------------------------------------------------------------------------------


def test_r8a_a_short_job_has_its_hour_and_is_then_put_out(grid: VirtualGrid, bologna: Bologna) -> None:
    node = bologna.server(rules=LAZY)
    short = bologna.job(SHORT, 4000, term_s=3)
    grid.pass_time(HOUR_S)
    assert node.shows("slot1") == ["Claimed/Busy"]
    grid.pass_time(POLL_S + 1)
    assert node.shows("slot1") == ["Preempting/Vacating"]
    grid.pass_time(3)
    assert node.running() == {}
    assert grid.states(short) == ["WAITING"]
    assert "PREEMPT" in grid.job(short).reason
    assert grid.job(short).wall_clock == timedelta(seconds=HOUR_S + POLL_S + 3)


def test_r8a_a_long_job_of_any_age_stays(grid: VirtualGrid, bologna: Bologna) -> None:
    bologna.server(added=SELDOM, rules=LAZY)
    long = bologna.by_template("bologna-long", 3 * HOUR_S)
    assert grid.until(lambda: grid.finished(long), within_s=4 * HOUR_S) == pytest.approx(3 * HOUR_S, abs=1)
    assert grid.job(long).attempt == 1


@pytest.mark.parametrize(("ran_s", "starts"), [(HOUR_S - 1, True), (HOUR_S, False), (HOUR_S + 1, False)])
def test_r8b_a_short_job_that_has_had_its_hour_starts_nowhere(
    grid: VirtualGrid, bologna: Bologna, ran_s: int, starts: bool
) -> None:
    first = bologna.server(added=SELDOM, rules=LAZY)
    short = bologna.job(SHORT, 4000)
    grid.pass_time(ran_s)
    evict(grid, first)
    assert grid.job(short).wall_clock == timedelta(seconds=ran_s)
    bologna.server(added=SELDOM, rules=LAZY)
    grid.pass_time(600)
    assert (grid.place(short) == "node2/slot1") is starts


def test_r8c_a_short_job_that_has_had_its_hour_is_taken_out_of_the_queue(grid: VirtualGrid, bologna: Bologna) -> None:
    bologna.server(added=SELDOM, rules=LAZY)
    short = bologna.by_template("bologna-short", 4000)
    grid.pass_time(HOUR_S)
    assert grid.states(short) == ["RUNNING"], "the time of a run counts when it has ended"
    grid.until(lambda: grid.states(short) == ["REMOVED"], within_s=600)
    assert "periodic_remove" in grid.job(short).reason.lower()


def test_e1_the_published_texts_removal_takes_out_what_has_not_run_and_the_scripts_does_not(
    grid: VirtualGrid, bologna: Bologna
) -> None:
    as_written = bologna.job(SHORT, policy=JobPolicy(periodic_remove=TEXTS_REMOVAL))
    as_meant = bologna.job(SHORT, policy=JobPolicy(periodic_remove=SCRIPTS_REMOVAL))
    grid.pass_time(600)
    assert grid.states(as_written, as_meant) == ["REMOVED", "WAITING"]


def test_e2_at_exactly_an_hour_our_template_takes_a_job_out_which_the_script_leaves_hanging(
    grid: VirtualGrid, bologna: Bologna
) -> None:
    node = bologna.server(added=SELDOM, rules=LAZY)
    ours = bologna.by_template("bologna-short", 4000)
    scripts = bologna.job(SHORT, 4000, policy=JobPolicy(periodic_remove=SCRIPTS_REMOVAL))
    grid.pass_time(HOUR_S)
    evict(grid, node)
    bologna.server(rules=LAZY)
    grid.pass_time(600)
    assert grid.states(ours, scripts) == ["REMOVED", "WAITING"]
    assert grid.job(scripts).starts == 1, "no slot takes it, nobody removes it"


def test_e3_the_hour_is_that_of_all_runs_together_and_counts_when_they_end(grid: VirtualGrid, bologna: Bologna) -> None:
    first = bologna.server(added=SELDOM, rules=LAZY)
    jobs = [bologna.by_template("bologna-short", run_s) for run_s in (2500, 3000)]
    grid.pass_time(2000)
    evict(grid, first)
    second = bologna.server(added=SELDOM, rules=LAZY)
    assert grid.until(lambda: grid.finished(jobs[0])) == pytest.approx(2500, abs=1)
    evict(grid, second)
    assert grid.job(jobs[1]).wall_clock == pytest.approx(timedelta(seconds=4500), abs=timedelta(seconds=1))
    grid.pass_time(600)
    assert grid.states(jobs[1]) == ["REMOVED"], "though its last run was no hour"


def test_e4_the_hour_begins_anew_when_a_suspended_job_goes_on(grid: VirtualGrid, bologna: Bologna) -> None:
    node = bologna.server(rules=LAZY)
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


# 9: other jobs among themselves ---------------------------------------------------------------------------------

ASKING = replace(LAZY, wait_s=60)
ONE_SHORT_SLOT = "BB_SHORT_SLOTS = 1\nNUM_SHORT_RUNNING_VMS = 1"
TWO_HOURS_S = 2 * HOUR_S
MINUTE_S = 60


def test_r9b_a_batch_job_is_never_driven_out_by_a_better_user(grid: VirtualGrid, bologna: Bologna) -> None:
    bologna.server(added=SELDOM, rules=ASKING)
    greedy = [bologna.job(LONG, 3 * HOUR_S, user="carla") for _ in range(4)]
    greedy += [bologna.job(SHORT, HOUR_S, user="carla") for _ in range(4)]
    modest = [bologna.job(kind, 300, user="anna") for kind in (LONG, OTHER)]
    grid.pass_time(2 * TWO_HOURS_S - HOUR_S - 60)
    assert [grid.job(job).attempt for job in greedy] == [1] * 8, "nobody was driven out"
    assert grid.finished(*greedy[4:])
    assert grid.job(modest[0]).starts == 0


@pytest.mark.parametrize(("had_since_s", "is_better"), [(2200, True), (1900, False)])
def test_r9c_an_other_job_gives_way_to_a_user_who_has_had_much_less_and_after_two_hours_only(
    grid: VirtualGrid, bologna: Bologna, had_since_s: float, is_better: bool
) -> None:
    # With a half-life of an hour, who has used a core since then has had a sixth less, or not.
    bologna.server(added=f"{SELDOM}\n{ONE_SHORT_SLOT}", rules=ASKING)
    worse = bologna.job(OTHER, 5 * HOUR_S, user="wilma")
    grid.pass_time(had_since_s)
    grid.node(cpus=1, rules=LAZY)
    elsewhere = bologna.job({"JobUniverse": 1}, 5 * HOUR_S, user="betty")
    grid.pass_time(TWO_HOURS_S - MINUTE_S - had_since_s)
    better = bologna.job(OTHER, 300, user="betty")
    grid.pass_time(MINUTE_S - 1)
    assert [grid.place(job) for job in (elsewhere, worse, better)] == ["node2/slot1_1", "node1/slot1", ""]
    grid.pass_time(2 * MINUTE_S)
    assert [grid.place(job) for job in (worse, better)] == (["", "node1/slot1"] if is_better else ["node1/slot1", ""])
    assert ("betty has a job waiting" in grid.job(worse).reason) is is_better


@pytest.mark.parametrize("worklife", ["-1", "1200"])
def test_e13_two_hours_are_those_of_the_claim_only_in_the_published_text(
    grid: VirtualGrid, bologna: Bologna, worklife: str
) -> None:
    is_one_claim = worklife == "-1"
    bologna.server(added=f"{SELDOM}\n{ONE_SHORT_SLOT}\nCLAIM_WORKLIFE = {worklife}", rules=ASKING)
    first, second = (bologna.job(OTHER, run_s, user="wilma") for run_s in (TWO_HOURS_S - 600, 5 * HOUR_S))
    grid.until(lambda: grid.finished(first), within_s=TWO_HOURS_S)
    grid.pass_time(60)
    better = bologna.job(OTHER, 300, user="betty")
    assert bologna.places(second, better) == ["slot1", ""]
    grid.pass_time(900)
    driven_out = is_one_claim and not bologna.ours
    assert (grid.job(second).attempt > 1 or bologna.places(second) == [""]) is driven_out
