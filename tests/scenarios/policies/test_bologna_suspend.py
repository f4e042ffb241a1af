"""The variant of the Bologna Batch System in which short jobs suspend long ones, in virtual time.

A server with two processors: short slots 1 and 2, long slots 3 and 5 on the processor of slot 1, 4 and 6 on that of 2.
"""

from __future__ import annotations

import pytest

from pilotage_server.core.rules import Rules
from pilotage_server.storage.database.engine import Database
from support.site_policies import (
    LONG,
    MILANESE,
    OTHER,
    POLL_S,
    SHORT,
    Bologna,
    SitePolicies,
    in_bologna,
    owner_leaves,
    owner_returns,
)
from support.virtual_clock import VirtualClock
from support.virtual_grid import VirtualGrid
from support.virtual_node import VirtualNode

SITE = "WANT_SUSPEND = False\nWANT_SUSPEND_VANILLA = False\nSUSPEND_VANILLA = False\nCONTINUE_VANILLA = True\n"
"""Settings of a site for vanilla jobs, which must not hinder the policy."""


@pytest.fixture
def grid(sqlite_database: Database, clock: VirtualClock) -> VirtualGrid:
    return VirtualGrid(sqlite_database, clock, rules=in_bologna(Rules()))


@pytest.fixture
def bologna(grid: VirtualGrid, policies: SitePolicies) -> Bologna:
    return Bologna(grid, policies, ours=True)


@pytest.fixture(params=["", SITE], ids=["alone", "in a site's text"])
def node(request: pytest.FixtureRequest, grid: VirtualGrid, policies: SitePolicies) -> VirtualNode:
    policy = policies.path("bologna-suspend.conf")
    return grid.node(policies.around(policy, request.param), cpus=2)


def test_short_job_suspends_long_jobs_of_its_processor(grid: VirtualGrid, bologna: Bologna, node: VirtualNode) -> None:
    longs = [bologna.job(LONG, 1000) for _ in range(4)]
    grid.pass_time(100)
    short = bologna.job(SHORT, 300)
    grid.pass_time(POLL_S + 1)
    assert bologna.places(short, *longs) == ["slot1", "slot3", "slot4", "slot5", "slot6"]
    assert grid.states(short, *longs) == ["RUNNING", "SUSPENDED", "RUNNING", "SUSPENDED", "RUNNING"]
    second = bologna.job(SHORT, 300)
    grid.pass_time(POLL_S + 1)
    assert grid.states(second, *longs) == ["RUNNING", *["SUSPENDED"] * 4]
    grid.until(lambda: grid.finished(short, second))
    grid.pass_time(POLL_S + 1)
    assert grid.states(*longs) == ["RUNNING"] * 4
    assert grid.until(lambda: grid.finished(*longs)) == pytest.approx(900 - 6, abs=3 * POLL_S)
    assert [grid.job(job).attempt for job in longs] == [1] * 4


def test_long_job_runs_on_while_a_processor_is_free(grid: VirtualGrid, bologna: Bologna, node: VirtualNode) -> None:
    long = bologna.job(LONG, 1000)
    short = bologna.job(SHORT, 300)
    grid.pass_time(10 * POLL_S)
    assert bologna.places(long, short) == ["slot3", "slot1"]
    assert grid.states(long, short) == ["RUNNING"] * 2


@pytest.mark.parametrize("other", ["plain", "of another domain"])
def test_other_jobs_suspend_no_long_job(
    grid: VirtualGrid, bologna: Bologna, policies: SitePolicies, other: str
) -> None:
    node = grid.node(policies.path("bologna-suspend.conf", "BB_QUIET = True"), cpus=2)
    longs = [bologna.job(LONG, 1000) for _ in range(4)]
    job = bologna.job(OTHER) if other == "plain" else bologna.job(SHORT, user=MILANESE)
    grid.pass_time(10 * POLL_S)
    assert bologna.places(job) == ["slot1"]
    assert grid.states(*longs) == ["RUNNING"] * 4
    assert set(node.state_and_activity("slot3", "slot5")) == {"Claimed/Busy"}


def test_owner_suspends_no_long_job(grid: VirtualGrid, bologna: Bologna, node: VirtualNode) -> None:
    longs = [bologna.job(LONG, 1000) for _ in range(4)]
    owner_returns(grid, node)
    assert grid.states(*longs) == ["RUNNING"] * 4
    owner_leaves(grid, node)
    assert grid.states(*longs) == ["RUNNING"] * 4
