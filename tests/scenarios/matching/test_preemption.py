"""Slots that change hands: facts of HTCondor's preemption, claims and drains, from the queue to the node and back.

Each test that shows one of the facts is named as it is. The jobs' owners are users without any standing of their own.
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

CHOOSY = """
NUM_SLOTS = 1
RANK = TARGET.TimeSensitive =?= True
PREEMPTION_REQUIREMENTS = False
MaxJobRetirementTime = 0
"""

ONCE = "NumJobStarts == 0"
"""Required of a place by a job that has to stay out once it is out."""

ANYBODY = "NUM_SLOTS = 1\nPREEMPTION_REQUIREMENTS = True\nMaxJobRetirementTime = 0"


def a_node(grid: VirtualGrid, policies: SitePolicies, policy: str, cpus: int = 2) -> VirtualNode:
    return grid.node(policies.written(policy), cpus=cpus)


def urgent(grid: VirtualGrid, priority: int = 0) -> int:
    return grid.submit(60, attributes={"TimeSensitive": True}, priority=priority)


# By rank and by priority ----------------------------------------------------------------------------------------


def test_preempt_rank_preemption_ignores_preemption_requirements(grid: VirtualGrid, policies: SitePolicies) -> None:
    a_node(grid, policies, CHOOSY)
    ordinary = grid.submit(600, priority=100)
    grid.pass_time(30)
    better = urgent(grid, priority=1)
    grid.until(lambda: grid.states(better) == ["RUNNING"], within_s=POLL_S)
    assert grid.states(ordinary) == ["WAITING"]
    assert "RANK of a waiting job" in grid.job(ordinary).reason
    grid.until(lambda: grid.finished(better, ordinary), within_s=700)
    assert grid.job(ordinary).attempt == 2


def test_one_urgent_job_drives_out_one_job_only(grid: VirtualGrid, policies: SitePolicies) -> None:
    a_node(grid, policies, CHOOSY.replace("NUM_SLOTS = 1", "NUM_SLOTS = 2"))
    ordinary = [grid.submit(600) for _ in range(2)]
    grid.pass_time(30)
    better = urgent(grid)
    grid.pass_time(10)
    assert grid.states(better) == ["RUNNING"]
    assert sorted(grid.states(*ordinary)) == ["RUNNING", "WAITING"]


def test_a_job_goes_to_a_free_slot_before_it_drives_anybody_out(grid: VirtualGrid, policies: SitePolicies) -> None:
    a_node(grid, policies, CHOOSY.replace("NUM_SLOTS = 1", "NUM_SLOTS = 2"))
    ordinary = grid.submit(600)
    grid.pass_time(30)
    better = urgent(grid)
    grid.pass_time(30)
    assert grid.states(ordinary, better) == ["RUNNING"] * 2


def test_preempt_same_user_never_preempts_itself_for_priority(grid: VirtualGrid, policies: SitePolicies) -> None:
    a_node(grid, policies, ANYBODY)
    first, second = (grid.submit(600, user=a_user("ulla"), priority=priority) for priority in (0, 100))
    grid.pass_time(60)
    assert grid.states(first, second) == ["RUNNING", "WAITING"]
    others = grid.submit(60, user=a_user("otto"))
    grid.until(lambda: grid.states(others) == ["RUNNING"], within_s=30)
    assert grid.states(first, second) == ["WAITING"] * 2


def test_what_the_server_says_of_preemption_has_to_be_true_too(
    sqlite_database: Database, clock: VirtualClock, policies: SitePolicies
) -> None:
    grid = VirtualGrid(sqlite_database, clock, rules=Rules(preemption_requirements="TARGET.IsPressing =?= True"))
    a_node(grid, policies, ANYBODY)
    running = grid.submit(6000)
    grid.pass_time(30)
    grid.submit(60, user=a_user("otto"), attributes={"IsPressing": False})
    grid.pass_time(60)
    assert grid.states(running) == ["RUNNING"]
    grid.submit(60, user=a_user("otto"), attributes={"IsPressing": True})
    grid.pass_time(10)
    assert grid.states(running) == ["WAITING"]


def test_a_job_that_makes_room_has_its_retirement_and_stays_if_it_is_not_wanted_any_more(
    grid: VirtualGrid, policies: SitePolicies
) -> None:
    node = a_node(grid, policies, CHOOSY.replace("RetirementTime = 0", "RetirementTime = 3000"))
    ordinary = grid.submit(600)
    grid.pass_time(30)
    better = urgent(grid)
    grid.pass_time(60)
    assert node.shows("slot1") == ["Claimed/Retiring"]
    grid.grid.change(JobChange.REMOVE, better)
    grid.pass_time(60)
    assert node.shows("slot1") == ["Claimed/Busy"]
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
    job = grid.submit(120, term_s=50, expression=ONCE)
    grid.pass_time(20 + POLL_S + 1)
    assert node.shows() == [shows or "Unclaimed/Idle"]
    assert grid.states(job) == (["RUNNING"] if shows else ["WAITING"])


def test_preempt_kill_ends_vacating(grid: VirtualGrid, policies: SitePolicies) -> None:
    kill = "KILL = time() - EnteredCurrentActivity > 60\nMachineMaxVacateTime = 600"
    node = a_node(grid, policies, f"NUM_SLOTS = 1\nPREEMPT = TotalClaimRunTime > 20\n{kill}")
    job = grid.submit(500, term_s=1000, expression=ONCE)
    grid.until(lambda: node.shows() == ["Preempting/Vacating"])
    assert grid.until(lambda: grid.place(job) == "") == pytest.approx(62.5, abs=3.5)


def test_a_job_that_the_policy_throws_out_is_held_where_it_wants_that(
    grid: VirtualGrid, policies: SitePolicies
) -> None:
    wish = 'WANT_HOLD = True\nWANT_HOLD_REASON = "it used too much"\nWANT_HOLD_SUBCODE = 7'
    a_node(grid, policies, f"PREEMPT = TotalClaimRunTime > 20\n{wish}")
    job = grid.submit(120)
    grid.until(lambda: grid.states(job) == ["HELD"], within_s=30)
    held = grid.job(job)
    assert (held.hold_code, held.hold_subcode) == (21, 7)
    assert "it used too much" in held.reason


def test_suspend_continue_during_retirement(grid: VirtualGrid, policies: SitePolicies) -> None:
    typing = "SUSPEND = KeyboardIdle < 60\nCONTINUE = KeyboardIdle > 300\nWANT_SUSPEND = True"
    leaving = 'PREEMPT = Activity == "Suspended"\nMaxJobRetirementTime = 2000'
    node = a_node(grid, policies, f"NUM_SLOTS = 1\n{typing}\n{leaving}")
    job = grid.submit(500)
    node.weather.keyboard_idle_s = 1
    grid.pass_time(2 * POLL_S)
    assert node.shows() == ["Claimed/Suspended"]
    node.weather.keyboard_idle_s = 4000
    grid.pass_time(3 * POLL_S)
    assert node.shows() == ["Claimed/Retiring"]
    grid.until(lambda: grid.finished(job), within_s=550)
    assert grid.job(job).attempt == 1


# Claims ---------------------------------------------------------------------------------------------------------


def claims_of(node: VirtualNode) -> list[tuple[str, float]]:
    """Return the slot of each job that was put into one, and since when that was claimed."""
    slots = [each.slot for each in node.history if isinstance(each, PrepareJob)]
    return [(slot.name, slot.since_state.boot_s) for slot in slots]


def test_claim_reuse(grid: VirtualGrid, policies: SitePolicies) -> None:
    node = a_node(grid, policies, "CLAIM_WORKLIFE = 1200")
    jobs = [grid.submit(1) for _ in range(6)]
    grid.until(lambda: grid.finished(*jobs), within_s=30)
    used = claims_of(node)
    assert len(used) == 6
    assert sorted(name for name, _ in set(used)) == ["slot1_1", "slot1_2"]


@pytest.mark.parametrize(
    ("worklife_s", "activations"), [(1200, [2, 1]), (0, [1, 1, 1]), (-1, [3])], ids=["usual", "none", "endless"]
)
def test_claim_worklife(grid: VirtualGrid, policies: SitePolicies, worklife_s: int, activations: list[int]) -> None:
    policy = policies.written(f"NUM_SLOTS = 1\nCLAIM_WORKLIFE = {worklife_s}")
    node = grid.node(policy, cpus=2, rules=PilotRules(sample_s=600, wait_s=600))
    jobs = [grid.submit(1000) for _ in range(3)]
    grid.until(lambda: grid.finished(*jobs), within_s=3100)
    assert [grid.job(job).attempt for job in jobs] == [1, 1, 1], "a running job is never cut"
    claims = claims_of(node)
    assert [claims.count(claim) for claim in dict.fromkeys(claims)] == activations


def test_a_claim_does_not_outlive_the_jobs_of_its_holder(grid: VirtualGrid, policies: SitePolicies) -> None:
    node = a_node(grid, policies, "NUM_SLOTS = 1\nCLAIM_WORKLIFE = -1")
    first, others = grid.submit(60), grid.submit(60, user=a_user("otto"))
    grid.until(lambda: grid.states(others) == ["RUNNING"], within_s=70)
    assert grid.finished(first)
    grid.until(lambda: grid.finished(others))
    grid.pass_time(5)
    assert node.shows() == ["Unclaimed/Idle"]


# START ----------------------------------------------------------------------------------------------------------


def test_start_undefined_without_a_job_counts_as_willing(grid: VirtualGrid, policies: SitePolicies) -> None:
    node = a_node(grid, policies, "NUM_SLOTS = 1\nSTART = TARGET.Wanted\nIS_OWNER = START =?= False")
    assert node.shows() == ["Unclaimed/Idle"]
    unwanted = [grid.submit(60, attributes=said) for said in ({}, {"Wanted": False}, {"Wanted": "true"})]
    wanted = grid.submit(60, attributes={"Wanted": True})
    grid.pass_time(5)
    assert grid.states(wanted, *unwanted) == ["RUNNING", "WAITING", "WAITING", "WAITING"]


def test_what_start_no_longer_wants_is_given_back_with_the_reason_and_not_offered_again(
    grid: VirtualGrid, policies: SitePolicies
) -> None:
    node = a_node(grid, policies, "NUM_SLOTS = 1\nSTART = LoadAvg < 0.5")
    node.weather.owner_load = 2.0
    grid.pass_time(POLL_S + 1)  # the pilot has seen it, the server is told with the next request
    job = grid.submit(60)
    grid.pass_time(60)
    assert grid.states(job) == ["WAITING"]
    assert grid.grid.history(job) == [(1, "declined")]
    assert "START of slot1 is not true" in grid.job(job).reason
    assert grid.job(job).spent_attempts == 0
    node.weather.owner_load = 0.0
    waited = grid.until(lambda: grid.states(job) == ["RUNNING"], within_s=UPDATE_S + 30)
    assert waited > UPDATE_S / 2, "changed loads alone do not make it another slot"


def test_a_declined_job_is_offered_again_as_soon_as_the_slot_is_another(
    grid: VirtualGrid, policies: SitePolicies
) -> None:
    node = a_node(grid, policies, "NUM_SLOTS = 1\nSTART = LoadAvg < 0.5 || TARGET.IsBold =?= True")
    node.weather.owner_load = 2.0
    grid.pass_time(POLL_S + 1)
    job = grid.submit(60)
    grid.pass_time(30)
    assert grid.grid.history(job) == [(1, "declined")]
    node.weather.owner_load = 0.0
    bold = grid.submit(20, attributes={"IsBold": True})
    grid.until(lambda: grid.finished(bold), within_s=30)
    grid.until(lambda: grid.states(job) == ["RUNNING"], within_s=30)


def test_a_declined_job_goes_to_another_node_at_once(grid: VirtualGrid, policies: SitePolicies) -> None:
    policy = "NUM_SLOTS = 1\nSTART = LoadAvg < 0.5"
    first = a_node(grid, policies, policy)
    first.weather.owner_load = 2.0
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
    assert node.shows() == ["Claimed/Retiring", "Drained/Retiring"]
    grid.until(lambda: node.ended is not None, within_s=600)
    assert node.shows() == ["Drained/Idle"] * 2
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
