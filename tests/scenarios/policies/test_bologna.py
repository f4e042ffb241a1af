"""The Bologna Batch System: each numbered behaviour in virtual time, under the shipped policy and the published one.

A server with two processors has six slots: 1 and 2 for short jobs and for non-batch jobs, 3 to 6 for long jobs.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.classads.evaluation import Ad
from pilotage.job_description import JobPolicy
from pilotage_server.core.rules import Rules
from pilotage_server.storage.database.engine import Database
from support.site_policies import (
    BB,
    HOUR_S,
    LONG,
    MILANESE,
    OTHER,
    POLL_S,
    REQUEST_INTERVAL_S,
    SHORT,
    Bologna,
    SitePolicies,
    in_bologna,
    owner_leaves,
    owner_returns,
    set_owner_activity,
)
from support.virtual_clock import VirtualClock
from support.virtual_grid import VirtualGrid


@pytest.fixture
def grid(sqlite_database: Database, clock: VirtualClock) -> VirtualGrid:
    return VirtualGrid(sqlite_database, clock, rules=in_bologna(Rules()))


@pytest.fixture(params=[True, False], ids=["shipped", "published"])
def bologna(request: pytest.FixtureRequest, grid: VirtualGrid, policies: SitePolicies) -> Bologna:
    return Bologna(grid, policies, request.param)


# 1 to 3: what a batch job is ------------------------------------------------------------------------------------


def test_r1_batch_jobs_run_on_batch_servers_only(grid: VirtualGrid, bologna: Bologna) -> None:
    ordinary = grid.node(cpus=8)
    bologna.server()
    jobs = [bologna.job(SHORT, expression="(BolognaBatchServer == True)") for _ in range(3)]
    assert bologna.places(*jobs) == ["node2/slot1", "node2/slot2", ""]
    assert ordinary.running() == {}


def test_r2_batch_job_of_another_domain_is_an_other_job(grid: VirtualGrid, bologna: Bologna) -> None:
    node = bologna.server()
    owner_returns(grid, node)
    job = bologna.job(SHORT, user=MILANESE)
    grid.pass_time(60)
    assert bologna.places(job) == [""]
    owner_leaves(grid, node)
    assert bologna.places(job) == ["slot1"]
    grid.pass_time(1)
    assert Ad.read(node.slots()["slot1"].ad).value("CurrentRank") == 0.0


@pytest.mark.parametrize("name", ["SUBMIT_SITE_DOMAIN", "Submit_Site_Domain"])
def test_r2_submit_site_domain_of_the_user_is_overwritten(grid: VirtualGrid, bologna: Bologna, name: str) -> None:
    owner_returns(grid, bologna.server())
    foreign = bologna.job({**SHORT, name: "bo.infn.it"}, user=MILANESE)
    local = bologna.job({**SHORT, name: "mi.infn.it"})
    grid.pass_time(10)
    assert bologna.places(foreign, local) == ["", "slot1"]


@pytest.mark.parametrize("universe", [1, 7])
def test_r3a_batch_job_of_another_universe_is_an_other_job(grid: VirtualGrid, bologna: Bologna, universe: int) -> None:
    node = bologna.server()
    owner_returns(grid, node)
    job = bologna.job({**LONG, "JobUniverse": universe})
    grid.pass_time(10)
    assert bologna.places(job) == [""]
    owner_leaves(grid, node)
    assert bologna.places(job) == ["slot1"]
    assert node.nice_of(job) == 15


SUSPENDING_SITE = """
WANT_SUSPEND = True
WANT_SUSPEND_VANILLA = True
SUSPEND = KeyboardIdle < 60
CONTINUE = KeyboardIdle > 300
PREEMPT = False
"""

PREEMPTING_SITE = """
WANT_SUSPEND = False
WANT_SUSPEND_VANILLA = False
PREEMPT = TotalLoadAvg - TotalCondorLoadAvg > 1
"""


@pytest.mark.parametrize(
    ("site", "other_state"),
    [(SUSPENDING_SITE, "SUSPENDED"), (PREEMPTING_SITE, "WAITING")],
    ids=["suspends", "preempts"],
)
def test_r3b_site_policy_affects_other_jobs_but_no_batch_job(
    grid: VirtualGrid, bologna: Bologna, site: str, other_state: str
) -> None:
    node = bologna.server(site)
    batch = [bologna.job(SHORT, 200), bologna.job(LONG, 200)]
    other = bologna.job(OTHER, 200)
    grid.pass_time(10)
    assert grid.states(*batch, other) == ["RUNNING"] * 3
    owner_returns(grid, node)
    grid.pass_time(10 * POLL_S)
    assert grid.states(*batch, other) == ["RUNNING", "RUNNING", other_state]
    assert {"Claimed/Busy"} == set(node.state_and_activity("slot1", "slot3"))
    owner_leaves(grid, node)
    grid.until(lambda: grid.finished(*batch, other), within_s=900)
    assert [grid.job(job).attempt for job in batch] == [1, 1]


# 4 to 7: where and how they start -------------------------------------------------------------------------------


def test_r4a_batch_jobs_start_despite_load_and_keyboard_use(grid: VirtualGrid, bologna: Bologna) -> None:
    node = bologna.server()
    owner_returns(grid, node)
    other, short, long = bologna.job(OTHER), bologna.job(SHORT), bologna.job(LONG)
    grid.pass_time(60)
    assert bologna.places(other, short, long) == ["", "slot1", "slot3"]


@pytest.mark.parametrize(
    ("load", "keyboard_idle_s"), [(2.0, 3 * HOUR_S), (0.0, 1), (2.0, 1)], ids=["load", "keyboard", "both"]
)
@pytest.mark.parametrize("alice", [False, True], ids=["ordinary", "alice"])
def test_r4a_other_jobs_start_only_on_a_quiet_machine(
    grid: VirtualGrid, bologna: Bologna, alice: bool, load: float, keyboard_idle_s: int
) -> None:
    node = bologna.server(alice=alice)
    set_owner_activity(node, load, keyboard_idle_s)
    grid.pass_time(REQUEST_INTERVAL_S)
    others = [bologna.job(OTHER) for _ in range(2)]
    grid.pass_time(2 * REQUEST_INTERVAL_S)
    # The published texts read a slot's own part of the load, which idle long slots take first.
    is_missed = keyboard_idle_s > HOUR_S and not bologna.ours
    assert bologna.places(*others) == (["slot1", "slot2"] if is_missed else ["", ""])
    owner_leaves(grid, node)
    assert grid.states(others[0]) == ["RUNNING"]


def test_r4b_free_slot_goes_to_a_batch_job_first(grid: VirtualGrid, bologna: Bologna) -> None:
    bologna.server()
    running = [bologna.job(SHORT, run_s, user="carla") for run_s in (100, 1000)]
    other, batch = bologna.job(OTHER, user="anna"), bologna.job(SHORT)
    grid.until(lambda: grid.finished(running[0]))
    grid.pass_time(5)
    assert bologna.places(other, batch) == ["", "slot1"]


def test_r5_job_is_short_unless_long_running_job_is_true(grid: VirtualGrid, bologna: Bologna) -> None:
    node = bologna.server()
    for attributes in ({}, *({"LongRunningJob": value} for value in (False, "true", "True", 1))):
        job = bologna.job({**BB, **attributes}, 10)
        assert bologna.places(job) == ["slot1"], attributes
        assert node.nice_of(job) == 5
        grid.pass_time(11)
    assert bologna.places(bologna.job({**BB, "LongRunningJob": True})) == ["slot3"]


def test_r6a_short_job_does_not_wait_for_long_jobs(grid: VirtualGrid, bologna: Bologna) -> None:
    bologna.server()
    long = [bologna.job(LONG, 5000) for _ in range(5)]
    grid.pass_time(60)
    assert bologna.places(*long) == ["slot3", "slot4", "slot5", "slot6", ""]
    short = bologna.job(SHORT, 100)
    assert bologna.places(short) == ["slot1"]
    assert grid.until(lambda: grid.finished(short)) == pytest.approx(100, abs=1)


def test_r6b_two_processors_run_two_short_and_four_long_jobs(grid: VirtualGrid, bologna: Bologna) -> None:
    node = bologna.server()
    shorts = [bologna.job(SHORT) for _ in range(2)]
    grid.pass_time(60)
    longs = [bologna.job(LONG) for _ in range(4)]
    assert bologna.places(*shorts, *longs) == [f"slot{number}" for number in range(1, 7)]
    grid.pass_time(10)
    assert set(node.state_and_activity()) == {"Claimed/Busy"}


def test_r6c_each_kind_of_job_uses_its_own_slots(grid: VirtualGrid, bologna: Bologna) -> None:
    node = bologna.server()
    owner_leaves(grid, node)
    jobs = [bologna.job(kind) for kind in (OTHER, LONG, SHORT, SHORT, OTHER, *[LONG] * 4)]
    grid.pass_time(30)
    others, shorts = [jobs[0], jobs[4]], jobs[2:4]
    assert sorted(bologna.places(*shorts)) == ["slot1", "slot2"], "the short jobs have their slots, the other jobs none"
    assert bologna.places(*others) == ["", ""]
    assert bologna.places(jobs[1], *jobs[5:]) == ["slot3", "slot4", "slot5", "slot6", ""]


def test_e14_idle_long_slots_are_in_owner_state_and_take_jobs(grid: VirtualGrid, bologna: Bologna) -> None:
    node = bologna.server()
    assert node.state_and_activity() == ["Unclaimed/Idle"] * 2 + ["Owner/Idle"] * 4
    assert bologna.places(bologna.job(LONG)) == ["slot3"]


def test_r7_short_jobs_have_a_better_nice_value(grid: VirtualGrid, bologna: Bologna) -> None:
    node = bologna.server()
    kinds = [SHORT, LONG, OTHER]
    assert [node.nice_of(bologna.job(kind)) for kind in kinds] == [5, 15, 15]


def test_r7_long_running_other_job_has_a_worse_nice_value(bologna: Bologna) -> None:
    node = bologna.server()
    assert node.nice_of(bologna.job({"LongRunningJob": True})) == 15


# 9: batch jobs before others ------------------------------------------------------------------------------------


def test_r9a_batch_job_preempts_an_other_job_at_once(grid: VirtualGrid, bologna: Bologna) -> None:
    bologna.server()
    batch_running, others = bologna.job(SHORT, 3000, user="carla"), bologna.job(OTHER, 3000, user="anna")
    grid.pass_time(30)
    assert bologna.places(batch_running, others) == ["slot1", "slot2"]
    batch = bologna.job(SHORT)
    assert grid.until(lambda: grid.states(batch) == ["RUNNING"], within_s=POLL_S) < POLL_S
    assert bologna.places(batch, others) == ["slot2", ""]
    assert "RANK" in grid.job(others).reason
    assert grid.job(others).spent_attempts == 0, "a preemption is no fault of the job"


def test_r9a_no_job_is_preempted_for_one_that_needs_another_slot(grid: VirtualGrid, bologna: Bologna) -> None:
    bologna.server()
    others = [bologna.job(OTHER, 3000, user="anna") for _ in range(2)]
    grid.pass_time(30)
    long = bologna.job(LONG)
    grid.pass_time(30)
    assert bologna.places(*others, long) == ["slot1", "slot2", "slot3"]


@pytest.mark.parametrize("states_kind", [True, False])
def test_e7_preemption_requirements_prefer_batch_jobs(grid: VirtualGrid, bologna: Bologna, states_kind: bool) -> None:
    # In the published text an unscoped name means the candidate's attribute if the running job has none.
    is_preempted = bologna.ours or states_kind
    bologna.server(added="RANK = 0")
    kind = {"BolognaBatchJob": False} if states_kind else OTHER
    others = [bologna.job(kind, 3000, user="anna") for _ in range(2)]
    grid.pass_time(30)
    batch = [bologna.job(SHORT, 3000) for _ in range(2)]
    grid.pass_time(30)
    assert grid.states(*batch, *others) == (
        ["RUNNING"] * 2 + ["WAITING"] * 2 if is_preempted else ["WAITING"] * 2 + ["RUNNING"] * 2
    )
    assert ("user priority" in grid.job(others[0]).reason) is is_preempted


# The templates of bbs_submit_short and bbs_submit_long ----------------------------------------------------------


def test_point_12_template_adds_its_attributes_and_requirements(grid: VirtualGrid, bologna: Bologna) -> None:
    ordinary, node = grid.node(cpus=8), bologna.server()
    short, long = bologna.by_template("bologna-short"), bologna.by_template("bologna-long")
    assert bologna.places(short, long) == ["node2/slot1", "node2/slot3"]
    assert [node.nice_of(short), node.nice_of(long)] == [5, 15]
    assert ordinary.running() == {}


def test_point_12_template_keeps_the_users_requirements(grid: VirtualGrid, bologna: Bologna) -> None:
    first, second = bologna.server(name="small", memory_mib=3000), bologna.server(name="large", memory_mib=60_000)
    requirements = "TARGET.Memory >= 5000 || TARGET.Memory == 1"
    jobs = [bologna.by_template("bologna-short", requirements_expression=requirements) for _ in range(3)]
    assert [place.partition("/")[0] for place in bologna.places(*jobs)] == ["large", "large", ""]
    assert first.running() == {}
    assert len(second.running()) == 2


def test_point_12_template_keeps_the_users_periodic_policies(grid: VirtualGrid, bologna: Bologna) -> None:
    bologna.server()
    periodic_remove = "NumJobStarts > 0 && time() - JobCurrentStartDate > 300"
    job = bologna.by_template("bologna-short", 3000, policy=JobPolicy(periodic_remove=periodic_remove))
    grid.pass_time(300)
    assert grid.states(job) == ["RUNNING"]
    grid.pass_time(timedelta(minutes=2).total_seconds())
    assert grid.states(job) == ["REMOVED"]
