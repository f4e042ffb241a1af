"""Properties of a grid in virtual time: shares converge, limits hold, nothing starves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotage.accounts import Quota
from pilotage.resources.requirements import JobNeeds
from pilotage.values.accounts import Account, GroupId
from pilotage_agents.site_director.settings import SiteDirectorSettings
from pilotage_server.core.resources.tree import ActiveTree
from pilotage_server.core.rules import Rules, RunningLimit, Sharing
from simulator.configuration import GridModel, configuration_of
from simulator.grid import SimulatedGrid
from simulator.report import differences, report
from simulator.trace import TracedJob
from support.trees import a_tree

HOUR_S, DAY_S = 3600.0, 86400.0


def a_grid(jobs: list[TracedJob], pilots: int = 10, rules: Rules | None = None, **model: Any) -> SimulatedGrid:
    queue = {"CEType": "x", "CPUs": 1, "Memory": 4000, "MaxTotalJobs": pilots, "MaxWallTime": "3 d"}
    tree = ActiveTree(1, a_tree(sites={"S": {"ces": {"c": {"queues": {"q": queue}}}}}))
    director = SiteDirectorSettings.model_validate(
        {"folder": "/f", "batch_systems": {"b": {"type": "local", "ce_types": ["x"]}}}
    )
    return SimulatedGrid(configuration_of(tree, rules or Rules(), director, GridModel(**model)), jobs)


def jobs_of(group: str, number: int, run_s: float = HOUR_S, came_s: float = 0.0) -> list[TracedJob]:
    needs = JobNeeds(cpus=1, wall_time_s=int(run_s))
    return [TracedJob(came_s, run_s, Account("v", group, f"{group}-owner"), needs)] * number


@given(st.integers(1, 4))
@settings(max_examples=4, deadline=None)
def test_use_converges_to_the_weights_of_groups(weight: int) -> None:
    rules = Rules(sharing=Sharing(group_quotas={GroupId("v", "a"): Quota(float(weight))}))
    grid = a_grid([*jobs_of("a", 800), *jobs_of("b", 800)], rules=rules)
    grid.run(3 * DAY_S)
    grid.check()
    used = report(grid)["groups"]["v/a"]["used_part"]
    assert used == pytest.approx(weight / (weight + 1), abs=0.05)


@given(st.integers(0, 9))
@settings(max_examples=5, deadline=None)
def test_running_limit_holds_at_all_times(most: int) -> None:
    limit = RunningLimit("S", None, None, "group", "a", most)
    grid = a_grid([*jobs_of("a", 100), *jobs_of("b", 100)], rules=Rules(running_limits=(limit,)))
    for hour in range(1, 25):
        grid.run(hour * HOUR_S)
        grid.check()
    assert min(most, 4) <= max(sample.busy.get(GroupId("v", "a"), 0) for sample in grid.samples) <= most


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 20), st.floats(60, 5 * HOUR_S)), max_size=12))
@settings(max_examples=15, deadline=None)
def test_every_job_runs_in_the_end(batches: list[tuple[str, int, float]]) -> None:
    grid = a_grid([job for group, number, run_s in batches for job in jobs_of(group, number, run_s)])
    grid.run(10 * DAY_S)
    grid.check()
    assert all(job.ended_s is not None for job in grid.jobs)


def test_late_group_does_not_wait_for_an_earlier_backlog() -> None:
    grid = a_grid([*jobs_of("a", 2000), *jobs_of("b", 5, came_s=DAY_S)])
    grid.run(2 * DAY_S)
    assert report(grid)["groups"]["v/b"]["waiting_s"]["longest"] <= 2 * HOUR_S


def test_more_pilots_shorten_the_waiting_time() -> None:
    small, large = (a_grid(jobs_of("a", 200), pilots) for pilots in (10, 20))
    for grid in (small, large):
        grid.run(2 * DAY_S)
    before, after = differences(report(small), report(large))["waiting_s.mean"]
    assert after < before


def test_circuit_breakers_keep_jobs_from_black_holes() -> None:
    jobs = jobs_of("a", 2000, run_s=600)  # successes elsewhere prove that the jobs are not at fault
    grid = a_grid(jobs, pilots=20, black_hole_nodes=0.3)
    grid.run(6 * HOUR_S)
    assert any(each.is_tripped for each in grid.throttles.values())
    assert grid.totals.failures < 250, "nine black holes would take a job each minute, and all 2,000 jobs in four hours"
    grid.run(3 * DAY_S)
    grid.check()
    assert all(job.ended_s is not None for job in grid.jobs)


def test_shares_and_limits_hold_on_two_thousand_slots() -> None:
    limit = RunningLimit("S", None, None, "group", "c", 100)
    rules = Rules(sharing=Sharing(group_quotas={GroupId("v", "a"): Quota(3.0)}), running_limits=(limit,))
    jobs = [
        *(job for part in range(6) for job in jobs_of("a", 1200, (3 + part) * HOUR_S)),
        *(job for part in range(6) for job in jobs_of("b", 800, (3 + part) * HOUR_S)),
        *jobs_of("c", 500, 2 * HOUR_S),
        *jobs_of("late", 20, came_s=12 * HOUR_S),
    ]
    grid = a_grid(jobs, 2000, rules)
    grid.run(DAY_S)
    grid.check()
    groups = report(grid)["groups"]
    used = {name: groups[f"v/{name}"]["used_core_h"] for name in "ab"}
    assert used["a"] / sum(used.values()) == pytest.approx(0.75, abs=0.05)
    assert max(sample.busy[GroupId("v", "c")] for sample in grid.samples) == 100
    assert groups["v/late"]["waiting_s"]["longest"] < HOUR_S
