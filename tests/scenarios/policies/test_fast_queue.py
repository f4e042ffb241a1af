"""The fast queue: a short job starts at once on the core of a long job, which is suspended in memory meanwhile.

A node with two cores has four slots: 1 and 2 for normal jobs; 3 and 4, on the same cores, for fast jobs.
"""

from __future__ import annotations

import pytest

from pilotage.values.accounts import Account
from pilotage_server.core.rules import Rules, Sharing
from pilotage_server.storage.database.engine import Database
from support.jobs import a_user
from support.site_policies import SitePolicies
from support.virtual_clock import VirtualClock
from support.virtual_grid import VirtualGrid
from support.virtual_node import VirtualNode

POLL_S = 5.0
SAM = Account("lhcb", "users", "sam")


@pytest.fixture
def node(grid: VirtualGrid, policies: SitePolicies) -> VirtualNode:
    return grid.node(policies.path("fast-queue.conf"), cpus=2)


def a_normal(grid: VirtualGrid, run_s: float = 600.0) -> int:
    return grid.submit(run_s, user=a_user("sam"))


def a_fast(grid: VirtualGrid, run_s: float = 60.0) -> int:
    return grid.submit(run_s, user=a_user("fay"), attributes={"FastJob": True})


def test_each_kind_of_job_uses_its_own_slots(grid: VirtualGrid, node: VirtualNode) -> None:
    jobs = [a_normal(grid) for _ in range(3)] + [a_fast(grid) for _ in range(3)]
    assert [grid.place(job) for job in jobs] == [
        "node1/slot1", "node1/slot2", "", "node1/slot3", "node1/slot4", ""
    ]  # fmt: skip


def test_normal_job_is_suspended_while_a_fast_job_uses_its_core(grid: VirtualGrid, node: VirtualNode) -> None:
    normals = [a_normal(grid) for _ in range(2)]
    grid.pass_time(100)
    fast = a_fast(grid)
    assert grid.place(fast) == "node1/slot3", "it does not wait for the normal job"
    grid.pass_time(POLL_S + 1)
    assert node.state_and_activity("slot1", "slot2", "slot3") == ["Claimed/Suspended", "Claimed/Busy", "Claimed/Busy"]
    assert grid.states(*normals, fast) == ["SUSPENDED", "RUNNING", "RUNNING"]


def test_suspended_job_continues_without_a_restart(grid: VirtualGrid, node: VirtualNode) -> None:
    normal = a_normal(grid, 300)
    grid.pass_time(200)
    fast = a_fast(grid, 400)
    grid.pass_time(399)
    assert grid.states(fast, normal) == ["RUNNING", "SUSPENDED"]
    assert grid.until(lambda: grid.finished(normal)) == pytest.approx(100, abs=2 * POLL_S)
    job = grid.job(normal)
    assert (job.attempt, job.starts) == (1, 1)
    assert job.suspended.total_seconds() == pytest.approx(400, abs=2 * POLL_S)


def test_consecutive_fast_jobs_delay_the_normal_job_by_their_run_time(
    grid: VirtualGrid, policies: SitePolicies
) -> None:
    grid.node(policies.path("fast-queue.conf"), cpus=1)
    normal = a_normal(grid, 300)
    grid.pass_time(100)
    fasts = [a_fast(grid, 200) for _ in range(3)]
    assert grid.until(lambda: grid.finished(*fasts)) == pytest.approx(600, abs=2 * POLL_S)
    assert grid.until(lambda: grid.finished(normal)) == pytest.approx(200, abs=4 * POLL_S)
    assert grid.job(normal).attempt == 1


def test_idle_claim_of_fast_jobs_suspends_no_job(grid: VirtualGrid, node: VirtualNode) -> None:
    normal, fast = a_normal(grid, 300), a_fast(grid, 60)
    grid.until(lambda: grid.finished(fast))
    grid.pass_time(POLL_S + 1)
    assert node.state_and_activity("slot1") == ["Claimed/Busy"]
    grid.until(lambda: grid.finished(normal), within_s=310)


@pytest.mark.parametrize(("discounts", "charged_s"), [(False, 1000), (True, 400)])
def test_suspended_time_is_charged_as_the_server_is_configured(
    sqlite_database: Database, clock: VirtualClock, policies: SitePolicies, discounts: bool, charged_s: float
) -> None:
    sharing = Sharing(discount_suspended=discounts)
    grid = VirtualGrid(sqlite_database, clock, rules=Rules(sharing=sharing))
    grid.node(policies.path("fast-queue.conf"), cpus=2)
    normal = a_normal(grid, 400)
    grid.pass_time(200)
    fast = a_fast(grid, 600)
    grid.until(lambda: grid.finished(fast, normal))
    grid.pass_time(1)
    use = grid.grid.state.shares.use(SAM, clock())
    assert use.cores == 0
    assert use.core_s == pytest.approx(charged_s, rel=0.03)
