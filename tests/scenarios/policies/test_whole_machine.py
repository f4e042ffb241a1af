"""Whole-machine jobs: each numbered behaviour in virtual time, under the shipped policies and HTCondor's recipe.

A node with eight cores: slots 1 to 8 for single-core jobs, slot 9 for jobs that need the whole machine.
"""

from __future__ import annotations

import pytest

from pilotage.classads.evaluation import Ad
from pilotage_pilot.core.rules import PilotRules as PilotRules
from support.site_policies import SitePolicies
from support.virtual_grid import VirtualGrid
from support.virtual_node import VirtualNode

SINGLES = [f"slot{number}" for number in range(1, 9)]
POLL_S = 5.0
DAY_S = 86_400.0


@pytest.fixture(params=["whole-machine.conf", "whole_machine_suspend_wm.conf"])
def node(request: pytest.FixtureRequest, grid: VirtualGrid, policies: SitePolicies) -> VirtualNode:
    """Return a node that suspends a whole-machine job while single-core jobs run."""
    return grid.node(policies.path(request.param))


def a_single(grid: VirtualGrid, run_s: float = 600.0) -> int:
    return grid.submit(run_s)


def a_whole(grid: VirtualGrid, run_s: float = 600.0, expression: str | None = "CAN_RUN_WHOLE_MACHINE =?= True") -> int:
    return grid.submit(run_s, attributes={"RequiresWholeMachine": True}, expression=expression)


def test_whole_machine_1_idle_whole_slot_is_in_owner_state(node: VirtualNode) -> None:
    assert node.state_and_activity() == ["Unclaimed/Idle"] * 8 + ["Owner/Idle"]


def test_whole_machine_2_each_kind_of_job_uses_its_own_slots(grid: VirtualGrid, node: VirtualNode) -> None:
    singles = [a_single(grid) for _ in range(9)]
    assert sorted(node.running()) == SINGLES
    assert grid.states(singles[8]) == ["WAITING"]
    whole = a_whole(grid)
    assert grid.place(whole) == "node1/slot9"


def test_whole_machine_2_whole_job_without_requirements_uses_slot_9_only(grid: VirtualGrid, node: VirtualNode) -> None:
    first, second = a_whole(grid, expression=None), a_whole(grid, expression=None)
    assert [grid.place(first), grid.place(second)] == ["node1/slot9", ""]


def test_whole_machine_3_idle_slots_become_owner_and_jobs_continue(grid: VirtualGrid, node: VirtualNode) -> None:
    running = [a_single(grid, run_s) for run_s in (100, 200)]
    a_whole(grid)
    late = a_single(grid)
    grid.pass_time(2 * POLL_S)
    assert node.state_and_activity(*SINGLES) == ["Claimed/Busy"] * 2 + ["Owner/Idle"] * 6
    assert grid.states(late) == ["WAITING"]
    assert grid.until(lambda: grid.finished(*running)) == pytest.approx(200 - 2 * POLL_S, abs=2)


def test_whole_machine_4_whole_job_is_suspended_while_singles_run(grid: VirtualGrid, node: VirtualNode) -> None:
    a_single(grid)
    whole = a_whole(grid)
    grid.pass_time(0.5)
    assert node.state_and_activity("slot9") == ["Claimed/Busy"]
    grid.pass_time(POLL_S)
    assert node.state_and_activity("slot9") == ["Claimed/Suspended"]
    assert grid.states(whole) == ["SUSPENDED"]


def test_whole_machine_5_whole_job_continues_after_the_last_single(grid: VirtualGrid, node: VirtualNode) -> None:
    singles = [a_single(grid, run_s) for run_s in (60, 300)]
    whole = a_whole(grid, 100)
    grid.until(lambda: grid.finished(singles[0]))
    grid.pass_time(2 * POLL_S)
    assert node.state_and_activity("slot9") == ["Claimed/Suspended"]
    grid.until(lambda: grid.finished(singles[1]))
    grid.pass_time(POLL_S + 1)
    assert node.state_and_activity("slot9") == ["Claimed/Busy"]
    grid.until(lambda: grid.finished(whole), within_s=110)


def test_whole_machine_6_idle_claim_of_a_single_is_released(grid: VirtualGrid, node: VirtualNode) -> None:
    single = a_single(grid, 30)
    whole = a_whole(grid, 100)
    second = a_single(grid, 30)
    grid.until(lambda: grid.finished(single))
    grid.until(lambda: grid.finished(whole), within_s=130)
    assert grid.job(second).starts == 0, "it waits while the whole machine is claimed"
    grid.until(lambda: grid.finished(second), within_s=60)


def test_whole_machine_10_jobs_reuse_the_claim_until_its_worklife_ends(
    grid: VirtualGrid, policies: SitePolicies
) -> None:
    grid.node(policies.path("whole-machine.conf", "CLAIM_WORKLIFE = 250"))
    wholes = [a_whole(grid, 100) for _ in range(4)]
    single = a_single(grid, 100)
    grid.pass_time(290)
    assert grid.states(*wholes, single) == ["DONE", "DONE", "RUNNING", "WAITING", "WAITING"]
    grid.until(lambda: grid.place(single) != "", within_s=20)


def test_whole_machine_13_node_advertises_twice_its_resources(node: VirtualNode) -> None:
    ad = Ad.read(node.slots()["slot9"].ad)
    assert (ad.value("TotalCpus"), ad.value("Cpus"), ad.value("DetectedCpus")) == (16, 8, 8)
    assert (ad.value("TotalMemory"), ad.value("Memory")) == (2 * 16054, 16054)


def test_whole_machine_14_slots_update_their_states_soon_after_a_claim(grid: VirtualGrid, node: VirtualNode) -> None:
    a_whole(grid)
    grid.pass_time(2)
    assert node.state_and_activity() == ["Owner/Idle"] * 8 + ["Claimed/Busy"]


# Variants -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["whole-machine-suspend-single.conf", "whole_machine_suspend_single.conf"])
def suspending(request: pytest.FixtureRequest, grid: VirtualGrid, policies: SitePolicies) -> VirtualNode:
    """Return a node that suspends single-core jobs while a whole-machine job runs."""
    return grid.node(policies.path(request.param))


def test_whole_machine_7_singles_are_suspended_and_continue_without_restart(
    grid: VirtualGrid, suspending: VirtualNode
) -> None:
    single = a_single(grid, 100)
    grid.pass_time(50)
    whole = a_whole(grid, 200)
    grid.pass_time(POLL_S + 1)
    assert suspending.state_and_activity("slot1", "slot9") == ["Claimed/Suspended", "Claimed/Busy"]
    grid.until(lambda: grid.finished(whole))
    assert grid.until(lambda: grid.finished(single)) == pytest.approx(50, abs=2 * POLL_S)
    assert grid.job(single).attempt == 1


def test_whole_machine_7_stream_of_whole_jobs_starves_singles(grid: VirtualGrid, suspending: VirtualNode) -> None:
    single = a_single(grid, 100)
    wholes = [a_whole(grid, 300) for _ in range(4)]
    grid.until(lambda: grid.finished(*wholes[:3]))
    assert grid.states(single) == ["SUSPENDED"]


@pytest.mark.parametrize("policy", ["whole-machine-kick.conf", "whole_machine_kick.conf"])
def test_whole_machine_8_singles_are_evicted_after_a_day(
    long_lease_grid: VirtualGrid, policies: SitePolicies, policy: str
) -> None:
    grid = long_lease_grid
    slow_updates = PilotRules(wait_s=3600, sample_s=3600, node_refresh_s=3600)
    node = grid.node(policies.path(policy, "POLLING_INTERVAL = 300"), rules=slow_updates)
    short, long = a_single(grid, 3000), a_single(grid, 2 * DAY_S)
    grid.pass_time(1000)
    whole = a_whole(grid, 1000)
    grid.pass_time(400)
    assert node.state_and_activity("slot1", "slot2", "slot9") == [
        "Claimed/Retiring",
        "Claimed/Retiring",
        "Claimed/Suspended",
    ]
    grid.until(lambda: grid.finished(short))
    assert node.state_and_activity("slot9") == ["Claimed/Suspended"]
    left = grid.until(lambda: grid.place(long) == "", within_s=DAY_S)
    assert left + 3000 == pytest.approx(DAY_S, abs=700), "the day includes the vacate time"
    assert "PREEMPT" in grid.job(long).reason
    grid.until(lambda: grid.finished(whole), within_s=1400)


@pytest.mark.parametrize("policy", ["whole-machine-sticky.conf", "whole_machine_sticky.conf"])
def test_whole_machine_9_singles_wait_ten_minutes_after_a_whole_job(
    grid: VirtualGrid, policies: SitePolicies, policy: str
) -> None:
    grid.node(policies.path(policy))
    whole = a_whole(grid, 100)
    grid.until(lambda: grid.finished(whole))
    single = a_single(grid)
    grid.pass_time(590)
    assert grid.states(single) == ["WAITING"]
    another = a_whole(grid, 100)
    assert grid.place(another) == "node1/slot9", "whole-machine jobs do not wait"
    grid.until(lambda: grid.finished(another))
    waited = grid.until(lambda: grid.place(single) != "", within_s=700)
    assert waited == pytest.approx(610, abs=15)


@pytest.mark.parametrize(
    ("policy", "waits_s"),
    [("whole-machine-sticky.conf", 0), ("whole_machine_sticky.conf", 600)],
    ids=["ours", "theirs"],
)
def test_whole_machine_9_singles_start_at_once_where_no_whole_job_ran(
    grid: VirtualGrid, policies: SitePolicies, policy: str, waits_s: float
) -> None:
    grid.node(policies.path(policy))
    single = a_single(grid)
    assert grid.until(lambda: grid.place(single) != "", within_s=700) == pytest.approx(waits_s, abs=30)


@pytest.mark.parametrize(("later_s", "waits_s"), [(200, 400), (700, 0)])
def test_whole_machine_9_a_new_pilot_continues_the_pause_of_an_earlier_one(
    grid: VirtualGrid, policies: SitePolicies, later_s: float, waits_s: float
) -> None:
    policy = policies.path("whole-machine-sticky.conf")
    first = grid.node(policy, name="wn1")
    whole = a_whole(grid, 100)
    grid.until(lambda: grid.finished(whole))
    grid.drain(first)
    grid.until(lambda: first.ended is not None, within_s=60)
    grid.pass_time(later_s)
    grid.node(policy, name="wn1", after=first)
    single = a_single(grid)
    assert grid.until(lambda: grid.place(single) != "", within_s=700) == pytest.approx(waits_s, abs=30)


def test_whole_machine_9_ended_single_starts_no_pause(grid: VirtualGrid, policies: SitePolicies) -> None:
    grid.node(policies.path("whole-machine-sticky.conf"))
    first = a_single(grid, 100)
    grid.until(lambda: grid.finished(first))
    second = a_single(grid, 100)
    grid.until(lambda: grid.place(second) != "", within_s=10)
