"""Queues that a site director pauses after failures, and patterns that match no queue."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pilotage.resources.tree import QueueId
from pilotage_agents.batch_systems.base import GlideinState, GlideinStatus
from support.director_grid import DirectorGrid, a_queue


@pytest.fixture
def grid(tmp_path: Path) -> DirectorGrid:
    return DirectorGrid(tmp_path)


async def test_failed_glidein_moves_only_its_own_demand_to_another_queue(grid: DirectorGrid) -> None:
    grid.link.waiting = 4
    director = grid.director()
    await director.run_once()
    grid.link.tree, grid.link.tree_version = (a_queue(), a_queue(QueueId("Lyon", "ce1", "long"))), 2
    grid.batch.statuses["fake.1"] = GlideinStatus(GlideinState.ENDED, "NODE_FAIL", has_failed=True)
    await director.run_once()
    sent = [queue.queue for queue in grid.link.registered.values() if queue]
    assert (sent.count("short"), sent.count("long")) == (4, 1)


@pytest.mark.parametrize("exit_codes", [(0, 1), (1, 0)])
async def test_one_failure_among_ended_glideins_pauses_the_queue(
    grid: DirectorGrid, exit_codes: tuple[int, int]
) -> None:
    grid.link.waiting = 2
    director = grid.director()
    await director.run_once()
    for glidein_id, exit_code in zip(grid.batch.requests, exit_codes, strict=True):
        grid.batch.end(glidein_id, exit_code, f"exit code {exit_code}")
    await director.run_once()
    (line,) = await director.dry_run()
    assert "the last: a pilot ended with exit code 1" in line


@pytest.mark.parametrize(("has_run_jobs", "failures"), [(False, 2), (True, 1)], ids=["empty", "worked"])
async def test_only_a_pilot_that_ran_a_job_resets_the_failures(
    grid: DirectorGrid, *, has_run_jobs: bool, failures: int
) -> None:
    grid.link.waiting = 1
    director = grid.director()
    for exit_code in (1, 0, 1):
        await director.run_once()
        stamp = grid.submitted[-1]
        grid.link.busy |= {stamp} if has_run_jobs else set()
        grid.batch.end(list(grid.batch.requests)[-1], exit_code, f"exit code {exit_code}")
        await director.run_once()
        (line,) = await director.dry_run()
        grid.now += timedelta(minutes=1)
    assert f"after {failures} failures in a row" in line


async def test_dry_run_names_patterns_without_queue(grid: DirectorGrid) -> None:
    override = {"queues": ["Lyon/*/*", "Lyon/ce1/log"], "min_idle_pilots": 2}
    director = grid.director(queues=["*/*/*", "Bologna/*/*"], overrides=[override])
    unused = [line for line in await director.dry_run() if "no queue of the tree" in line]
    assert unused == [f"{pattern}: no queue of the tree is called so" for pattern in ("Bologna/*/*", "Lyon/ce1/log")]
    grid.link.tree, grid.link.tree_version = (*grid.link.tree, a_queue(QueueId("Bologna", "ce1", "day"))), 2
    assert "Bologna" not in (await director.dry_run())[0]


async def test_default_pattern_is_not_reported_for_an_empty_tree(grid: DirectorGrid) -> None:
    grid.link.tree = ()
    director = grid.director()
    assert await director.dry_run() == ()
    with capture_logs() as logs:
        await director.run_once()
    assert [entry for entry in logs if entry["log_level"] == "warning"] == []
