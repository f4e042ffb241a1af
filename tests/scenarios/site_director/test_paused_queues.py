"""What a site director makes of queues that are left alone for a while, and of patterns that name none."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from pilotage.resources.tree import QueueId
from pilotage_agents.batch_systems.base import GlideinState, GlideinStatus
from support.director_grid import QUEUE, DirectorGrid, a_queue


@pytest.fixture
def grid(tmp_path: Path) -> DirectorGrid:
    return DirectorGrid(tmp_path)


async def test_a_pilot_that_failed_sends_the_jobs_of_the_others_there_to_no_other_queue(grid: DirectorGrid) -> None:
    grid.link.waiting = 4
    director = grid.director()
    await director.run_once()
    grid.link.tree, grid.link.tree_version = (a_queue(), a_queue(QueueId("Lyon", "ce1", "long"))), 2
    grid.batch.statuses["fake.1"] = GlideinStatus(GlideinState.ENDED, "NODE_FAIL", has_failed=True)
    await director.run_once()
    sent = [queue.queue for queue in grid.link.registered.values()]
    assert (sent.count("short"), sent.count("long")) == (4, 1)


@pytest.mark.parametrize("exit_codes", [(0, 1), (1, 0)])
async def test_of_pilots_that_end_together_one_in_error_pauses_the_queue(
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
async def test_only_a_pilot_that_has_run_a_job_ends_the_failures_of_its_queue(
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


async def test_patterns_that_name_no_queue_are_said_in_a_dry_run(grid: DirectorGrid) -> None:
    override = {"queues": ["Lyon/*/*", "Lyon/ce1/log"], "min_idle_pilots": 2}
    director = grid.director(queues=["*/*/*", "Bologna/*/*"], overrides=[override])
    unused = [line for line in await director.dry_run() if "no queue of the tree" in line]
    assert unused == [f"{pattern}: no queue of the tree is called so" for pattern in ("Bologna/*/*", "Lyon/ce1/log")]
    grid.link.tree, grid.link.tree_version = (*grid.link.tree, a_queue(QueueId("Bologna", "ce1", "day"))), 2
    assert "Bologna" not in (await director.dry_run())[0]


async def test_a_tree_that_has_no_queue_yet_makes_no_word_of_the_pattern_for_all(grid: DirectorGrid) -> None:
    grid.link.tree = ()
    assert await grid.director().dry_run() == ()
    assert QUEUE not in grid.link.registered.values()
