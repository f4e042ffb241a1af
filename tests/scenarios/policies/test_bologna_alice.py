"""ALICE's servers in the Bologna Batch System: each numbered behaviour, under our policy and the published one.

A server of ALICE's with two processors has four slots: 1 and 2 for short jobs and those of others, 3 and 4 for ALICE.
"""

from __future__ import annotations

import pytest

from pilotage_server.core.rules import Rules
from pilotage_server.storage.database.engine import Database
from support.site_policies import ALICE, LONG, OTHER, SHORT, Bologna, SitePolicies, in_bologna, quiet, set_weather
from support.virtual_clock import VirtualClock
from support.virtual_grid import VirtualGrid
from support.virtual_node import VirtualNode


@pytest.fixture
def grid(sqlite_database: Database, clock: VirtualClock) -> VirtualGrid:
    return VirtualGrid(sqlite_database, clock, rules=in_bologna(Rules()))


@pytest.fixture(params=[True, False], ids=["ours", "theirs"])
def bologna(request: pytest.FixtureRequest, grid: VirtualGrid, policies: SitePolicies) -> Bologna:
    return Bologna(grid, policies, request.param)


@pytest.fixture
def alices(bologna: Bologna) -> VirtualNode:
    """Return a server of ALICE's."""
    return bologna.server(alice=True)


def test_r10_alices_jobs_run_on_alices_servers_only(grid: VirtualGrid, bologna: Bologna) -> None:
    ordinary = bologna.server()
    jobs = [bologna.by_template("bologna-alice")]
    grid.pass_time(60)
    assert grid.states(*jobs) == ["WAITING"]
    bologna.server(alice=True)
    jobs += [bologna.by_template("bologna-alice") for _ in range(2)]
    assert bologna.places(*jobs) == ["node2/slot3", "node2/slot4", ""]
    assert ordinary.running() == {}


def test_e6_what_the_published_script_requires_lets_them_onto_ordinary_servers(
    grid: VirtualGrid, bologna: Bologna
) -> None:
    bologna.server()
    job = bologna.job(ALICE, expression="(BolognaBatchServer == True)")
    assert bologna.places(job) == ["slot3"], "it says that it is long, too"


def test_r11_alices_jobs_start_at_once_on_a_machine_full_of_short_ones(
    grid: VirtualGrid, bologna: Bologna, alices: VirtualNode
) -> None:
    shorts = [bologna.job(SHORT) for _ in range(2)]
    grid.pass_time(30)
    jobs = [bologna.by_template("bologna-alice", 100) for _ in range(2)]
    grid.pass_time(2)
    assert bologna.places(*shorts, *jobs) == ["slot1", "slot2", "slot3", "slot4"]
    assert grid.until(lambda: grid.finished(*jobs)) == pytest.approx(100, abs=2)


def test_r12a_long_jobs_of_others_never_start_there(grid: VirtualGrid, bologna: Bologna, alices: VirtualNode) -> None:
    long = bologna.job(LONG)
    grid.pass_time(60)
    assert grid.states(long) == ["WAITING"]


def test_r12b_short_jobs_start_while_fewer_than_two_other_slots_are_claimed(
    grid: VirtualGrid, bologna: Bologna, alices: VirtualNode
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
    grid: VirtualGrid, bologna: Bologna, alices: VirtualNode
) -> None:
    hers = [bologna.job(ALICE, run_s) for run_s in (100, 3000)]
    grid.pass_time(10)
    short = bologna.job(SHORT)
    grid.pass_time(60)
    assert grid.states(*hers, short) == ["RUNNING", "RUNNING", "WAITING"]
    grid.until(lambda: grid.finished(hers[0]))
    grid.until(lambda: grid.states(short) == ["RUNNING"], within_s=10)


def test_e9_a_slot_does_not_count_itself_so_what_was_matched_still_holds_when_it_is_claimed(
    grid: VirtualGrid, bologna: Bologna, alices: VirtualNode
) -> None:
    shorts = []
    for _ in range(2):
        shorts.append(bologna.job(SHORT))
        grid.pass_time(10)
    assert grid.states(*shorts) == ["RUNNING"] * 2
    assert [grid.grid.history(job) for job in shorts] == [[(1, "")]] * 2, "nothing was declined"


def test_r12b_of_two_short_jobs_matched_in_one_call_the_pilot_takes_only_what_still_holds(
    grid: VirtualGrid, bologna: Bologna, alices: VirtualNode
) -> None:
    # The server decides on both free slots with one and the same look at them; the claim of one bars the other.
    bologna.job(ALICE, 3000)
    grid.pass_time(10)
    shorts = grid.grid.submit(count=2, arguments="600 0", attributes=dict(SHORT))
    grid.settle()
    grid.pass_time(60)
    assert sorted(bologna.places(*shorts)) == ["", "slot1"]
    (waits,) = [job for job in shorts if not grid.place(job)]
    assert grid.states(waits) == ["WAITING"]
    assert [outcome for _, outcome in grid.grid.history(waits)] == ["declined"], "once, not again and again"
    assert "START of slot2 is not true" in grid.job(waits).reason
    assert grid.job(waits).spent_attempts == 0


def test_e12_jobs_of_others_need_a_quieter_machine_there(grid: VirtualGrid, bologna: Bologna) -> None:
    alice, ordinary = bologna.server(alice=True), bologna.server()
    for node in (alice, ordinary):
        set_weather(node, 0.0, 7200)
    first = [bologna.job(ALICE, 3000), bologna.job(LONG, 3000)]
    grid.pass_time(60)
    assert [grid.place(job) for job in first] == ["node1/slot3", "node2/slot3"]
    other = bologna.job(OTHER, 300)
    grid.pass_time(60)
    assert grid.place(other) == "node2/slot1", "one job's load is too much for the stricter one"


def test_r13_short_jobs_run_to_their_end_behind_alices(
    grid: VirtualGrid, bologna: Bologna, alices: VirtualNode
) -> None:
    shorts = [bologna.job(SHORT, 100) for _ in range(2)]
    grid.pass_time(60)
    hers = [bologna.by_template("bologna-alice", 3000) for _ in range(2)]
    assert grid.until(lambda: grid.finished(*shorts)) == pytest.approx(40, abs=1)
    assert [grid.job(job).attempt for job in shorts] == [1, 1]
    assert [alices.nice_of(job) for job in (*shorts, *hers)] == [10, 10, 0, 0]


def test_r13_all_but_alices_run_behind(grid: VirtualGrid, bologna: Bologna, alices: VirtualNode) -> None:
    quiet(grid, alices)
    assert alices.nice_of(bologna.job(OTHER)) == 10
