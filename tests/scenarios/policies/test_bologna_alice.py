"""ALICE's servers in the Bologna Batch System: each numbered behaviour, under the shipped and the published policy.

A server of ALICE with two processors has four slots: 1 and 2 for short and non-batch jobs, 3 and 4 for ALICE.
"""

from __future__ import annotations

import pytest

from pilotage_server.core.rules import Rules
from pilotage_server.storage.database.engine import Database
from support.site_policies import (
    ALICE,
    LONG,
    OTHER,
    SHORT,
    Bologna,
    SitePolicies,
    in_bologna,
    owner_leaves,
    set_owner_activity,
)
from support.virtual_clock import VirtualClock
from support.virtual_grid import VirtualGrid
from support.virtual_node import VirtualNode


@pytest.fixture
def grid(sqlite_database: Database, clock: VirtualClock) -> VirtualGrid:
    return VirtualGrid(sqlite_database, clock, rules=in_bologna(Rules()))


@pytest.fixture(params=[True, False], ids=["shipped", "published"])
def bologna(request: pytest.FixtureRequest, grid: VirtualGrid, policies: SitePolicies) -> Bologna:
    return Bologna(grid, policies, request.param)


@pytest.fixture
def alice_server(bologna: Bologna) -> VirtualNode:
    """Return a running server of ALICE."""
    return bologna.server(alice=True)


def test_r10_alice_jobs_run_on_alice_servers_only(grid: VirtualGrid, bologna: Bologna) -> None:
    ordinary = bologna.server()
    jobs = [bologna.by_template("bologna-alice")]
    grid.pass_time(60)
    assert grid.states(*jobs) == ["WAITING"]
    bologna.server(alice=True)
    jobs += [bologna.by_template("bologna-alice") for _ in range(2)]
    assert bologna.places(*jobs) == ["node2/slot3", "node2/slot4", ""]
    assert ordinary.running() == {}


def test_e6_requirements_of_the_published_script_admit_ordinary_servers(grid: VirtualGrid, bologna: Bologna) -> None:
    bologna.server()
    job = bologna.job(ALICE, expression="(BolognaBatchServer == True)")
    assert bologna.places(job) == ["slot3"], "it is also a long-running job"


def test_r11_alice_jobs_start_at_once_beside_short_jobs(
    grid: VirtualGrid, bologna: Bologna, alice_server: VirtualNode
) -> None:
    shorts = [bologna.job(SHORT) for _ in range(2)]
    grid.pass_time(30)
    jobs = [bologna.by_template("bologna-alice", 100) for _ in range(2)]
    grid.pass_time(2)
    assert bologna.places(*shorts, *jobs) == ["slot1", "slot2", "slot3", "slot4"]
    assert grid.until(lambda: grid.finished(*jobs)) == pytest.approx(100, abs=2)


def test_r12a_other_long_jobs_never_start_on_alice_servers(
    grid: VirtualGrid, bologna: Bologna, alice_server: VirtualNode
) -> None:
    long = bologna.job(LONG)
    grid.pass_time(60)
    assert grid.states(long) == ["WAITING"]


def test_r12b_short_jobs_start_while_one_other_slot_is_claimed(
    grid: VirtualGrid, bologna: Bologna, alice_server: VirtualNode
) -> None:
    bologna.job(ALICE, 3000)
    grid.pass_time(10)
    first = bologna.job(SHORT)
    grid.pass_time(10)
    second = bologna.job(SHORT)
    grid.pass_time(30)
    assert bologna.places(first, second) == ["slot1", ""]
    grid.until(lambda: grid.place(second) == "node1/slot1", within_s=200)
    assert grid.finished(first)


def test_r12b_short_jobs_wait_while_alice_has_two_slots(
    grid: VirtualGrid, bologna: Bologna, alice_server: VirtualNode
) -> None:
    alice_jobs = [bologna.job(ALICE, run_s) for run_s in (100, 3000)]
    grid.pass_time(10)
    short = bologna.job(SHORT)
    grid.pass_time(60)
    assert grid.states(*alice_jobs, short) == ["RUNNING", "RUNNING", "WAITING"]
    grid.until(lambda: grid.finished(alice_jobs[0]))
    grid.until(lambda: grid.states(short) == ["RUNNING"], within_s=10)


def test_e9_start_does_not_count_the_slot_itself(
    grid: VirtualGrid, bologna: Bologna, alice_server: VirtualNode
) -> None:
    shorts = []
    for _ in range(2):
        shorts.append(bologna.job(SHORT))
        grid.pass_time(10)
    assert grid.states(*shorts) == ["RUNNING"] * 2
    assert [grid.grid.history(job) for job in shorts] == [[(1, "")]] * 2, "nothing was declined"


def test_r12b_pilot_declines_the_second_of_two_jobs_matched_together(
    grid: VirtualGrid, bologna: Bologna, alice_server: VirtualNode
) -> None:
    # The server matches both free slots against one snapshot; the claim of one slot closes the other.
    bologna.job(ALICE, 3000)
    grid.pass_time(10)
    shorts = grid.grid.submit(count=2, arguments="600 0", attributes=dict(SHORT))
    grid.settle()
    grid.pass_time(60)
    assert sorted(bologna.places(*shorts)) == ["", "slot1"]
    (waiting,) = [job for job in shorts if not grid.place(job)]
    assert grid.states(waiting) == ["WAITING"]
    assert [outcome for _, outcome in grid.grid.history(waiting)] == ["declined"], "declined only once"
    assert "START of slot2 is not true" in grid.job(waiting).reason
    assert grid.job(waiting).spent_attempts == 0


def test_e12_other_jobs_need_lower_load_on_alice_servers(grid: VirtualGrid, bologna: Bologna) -> None:
    alice, ordinary = bologna.server(alice=True), bologna.server()
    for node in (alice, ordinary):
        set_owner_activity(node, 0.0, 7200)
    first = [bologna.job(ALICE, 3000), bologna.job(LONG, 3000)]
    grid.pass_time(60)
    assert [grid.place(job) for job in first] == ["node1/slot3", "node2/slot3"]
    other = bologna.job(OTHER, 300)
    grid.pass_time(60)
    assert grid.place(other) == "node2/slot1", "the load of one job exceeds the limit of ALICE's server"


def test_r13_short_jobs_complete_at_a_worse_nice_value(
    grid: VirtualGrid, bologna: Bologna, alice_server: VirtualNode
) -> None:
    shorts = [bologna.job(SHORT, 100) for _ in range(2)]
    grid.pass_time(60)
    alice_jobs = [bologna.by_template("bologna-alice", 3000) for _ in range(2)]
    assert grid.until(lambda: grid.finished(*shorts)) == pytest.approx(40, abs=1)
    assert [grid.job(job).attempt for job in shorts] == [1, 1]
    assert [alice_server.nice_of(job) for job in (*shorts, *alice_jobs)] == [10, 10, 0, 0]


def test_r13_other_jobs_have_a_worse_nice_value_than_alice_jobs(
    grid: VirtualGrid, bologna: Bologna, alice_server: VirtualNode
) -> None:
    owner_leaves(grid, alice_server)
    assert alice_server.nice_of(bologna.job(OTHER)) == 10
