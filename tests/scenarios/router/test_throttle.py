"""The failure rate of routes: how fast the router sends jobs to failing targets, in virtual time."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pilotage_agents.router.core.model import RoutedJobState
from support.router_scene import RouterScene, a_route

INTERVAL_S = 600
"""The time over which failures are counted."""


def a_scene(folder: Path, **attributes: str) -> RouterScene:
    return RouterScene(folder, a_route(MaxJobs=100, MaxIdleJobs=-1, FailureRateThreshold=0.01, **attributes))


async def fail_all(scene: RouterScene, intervals: int) -> list[int]:
    """Fail all routed jobs of a site; return the number of failures in each interval."""
    failed = []
    for _ in range(intervals):
        count = 0
        for _ in range(INTERVAL_S // 60):
            await scene.run_cycles(every_s=60)
            count += scene.target().move(RoutedJobState.GONE, reason="the node failed")
        failed.append(count)
    return failed


async def test_failing_site_gets_jobs_at_the_threshold_after_an_interval(
    tmp_path: Path,
) -> None:
    scene = a_scene(tmp_path)
    scene.link.submit(5_000, WantJobRouter=True)
    first, *others = await fail_all(scene, 6)
    assert first <= 107, "at most 100 jobs are at the site at a time, and 6 more may fail"
    assert all(4 <= failed <= 7 for failed in others), others
    assert scene.link.states().get("DONE", 0) == 0


async def test_successes_relax_the_throttle_step_by_step(tmp_path: Path) -> None:
    scene = a_scene(tmp_path)
    scene.link.submit(50_000, WantJobRouter=True)
    await fail_all(scene, 2)
    done = []
    for _ in range(6):
        before = scene.link.states().get("DONE", 0)
        for _ in range(INTERVAL_S // 60):
            await scene.run_cycles(every_s=60)
            scene.target().finish()
        done.append(scene.link.states()["DONE"] - before)
    growth = [later / earlier for earlier, later in itertools.pairwise(done)]
    assert 1.5 <= max(growth) <= 6, done
    assert done[-1] > 50 * done[0]


async def test_throttle_survives_a_change_of_the_table(tmp_path: Path) -> None:
    scene = a_scene(tmp_path)
    scene.link.submit(1_000, WantJobRouter=True)
    await fail_all(scene, 1)
    scene.put_table(a_route("B", "false"), a_route(MaxJobs=200, MaxIdleJobs=-1, FailureRateThreshold=0.01))
    (second,) = await fail_all(scene, 1)
    assert 0 < second <= 7
    assert scene.link.published[-1].routes[1].throttled


@pytest.mark.parametrize("is_other_host", [True, False], ids=["on another host", "on the same host"])
async def test_throttle_survives_restarts(tmp_path: Path, is_other_host: bool) -> None:
    scene = a_scene(tmp_path)
    scene.link.submit(5_000, WantJobRouter=True)
    await fail_all(scene, 2)
    for number in range(4):  # it crashes each time, without stop()
        scene.start(folder=f"host {number}" if is_other_host else "router")
        await scene.run_cycles(2, every_s=20)
        scene.target().move(RoutedJobState.GONE, reason="the node failed")
    (failed,) = await fail_all(scene, 1)
    assert 0 < failed <= 7
    assert sum(scene.target().made.values()) < 100 + 7 * 3


async def test_new_leader_uses_the_failure_rates_of_the_other_router(tmp_path: Path) -> None:
    scene = a_scene(tmp_path)
    scene.link.submit(5_000, WantJobRouter=True)
    first = scene.router
    await scene.run_cycles()
    scene.start(folder="other host")
    await fail_all(scene, 2)
    scene.router = first
    first.leadership_gained()
    (failed,) = await fail_all(scene, 1)
    assert 0 < failed <= 7


@pytest.mark.parametrize(
    "text", ["no JSON", '{"form": 99, "routes": {}}', '{"form": 1, "routes": {"A": {"since": 3}}}']
)
async def test_router_works_with_unreadable_rates(tmp_path: Path, text: str) -> None:
    scene = a_scene(tmp_path)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "failure-rates.json").write_text(text)
    scene.start()
    scene.link.submit(3, WantJobRouter=True)
    await scene.run_cycles()
    assert scene.spread() == {"A": 3}


async def test_router_works_though_rates_cannot_be_written(tmp_path: Path) -> None:
    scene = a_scene(tmp_path)
    (tmp_path / "shared").write_text("no folder")
    scene.link.submit(3, WantJobRouter=True)
    await scene.run_cycles()
    scene.target().finish()
    await scene.run_cycles()
    assert scene.link.states() == {"DONE": 3}


async def test_removed_and_held_jobs_count_neither_as_failure_nor_success(tmp_path: Path) -> None:
    scene = a_scene(tmp_path)
    jobs = scene.link.submit(60, WantJobRouter=True)
    await scene.run_cycles()
    for number, job in enumerate(jobs):
        (scene.link.remove if number % 2 else scene.link.hold)(job)
    await scene.run_cycles(8)
    assert scene.spread() == {}
    assert scene.link.published[-1].routes[0].throttled == ""


@pytest.mark.parametrize(
    ("test", "wall_s", "is_failure"),
    [
        ("RemoteWallClockTime < 1200", 30.0, True),
        ("RemoteWallClockTime < 1200", 3600.0, False),
        ("ExitCode =!= 0", 30.0, True),
        ("NoSuchThing > 7", 30.0, False),
        ('target.JobStatus == 4 && target.Owner == "ann"', 30.0, True),
    ],
)
async def test_job_failure_test_is_evaluated_on_the_completed_job(
    tmp_path: Path, test: str, wall_s: float, is_failure: bool
) -> None:
    scene = a_scene(tmp_path, JobFailureTest=test)
    scene.link.submit(60, WantJobRouter=True)
    await scene.run_cycles()
    scene.target().finish(exit_code=3, wall_s=wall_s)
    await scene.run_cycles(2)
    assert scene.link.states() == {"FAILED": 60}
    assert bool(scene.link.published[-1].routes[0].throttled) is is_failure


async def test_failed_job_is_no_route_failure_without_a_test(tmp_path: Path) -> None:
    scene = a_scene(tmp_path)
    scene.link.submit(60, WantJobRouter=True)
    await scene.run_cycles()
    scene.target().finish(exit_code=1)
    await scene.run_cycles(2)
    assert scene.link.published[-1].routes[0].throttled == ""


async def test_jobs_with_invalid_descriptions_fail_without_throttling_the_route(
    tmp_path: Path,
) -> None:
    scene = a_scene(tmp_path)
    scene.target().job_fault = "its arguments cannot be taken apart"
    scene.link.submit(60, WantJobRouter=True)
    await scene.run_cycles(2)
    assert scene.link.states() == {"FAILED": 60}
    assert {outcome.outcome for job in scene.link.jobs.values() for outcome in job.outcomes} == {"REFUSED_BY_JOB"}
    assert scene.link.published[-1].routes[0].throttled == ""


@pytest.mark.parametrize(("failing_s", "is_throttled"), [(10, True), (1200, False)], ids=["fast failures", "plugged"])
async def test_black_hole_node_throttles_its_site_unless_failures_are_plugged(
    tmp_path: Path, failing_s: int, is_throttled: bool
) -> None:
    scene = a_scene(tmp_path)
    scene.link.submit(5_000, WantJobRouter=True)
    target = scene.target()
    throttled = []
    for _ in range(3 * INTERVAL_S // failing_s):
        await scene.run_cycles()
        target.move(RoutedJobState.RUNNING, most=1, node="hole")
        scene.clock.advance(seconds=failing_s - 10)
        target.move(RoutedJobState.GONE, of=RoutedJobState.RUNNING, reason="the disk of hole is full")
        throttled.append(scene.link.published[-1].routes[0].throttled)
    assert any(throttled) is is_throttled
