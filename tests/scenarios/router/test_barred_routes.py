"""Jobs of which a route can make no copy: how often that is tried, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.router_scene import RouterScene, a_route

IMPOSSIBLE = a_route("A", eval_set_RequestCpus="Threads", MaxJobs=2_000, MaxIdleJobs=-1)


@pytest.fixture
def scene(tmp_path: Path) -> RouterScene:
    return RouterScene(tmp_path, IMPOSSIBLE)


async def test_a_route_that_can_make_no_copy_of_a_job_tries_it_ever_less_often(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True, Threads="many")
    tried = []
    for _ in range(4):
        await scene.rounds(60, every_s=60)
        tried.append(scene.link.jobs[job].attempt)
    assert tried == [3, 4, 5, 5]
    await scene.rounds(24 * 7, every_s=3600)
    assert scene.link.jobs[job].attempt <= 5 + 10


async def test_a_job_that_is_mended_meanwhile_goes_when_its_time_has_come(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True, Threads="many")
    await scene.rounds()
    scene.link.jobs[job].ad["Threads"] = 3
    await scene.rounds(59)
    assert scene.spread() == {}
    await scene.rounds()
    assert scene.spread() == {"A": 1}


async def test_a_change_of_the_table_that_leaves_the_route_as_it_is_makes_it_try_no_job_again(
    scene: RouterScene,
) -> None:
    scene.link.submit(20, WantJobRouter=True, Threads="many")
    await scene.rounds()
    for most in (1_000, 1_500, 3_000):
        scene.change_table(IMPOSSIBLE.replace("2000", str(most)), a_route(f"B{most}", "false"))
        await scene.rounds(2)
    assert {job.attempt for job in scene.link.jobs.values()} == {1}
    scene.change_table(a_route("A", set_RequestCpus=3))
    await scene.rounds(2)
    assert scene.spread() == {"A": 20}


async def test_it_is_not_forgotten_for_many_jobs_either(scene: RouterScene) -> None:
    scene.link.submit(12_000, WantJobRouter=True, Threads="many")
    await scene.rounds()
    scene.change_table(IMPOSSIBLE, a_route("B", "false"))
    await scene.rounds()
    assert {job.attempt for job in scene.link.jobs.values()} == {1}
