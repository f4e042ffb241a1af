"""A job router and routes that fail: how fast jobs are sent there, in virtual time."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pilotage_agents.router.core.model import RoutedJobState
from support.router_scene import RouterScene, a_route

INTERVAL_S = 600
"""The time over which failures are counted."""


def a_scene(folder: Path, **said: str) -> RouterScene:
    return RouterScene(folder, a_route(MaxJobs=100, MaxIdleJobs=-1, FailureRateThreshold=0.01, **said))


async def fails_all(scene: RouterScene, intervals: int) -> list[int]:
    """Let a site fail everything; returns how many copies failed in each interval."""
    failed = []
    for _ in range(intervals):
        count = 0
        for _ in range(INTERVAL_S // 60):
            await scene.rounds(every_s=60)
            count += scene.place().move(RoutedJobState.GONE, reason="the node ate it")
        failed.append(count)
    return failed


async def test_a_site_that_fails_everything_gets_jobs_at_the_threshold_after_an_interval_and_stays_there(
    tmp_path: Path,
) -> None:
    scene = a_scene(tmp_path)
    scene.link.submit(5_000, WantJobRouter=True)
    first, *others = await fails_all(scene, 6)
    assert first <= 107, "more than 100 copies at a time never are there, and 6 may fail"
    assert all(4 <= each <= 7 for each in others), others
    assert scene.link.states().get("DONE", 0) == 0


async def test_success_relaxes_the_throttle_step_by_step_until_there_is_none(tmp_path: Path) -> None:
    scene = a_scene(tmp_path)
    scene.link.submit(50_000, WantJobRouter=True)
    await fails_all(scene, 2)
    done = []
    for _ in range(6):
        before = scene.link.states().get("DONE", 0)
        for _ in range(INTERVAL_S // 60):
            await scene.rounds(every_s=60)
            scene.place().finish()
        done.append(scene.link.states()["DONE"] - before)
    growth = [later / earlier for earlier, later in itertools.pairwise(done)]
    assert 1.5 <= max(growth) <= 6, done
    assert done[-1] > 50 * done[0]


async def test_the_throttle_of_a_route_outlives_a_change_of_the_table(tmp_path: Path) -> None:
    scene = a_scene(tmp_path)
    scene.link.submit(1_000, WantJobRouter=True)
    await fails_all(scene, 1)
    scene.put_table(a_route("B", "false"), a_route(MaxJobs=200, MaxIdleJobs=-1, FailureRateThreshold=0.01))
    (second,) = await fails_all(scene, 1)
    assert second <= 7
    assert scene.link.told[-1].routes[1].throttled


@pytest.mark.parametrize("is_next", [True, False], ids=["on another host", "on the same host"])
async def test_a_restart_opens_no_throttled_route(tmp_path: Path, is_next: bool) -> None:
    scene = a_scene(tmp_path)
    scene.link.submit(5_000, WantJobRouter=True)
    await fails_all(scene, 2)
    for number in range(4):  # it dies each time: nobody stops it
        scene.start(folder=f"host {number}" if is_next else "router")
        await scene.rounds(2, every_s=20)
        scene.place().move(RoutedJobState.GONE, reason="the node ate it")
    (failed,) = await fails_all(scene, 1)
    assert failed <= 7
    assert sum(scene.place().made.values()) < 100 + 7 * 3


async def test_a_router_whose_turn_comes_goes_by_what_the_other_has_seen_meanwhile(tmp_path: Path) -> None:
    scene = a_scene(tmp_path)
    scene.link.submit(5_000, WantJobRouter=True)
    first = scene.router
    await scene.rounds()
    scene.start(folder="other host")
    await fails_all(scene, 2)
    scene.router = first
    first.leadership_gained()
    (failed,) = await fails_all(scene, 1)
    assert failed <= 7


@pytest.mark.parametrize(
    "kept", ["no JSON", '{"form": 99, "routes": {}}', '{"form": 1, "routes": {"A": {"since": 3}}}']
)
async def test_rates_that_cannot_be_read_keep_no_router_from_its_work(tmp_path: Path, kept: str) -> None:
    scene = a_scene(tmp_path)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "failure-rates.json").write_text(kept)
    scene.start()
    scene.link.submit(3, WantJobRouter=True)
    await scene.rounds()
    assert scene.spread() == {"A": 3}


async def test_rates_that_cannot_be_kept_keep_no_router_from_its_work(tmp_path: Path) -> None:
    scene = a_scene(tmp_path)
    (tmp_path / "shared").write_text("no folder")
    scene.link.submit(3, WantJobRouter=True)
    await scene.rounds()
    scene.place().finish()
    await scene.rounds()
    assert scene.link.states() == {"DONE": 3}


async def test_copies_of_jobs_that_were_taken_away_count_neither_way(tmp_path: Path) -> None:
    scene = a_scene(tmp_path)
    jobs = scene.link.submit(60, WantJobRouter=True)
    await scene.rounds()
    for number, job in enumerate(jobs):
        (scene.link.remove if number % 2 else scene.link.hold)(job)
    await scene.rounds(8)
    assert scene.spread() == {}
    assert scene.link.told[-1].routes[0].throttled == ""


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
async def test_what_counts_as_a_failure_is_asked_of_the_job_with_its_end(
    tmp_path: Path, test: str, wall_s: float, is_failure: bool
) -> None:
    scene = a_scene(tmp_path, JobFailureTest=test)
    scene.link.submit(60, WantJobRouter=True)
    await scene.rounds()
    scene.place().finish(exit_code=3, wall_s=wall_s)
    await scene.rounds(2)
    assert scene.link.states() == {"FAILED": 60}
    assert bool(scene.link.told[-1].routes[0].throttled) is is_failure


async def test_a_job_that_ends_badly_is_no_failure_of_a_route_without_a_test(tmp_path: Path) -> None:
    scene = a_scene(tmp_path)
    scene.link.submit(60, WantJobRouter=True)
    await scene.rounds()
    scene.place().finish(exit_code=1)
    await scene.rounds(2)
    assert scene.link.told[-1].routes[0].throttled == ""


async def test_jobs_that_cannot_run_as_they_are_described_fail_at_once_and_throttle_nobodys_route(
    tmp_path: Path,
) -> None:
    scene = a_scene(tmp_path)
    scene.place().job_fault = "its arguments cannot be taken apart"
    scene.link.submit(60, WantJobRouter=True)
    await scene.rounds(2)
    assert scene.link.states() == {"FAILED": 60}
    assert {outcome.outcome for job in scene.link.jobs.values() for outcome in job.outcomes} == {"REFUSED_BY_JOB"}
    assert scene.link.told[-1].routes[0].throttled == ""


@pytest.mark.parametrize(("failing_s", "is_throttled"), [(10, True), (1200, False)], ids=["at once", "plugged"])
async def test_one_node_that_eats_jobs_throttles_its_whole_site_unless_each_failure_takes_twenty_minutes(
    tmp_path: Path, failing_s: int, is_throttled: bool
) -> None:
    scene = a_scene(tmp_path)
    scene.link.submit(5_000, WantJobRouter=True)
    place = scene.place()
    throttled = []
    for _ in range(3 * INTERVAL_S // failing_s):
        await scene.rounds()
        place.move(RoutedJobState.RUNNING, most=1, node="hole")
        scene.clock.advance(seconds=failing_s - 10)
        place.move(RoutedJobState.GONE, of=RoutedJobState.RUNNING, reason="the disk of hole is full")
        throttled.append(scene.link.told[-1].routes[0].throttled)
    assert any(throttled) is is_throttled
