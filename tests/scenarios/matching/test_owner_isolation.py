"""Pilots that run the jobs of one owner at a time, in a grid in virtual time: real machines and server operations."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from pilotage.values.isolation import Isolation
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.states import JobState
from pilotage_server.storage.events import events_of
from support.grid import LONG, a_tree
from support.jobs import a_user
from support.virtual_grid import PilotRules, VirtualGrid
from support.virtual_node import VirtualNode

ONE_OWNER = PilotRules(isolation=Isolation.OWNER)
USERS = [a_user(name) for name in ("ann", "bob", "eve")]

STATIC = """
    SLOT_TYPE_1 = cpus=1, memory=1000
    NUM_SLOTS_TYPE_1 = 4
"""


@pytest.fixture(params=["partitionable", "static"])
def node(request: pytest.FixtureRequest, grid: VirtualGrid, tmp_path: Path) -> VirtualNode:
    policy = None
    if request.param == "static":
        policy = tmp_path / "policy.conf"
        policy.write_text(STATIC)
    return grid.node(policy, cpus=4, rules=ONE_OWNER)


def owners_on(grid: VirtualGrid, node: VirtualNode) -> set[str]:
    """Return the owners of the jobs for which the node has a folder or a payload."""
    return {grid.job(key.job_id).owner for key in node.payloads}


def observed(grid: VirtualGrid, node: VirtualNode, jobs: list[int], within_s: float) -> Iterator[set[str]]:
    """Yield the owners on the node at each second until all jobs are done."""
    for _ in range(int(within_s)):
        if grid.finished(*jobs):
            return
        yield owners_on(grid, node)
        grid.pass_time(1)
    raise AssertionError(f"the jobs are {grid.states(*jobs)} after {within_s} s")


def reasons(grid: VirtualGrid, job: int) -> list[str]:
    """Return the reasons of all transitions of a job."""
    events = grid.grid.read(lambda transaction, _: events_of(transaction.session, job))
    return [event.reason for event in events if event.reason]


def submitted(grid: VirtualGrid, users: list[Identity], each: int, run_s: float) -> list[int]:
    """Submit jobs of all users in turn."""
    return [grid.submit(run_s + number, user=user) for number in range(each) for user in users]


@pytest.mark.parametrize("run_s", [0.3, 20.0])
def test_all_jobs_end_and_no_two_owners_share_the_node(grid: VirtualGrid, node: VirtualNode, run_s: float) -> None:
    jobs = submitted(grid, USERS, each=6, run_s=run_s)
    seen = list(observed(grid, node, jobs, within_s=600))
    assert max(map(len, seen)) == 1
    assert {owner for owners in seen for owner in owners} == {user.owner for user in USERS}
    assert not any("another owner" in reason for job in jobs for reason in reasons(grid, job)), "a wrong job was sent"


def test_jobs_of_one_owner_fill_the_node(grid: VirtualGrid, node: VirtualNode) -> None:
    jobs = [grid.submit(60, user=USERS[0]) for _ in range(4)]
    grid.pass_time(5)
    assert grid.states(*jobs) == [JobState.RUNNING.value] * 4


def test_free_slots_wait_until_the_last_job_of_the_owner_ends(grid: VirtualGrid, node: VirtualNode) -> None:
    long = grid.submit(100, user=USERS[0])
    grid.pass_time(1)
    other = grid.submit(10, user=USERS[1])
    grid.pass_time(90)
    assert grid.states(long, other) == [JobState.RUNNING.value, JobState.WAITING.value]
    assert "another owner" in grid.grid.why(other, USERS[1]).summary
    assert grid.until(lambda: grid.job(other).state is JobState.RUNNING, within_s=30) <= 15


def test_next_owner_is_served_soon_after_the_last_job_ends(grid: VirtualGrid, node: VirtualNode) -> None:
    first = grid.submit(10, user=USERS[0])
    grid.until(lambda: grid.finished(first))
    second = grid.submit(10, user=USERS[1])
    assert grid.until(lambda: grid.job(second).state is JobState.RUNNING) <= 2


def test_node_without_that_rule_mixes_owners(grid: VirtualGrid) -> None:
    node = grid.node(cpus=4, rules=PilotRules(isolation=Isolation.UID))
    for user in USERS:
        grid.submit(60, user=user)
    grid.pass_time(5)
    assert len(owners_on(grid, node)) == len(USERS)


def test_pilot_that_is_too_weak_shows_why_and_works_after_the_tree_allows_it(grid: VirtualGrid) -> None:
    grid.grid.put(a_tree(LONG, Isolation="uid"))
    node = grid.node(cpus=2, rules=ONE_OWNER)
    job = grid.submit(5)
    grid.pass_time(40)
    (slot, *_) = node.node_slots.slots()
    assert slot.policy_fault == f"isolation: the pilot offers owner, {LONG} requires uid (stated by queue)"
    assert slot.policy_fault in grid.grid.why(job).summary
    grid.grid.put(a_tree(LONG, Isolation="owner"))
    assert grid.until(lambda: grid.finished(job)) < timedelta(minutes=3).total_seconds()
    assert not any(slot.policy_fault for slot in node.node_slots.slots())
