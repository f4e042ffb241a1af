"""Jobs that a route cannot transform: how often the router retries them, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.router_scene import RouterScene, a_route

IMPOSSIBLE = a_route("A", eval_set_RequestCpus="Threads", MaxJobs=2_000, MaxIdleJobs=-1)


@pytest.fixture
def scene(tmp_path: Path) -> RouterScene:
    return RouterScene(tmp_path, IMPOSSIBLE)


async def test_failing_transform_is_retried_ever_less_often(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True, Threads="many")
    attempts = []
    for _ in range(4):
        await scene.run_cycles(60, every_s=60)
        attempts.append(scene.link.jobs[job].attempt)
    assert attempts == [3, 4, 5, 5]
    await scene.run_cycles(24 * 7, every_s=3600)
    assert scene.link.jobs[job].attempt <= 5 + 10


async def test_corrected_job_is_routed_at_its_next_retry(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True, Threads="many")
    await scene.run_cycles()
    scene.link.jobs[job].ad["Threads"] = 3
    await scene.run_cycles(59)
    assert scene.spread() == {}
    await scene.run_cycles()
    assert scene.spread() == {"A": 1}


async def test_table_change_retries_jobs_only_if_the_route_changes(
    scene: RouterScene,
) -> None:
    scene.link.submit(20, WantJobRouter=True, Threads="many")
    await scene.run_cycles()
    for job_limit in (1_000, 1_500, 3_000):
        scene.change_table(IMPOSSIBLE.replace("2000", str(job_limit)), a_route(f"B{job_limit}", "false"))
        await scene.run_cycles(2)
    assert {job.attempt for job in scene.link.jobs.values()} == {1}
    scene.change_table(a_route("A", set_RequestCpus=3))
    await scene.run_cycles(2)
    assert scene.spread() == {"A": 20}


async def test_failed_transforms_of_many_jobs_are_remembered(scene: RouterScene) -> None:
    scene.link.submit(12_000, WantJobRouter=True, Threads="many")
    await scene.run_cycles()
    scene.change_table(IMPOSSIBLE, a_route("B", "false"))
    await scene.run_cycles()
    assert {job.attempt for job in scene.link.jobs.values()} == {1}
