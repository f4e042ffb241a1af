"""Preemption, claims and drains as in HTCondor, from the queue to the node and back.

A test that demonstrates a fact about HTCondor has the fact's name. The jobs' owners have no priority of their own.
"""

from __future__ import annotations

import pytest

from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.core.rules import PilotRules as PilotRules
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.rules import Rules
from pilotage_server.storage.database.engine import Database
from support.jobs import a_user
from support.site_policies import SitePolicies
from support.virtual_clock import VirtualClock
from support.virtual_grid import VirtualGrid
from support.virtual_node import VirtualNode

POLL_S = 5.0
UPDATE_S = 300.0

PREFERS_URGENT = """
NUM_SLOTS = 1
RANK = TARGET.TimeSensitive =?= True
PREEMPTION_REQUIREMENTS = False
MaxJobRetirementTime = 0
"""

FIRST_START_ONLY = "NumJobStarts == 0"
"""Requirements of a job that must not start again after an eviction."""

PREEMPTS_BY_PRIORITY = "NUM_SLOTS = 1\nPREEMPTION_REQUIREMENTS = True\nMaxJobRetirementTime = 0"


def a_node(grid: VirtualGrid, policies: SitePolicies, policy: str, cpus: int = 2) -> VirtualNode:
    return grid.node(policies.written(policy), cpus=cpus)


def submit_urgent(grid: VirtualGrid, priority: int = 0) -> int:
    return grid.submit(60, attributes={"TimeSensitive": True}, priority=priority)


# By rank and by priority ----------------------------------------------------------------------------------------


def test_preempt_rank_preemption_ignores_preemption_requirements(grid: VirtualGrid, policies: SitePolicies) -> None:
    a_node(grid, policies, PREFERS_URGENT)
    ordinary = grid.submit(600, priority=100)
    grid.pass_time(30)
    better = submit_urgent(grid, priority=1)
    grid.until(lambda: grid.states(better) == ["RUNNING"], within_s=POLL_S)
    assert grid.states(ordinary) == ["WAITING"]
    assert "RANK of a waiting job" in grid.job(ordinary).reason
    grid.until(lambda: grid.finished(better, ordinary), within_s=700)
    assert grid.job(ordinary).attempt == 2


def test_one_urgent_job_preempts_one_job_only(grid: VirtualGrid, policies: SitePolicies) -> None:
    a_node(grid, policies, PREFERS_URGENT.replace("NUM_SLOTS = 1", "NUM_SLOTS = 2"))
    ordinary = [grid.submit(600) for _ in range(2)]
    grid.pass_time(30)
    better = submit_urgent(grid)
    grid.pass_time(10)
    assert grid.states(better) == ["RUNNING"]
    assert sorted(grid.states(*ordinary)) == ["RUNNING", "WAITING"]


def test_job_takes_a_free_slot_before_it_preempts(grid: VirtualGrid, policies: SitePolicies) -> None:
    a_node(grid, policies, PREFERS_URGENT.replace("NUM_SLOTS = 1", "NUM_SLOTS = 2"))
    ordinary = grid.submit(600)
    grid.pass_time(30)
    better = submit_urgent(grid)
    grid.pass_time(30)
    assert grid.states(ordinary, better) == ["RUNNING"] * 2


def test_preempt_same_user_never_preempts_itself_for_priority(grid: VirtualGrid, policies: SitePolicies) -> None:
    a_node(grid, policies, PREEMPTS_BY_PRIORITY)
    first, second = (grid.submit(600, user=a_user("ulla"), priority=priority) for priority in (0, 100))
    grid.pass_time(60)
    assert grid.states(first, second) == ["RUNNING", "WAITING"]
    others = grid.submit(60, user=a_user("otto"))
    grid.until(lambda: grid.states(others) == ["RUNNING"], within_s=30)
    assert grid.states(first, second) == ["WAITING"] * 2


def test_server_preemption_requirements_must_be_true_too(
    sqlite_database: Database, clock: VirtualClock, policies: SitePolicies
) -> None:
    grid = VirtualGrid(sqlite_database, clock, rules=Rules(preemption_requirements="TARGET.IsPressing =?= True"))
    a_node(grid, policies, PREEMPTS_BY_PRIORITY)
    running = grid.submit(6000)
    grid.pass_time(30)
    grid.submit(60, user=a_user("otto"), attributes={"IsPressing": False})
    grid.pass_time(60)
    assert grid.states(running) == ["RUNNING"]
    grid.submit(60, user=a_user("otto"), attributes={"IsPressing": True})
    grid.pass_time(10)
    assert grid.states(running) == ["WAITING"]


def test_preempted_job_retires_and_stays_if_the_better_job_is_removed(
    grid: VirtualGrid, policies: SitePolicies
) -> None:
    node = a_node(grid, policies, PREFERS_URGENT.replace("RetirementTime = 0", "RetirementTime = 3000"))
    ordinary = grid.submit(600)
    grid.pass_time(30)
    better = submit_urgent(grid)
    grid.pass_time(60)
    assert node.state_and_activity("slot1") == ["Claimed/Retiring"]
    grid.grid.change(JobChange.REMOVE, better)
    grid.pass_time(60)
    assert node.state_and_activity("slot1") == ["Claimed/Busy"]
    grid.until(lambda: grid.finished(ordinary), within_s=600)
    assert grid.job(ordinary).attempt == 1


# By the slot's own PREEMPT --------------------------------------------------------------------------------------


def test_preempt_preempt_true_with_no_retirement_evicts(grid: VirtualGrid, policies: SitePolicies) -> None:
    a_node(grid, policies, "PREEMPT = TotalClaimRunTime > 20\nMaxJobRetirementTime = 0")
    job = grid.submit(120)
    grid.pass_time(20)
    assert grid.states(job) == ["RUNNING"]
    grid.pass_time(POLL_S + 1)
    assert grid.grid.history(job)[0] == (1, "evicted")


@pytest.mark.parametrize(("want_vacate", "shows"), [("True", "Preempting/Vacating"), ("False", "")])
def test_preempt_want_vacate_false_kills_at_once(
    grid: VirtualGrid, policies: SitePolicies, want_vacate: str, shows: str
) -> None:
    node = a_node(grid, policies, f"NUM_SLOTS = 1\nPREEMPT = TotalClaimRunTime > 20\nWANT_VACATE = {want_vacate}")
    job = grid.submit(120, term_s=50, expression=FIRST_START_ONLY)
    grid.pass_time(20 + POLL_S + 1)
    assert node.state_and_activity() == [shows or "Unclaimed/Idle"]
    assert grid.states(job) == (["RUNNING"] if shows else ["WAITING"])


def test_preempt_kill_ends_vacating(grid: VirtualGrid, policies: SitePolicies) -> None:
    kill = "KILL = time() - EnteredCurrentActivity > 60\nMachineMaxVacateTime = 600"
    node = a_node(grid, policies, f"NUM_SLOTS = 1\nPREEMPT = TotalClaimRunTime > 20\n{kill}")
    job = grid.submit(500, term_s=1000, expression=FIRST_START_ONLY)
    grid.until(lambda: node.state_and_activity() == ["Preempting/Vacating"])
    assert grid.until(lambda: grid.place(job) == "") == pytest.approx(62.5, abs=3.5)


def test_want_hold_holds_the_preempted_job(grid: VirtualGrid, policies: SitePolicies) -> None:
    want_hold = 'WANT_HOLD = True\nWANT_HOLD_REASON = "it used too much"\nWANT_HOLD_SUBCODE = 7'
    a_node(grid, policies, f"PREEMPT = TotalClaimRunTime > 20\n{want_hold}")
    job = grid.submit(120)
    grid.until(lambda: grid.states(job) == ["HELD"], within_s=30)
    held = grid.job(job)
    assert (held.hold_code, held.hold_subcode) == (21, 7)
    assert "it used too much" in held.reason


def test_suspend_continue_during_retirement(grid: VirtualGrid, policies: SitePolicies) -> None:
    suspension = "SUSPEND = KeyboardIdle < 60\nCONTINUE = KeyboardIdle > 300\nWANT_SUSPEND = True"
    preemption = 'PREEMPT = Activity == "Suspended"\nMaxJobRetirementTime = 2000'
    node = a_node(grid, policies, f"NUM_SLOTS = 1\n{suspension}\n{preemption}")
    job = grid.submit(500)
    node.owner_activity.keyboard_idle_s = 1
    grid.pass_time(2 * POLL_S)
    assert node.state_and_activity() == ["Claimed/Suspended"]
    node.owner_activity.keyboard_idle_s = 4000
    grid.pass_time(3 * POLL_S)
    assert node.state_and_activity() == ["Claimed/Retiring"]
    grid.until(lambda: grid.finished(job), within_s=550)
    assert grid.job(job).attempt == 1


def test_jobs_start_by_the_time_of_the_day(grid: VirtualGrid, policies: SitePolicies) -> None:
    now = grid.clock()
    minute, day = now.hour * 60 + now.minute, now.isoweekday() % 7
    a_node(grid, policies, f"START = ClockMin >= {minute + 10} && ClockDay == {day} && CpuBusyTime == 0")
    job = grid.submit(60)
    grid.pass_time(9 * 60)
    assert grid.states(job) == ["WAITING"]
    grid.until(lambda: grid.states(job) == ["RUNNING"], within_s=120)


# Claims ---------------------------------------------------------------------------------------------------------


def claims_of(node: VirtualNode) -> list[tuple[str, float]]:
    """Return the slot of each started job, and when the claim of that slot began."""
    slots = [instruction.slot for instruction in node.history if isinstance(instruction, PrepareJob)]
    return [(slot.name, slot.since_state.boot_s) for slot in slots]


def test_claim_reuse(grid: VirtualGrid, policies: SitePolicies) -> None:
    node = a_node(grid, policies, "CLAIM_WORKLIFE = 1200")
    jobs = [grid.submit(1) for _ in range(6)]
    grid.until(lambda: grid.finished(*jobs), within_s=30)
    used = claims_of(node)
    assert len(used) == 6
    assert sorted(name for name, _ in set(used)) == ["slot1_1", "slot1_2"]


@pytest.mark.parametrize(
    ("worklife_s", "activations"), [(1200, [2, 1]), (0, [1, 1, 1]), (-1, [3])], ids=["limited", "zero", "unlimited"]
)
def test_claim_worklife(grid: VirtualGrid, policies: SitePolicies, worklife_s: int, activations: list[int]) -> None:
    policy = policies.written(f"NUM_SLOTS = 1\nCLAIM_WORKLIFE = {worklife_s}")
    node = grid.node(policy, cpus=2, rules=PilotRules(sample_s=600, wait_s=600))
    jobs = [grid.submit(1000) for _ in range(3)]
    grid.until(lambda: grid.finished(*jobs), within_s=3100)
    assert [grid.job(job).attempt for job in jobs] == [1, 1, 1], "the worklife does not end a running job"
    claims = claims_of(node)
    assert [claims.count(claim) for claim in dict.fromkeys(claims)] == activations


def test_claim_ends_with_the_last_job_of_its_account(grid: VirtualGrid, policies: SitePolicies) -> None:
    node = a_node(grid, policies, "NUM_SLOTS = 1\nCLAIM_WORKLIFE = -1")
    first, others = grid.submit(60), grid.submit(60, user=a_user("otto"))
    grid.until(lambda: grid.states(others) == ["RUNNING"], within_s=70)
    assert grid.finished(first)
    grid.until(lambda: grid.finished(others))
    grid.pass_time(5)
    assert node.state_and_activity() == ["Unclaimed/Idle"]


# START ----------------------------------------------------------------------------------------------------------


def test_start_undefined_without_a_job_counts_as_willing(grid: VirtualGrid, policies: SitePolicies) -> None:
    node = a_node(grid, policies, "NUM_SLOTS = 1\nSTART = TARGET.Wanted\nIS_OWNER = START =?= False")
    assert node.state_and_activity() == ["Unclaimed/Idle"]
    unwanted = [grid.submit(60, attributes=attributes) for attributes in ({}, {"Wanted": False}, {"Wanted": "true"})]
    wanted = grid.submit(60, attributes={"Wanted": True})
    grid.pass_time(5)
    assert grid.states(wanted, *unwanted) == ["RUNNING", "WAITING", "WAITING", "WAITING"]


def test_job_that_start_rejects_is_declined_and_not_offered_again(grid: VirtualGrid, policies: SitePolicies) -> None:
    node = a_node(grid, policies, "NUM_SLOTS = 1\nSTART = LoadAvg < 0.5")
    node.owner_activity.owner_load = 2.0
    grid.pass_time(POLL_S + 1)  # the pilot knows the load; the server gets it with the next request
    job = grid.submit(60)
    grid.pass_time(60)
    assert grid.states(job) == ["WAITING"]
    assert grid.grid.history(job) == [(1, "declined")]
    assert "START of slot1 is not true" in grid.job(job).reason
    assert grid.job(job).spent_attempts == 0
    node.owner_activity.owner_load = 0.0
    waited = grid.until(lambda: grid.states(job) == ["RUNNING"], within_s=UPDATE_S + 30)
    assert waited > UPDATE_S / 2, "a changed load alone does not make it a different slot"


def test_declined_job_is_offered_again_when_the_slot_changes(grid: VirtualGrid, policies: SitePolicies) -> None:
    node = a_node(grid, policies, "NUM_SLOTS = 1\nSTART = LoadAvg < 0.5 || TARGET.IsTolerant =?= True")
    node.owner_activity.owner_load = 2.0
    grid.pass_time(POLL_S + 1)
    job = grid.submit(60)
    grid.pass_time(30)
    assert grid.grid.history(job) == [(1, "declined")]
    node.owner_activity.owner_load = 0.0
    tolerant = grid.submit(20, attributes={"IsTolerant": True})
    grid.until(lambda: grid.finished(tolerant), within_s=30)
    grid.until(lambda: grid.states(job) == ["RUNNING"], within_s=30)


def test_declined_job_goes_to_another_node_at_once(grid: VirtualGrid, policies: SitePolicies) -> None:
    policy = "NUM_SLOTS = 1\nSTART = LoadAvg < 0.5"
    first = a_node(grid, policies, policy)
    first.owner_activity.owner_load = 2.0
    grid.pass_time(POLL_S + 1)
    a_node(grid, policies, policy)
    job = grid.submit(60)
    grid.pass_time(2)
    assert grid.place(job) == "node2/slot1"


# Drains ---------------------------------------------------------------------------------------------------------

RETIRING = "NUM_SLOTS = 2\nMaxJobRetirementTime = 3600\nMachineMaxVacateTime = 5"


def test_drain_slot_states(grid: VirtualGrid, policies: SitePolicies) -> None:
    node = a_node(grid, policies, RETIRING)
    job = grid.submit(600)
    grid.pass_time(30)
    grid.drain(node)
    grid.pass_time(POLL_S)
    assert node.state_and_activity() == ["Claimed/Retiring", "Drained/Retiring"]
    grid.until(lambda: node.ended is not None, within_s=600)
    assert node.state_and_activity() == ["Drained/Idle"] * 2
    assert grid.states(job) == ["DONE"]


@pytest.mark.parametrize(("term_s", "gone_after_s"), [(2, 2), (600, 5)])
def test_drain_quick_evicts(grid: VirtualGrid, policies: SitePolicies, term_s: float, gone_after_s: float) -> None:
    node = a_node(grid, policies, RETIRING)
    job = grid.submit(3600, term_s=term_s)
    grid.pass_time(30)
    grid.drain(node, evict=True)
    assert grid.until(lambda: grid.place(job) == "", within_s=30) == pytest.approx(gone_after_s, abs=0.5)
    grid.pass_time(1)
    assert grid.states(job) == ["WAITING"]
    assert grid.grid.history(job) == [(1, "evicted")]
