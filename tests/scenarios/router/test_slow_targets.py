"""Targets that are slow, hang or raise unexpected errors: nothing else waits for them, and nothing is done twice."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pilotage_agents.router.core.model import CollectedFile, RoutedJobState
from support.router_scene import (
    TARGET_TIMEOUT_S,
    HangingTarget,
    ManualTarget,
    RouterScene,
    a_hanging_target,
    a_route,
    target_of,
)

METHODS = ("submit", "find_again", "poll", "collect", "cancel", "forget")


async def complete_all(scene: RouterScene, *routes: str, rounds: int = 40) -> None:
    """Run cycles in which all jobs at these targets complete."""
    for _ in range(rounds):
        await scene.run_cycles()
        for route in routes:
            scene.target(route).finish()
            scene.target(route).move(RoutedJobState.COMPLETED, of=RoutedJobState.RUNNING, exit_code=0)


async def wait_until_stuck(scene: RouterScene, target: HangingTarget, method: str) -> None:
    """Run a router until its target hangs in a method."""
    target.loses_answers = method == "find_again"
    scene.link.submit(4, WantJobRouter=True)
    await scene.run_cycles()
    if method == "cancel":
        for job in scene.link.jobs.values():
            if job.copy is not None and job.copy.route == "A":
                scene.link.remove(job.job_id)
    scene.target("A").finish(most=0 if method == "cancel" else 10**9)
    await scene.run_cycles(3)
    assert method in target.hung_methods


@pytest.mark.parametrize("method", METHODS)
async def test_hanging_target_delays_no_other_target(tmp_path: Path, method: str) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B"))
    target = a_hanging_target(scene, "A", method)
    await wait_until_stuck(scene, target, method)
    scene.link.submit(10, WantJobRouter=True)
    await complete_all(scene, "B", rounds=8)
    assert len(scene.target("B").made) >= 7, "its share of the ten and of the first four jobs"
    assert scene.target("B").copies == {}, "all its routed jobs have completed"
    target.may_continue.set()
    await complete_all(scene, "A", "B")
    removed = 2 if method == "cancel" else 0
    assert scene.link.states() == {"DONE": 14 - removed, **({"REMOVED": removed} if removed else {})}
    assert {**target.made, **scene.target("B").made}.keys() == {f"pilotage-{job}-1" for job in scene.link.jobs}
    assert {*target.made.values(), *scene.target("B").made.values()} == {1}
    assert scene.spread() == {}


async def test_pending_submissions_are_neither_polled_nor_ended(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    target = a_hanging_target(scene, "A", "submit")
    scene.link.submit(3, WantJobRouter=True)
    await scene.run_cycles(100)
    assert target.hung_methods == ["submit"]
    assert target.calls == []
    assert scene.link.states() == {"MATCHED": 3}


async def test_route_gets_no_jobs_during_a_pending_submission(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B"))
    target = a_hanging_target(scene, "A", "submit")
    scene.link.submit(2, WantJobRouter=True)
    await scene.run_cycles()
    scene.link.submit(10, WantJobRouter=True)
    await scene.run_cycles(2)
    assert (target.hung_methods, len(scene.target("B").made)) == (["submit"], 11)


@pytest.mark.parametrize("after", [True, False], ids=["after the submission", "before the submission"])
async def test_job_removed_during_its_submission_is_cancelled_afterwards(tmp_path: Path, after: bool) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    target = a_hanging_target(scene, "A", "submit", after=after)
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.link.remove(job)
    await scene.run_cycles(3)
    assert (scene.link.jobs[job].outcomes, target.calls, target.cancelled) == ([], [], [])
    target.may_continue.set()
    await scene.run_cycles(3)
    assert (target.cancelled, target.forgotten) == ([f"ref:pilotage-{job}-1"], [f"pilotage-{job}-1"])
    assert [end.outcome for end in scene.link.jobs[job].outcomes] == ["KILLED"]


async def test_removing_a_job_cancels_the_transfer_of_its_output(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    target = a_hanging_target(scene, "A", "collect")
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    target.finish()
    await scene.run_cycles(3)
    assert scene.link.jobs[job].state == "COMPLETING"
    assert [request for request in target.calls if request.startswith("collect")] == [f"collect ref:pilotage-{job}-1"]
    scene.link.remove(job)
    await scene.run_cycles(3)
    assert target.cancelled_methods == ["collect"]
    assert [end.outcome for end in scene.link.jobs[job].outcomes] == ["KILLED"]
    assert target.forgotten == [f"pilotage-{job}-1"]


async def test_slow_output_arrives_whole_while_it_makes_progress(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    target = a_hanging_target(scene, "A", slow_s=0.9 * TARGET_TIMEOUT_S)
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    target.finish()
    await scene.run_cycles(20)
    assert scene.link.jobs[job].state == "DONE"
    assert list(scene.link.jobs[job].output) == ["stdout"]
    assert len([request for request in target.calls if request.startswith("collect")]) == 1


async def test_stalled_output_is_requested_again_without_delaying_others(
    tmp_path: Path,
) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    target = a_hanging_target(scene, "A", "collect")
    first, second = scene.link.submit(2, WantJobRouter=True)
    target.only = f"ref:pilotage-{first}-1"
    await scene.run_cycles()
    target.finish()
    await scene.run_cycles(2)
    target.time.advance(TARGET_TIMEOUT_S)
    (third,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    target.finish()
    await scene.run_cycles()
    assert [scene.link.jobs[job].state for job in (first, second, third)] == ["COMPLETING", "DONE", "DONE"]
    target.may_continue.set()
    await scene.run_cycles(3)
    assert scene.link.states() == {"DONE": 3}


async def test_slow_upload_delays_nothing_else(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B"), cycle_wait_s=0.1)
    scene.link.submit(2, WantJobRouter=True)
    await scene.run_cycles()
    scene.link.uploads_allowed.clear()
    scene.target("A").finish()
    await scene.run_cycles(2)
    scene.link.submit(2, WantJobRouter=True)
    scene.target("B").move(RoutedJobState.RUNNING)
    await scene.run_cycles(2)
    assert scene.link.states() == {"COMPLETING": 1, "MATCHED": 2, "RUNNING": 1}
    scene.link.uploads_allowed.set()
    await scene.run_cycles(2)
    assert scene.link.states() == {"DONE": 1, "MATCHED": 2, "RUNNING": 1}


async def test_completing_jobs_do_not_count_as_idle(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A", MaxIdleJobs=2))
    target = a_hanging_target(scene, "A", "collect")
    scene.link.submit(4, WantJobRouter=True)
    await scene.run_cycles()
    target.finish()
    await scene.run_cycles(2)
    assert len(target.made) == 4


@pytest.mark.parametrize("after", [True, False], ids=["after the submission", "before the submission"])
async def test_lost_leadership_cancels_a_submission_before_another_router_acts(tmp_path: Path, after: bool) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    first, target = scene.router, a_hanging_target(scene, "A", "submit", after=after)
    jobs = scene.link.submit(3, WantJobRouter=True)
    await scene.run_cycles()
    first.leadership_lost()
    target.may_continue.set()
    scene.start(folder="second")
    await complete_all(scene, "A")
    assert target.cancelled_methods == ["submit"]
    assert scene.link.states() == {"DONE": 3}
    assert set(target.made.values()) == {1}
    assert {end.outcome for job in jobs for end in scene.link.jobs[job].outcomes} == (
        {"EXITED"} if after else {"EVICTED", "EXITED"}
    )
    scene.router = first
    first.leadership_gained()
    await scene.run_cycles(2)
    assert scene.link.states() == {"DONE": 3}


@pytest.mark.parametrize("method", ["submit", "poll", "collect", "forget"])
async def test_stopped_router_leaves_no_task_running(tmp_path: Path, method: str) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B"))
    target = a_hanging_target(scene, "A", method)
    await wait_until_stuck(scene, target, method)
    await scene.router.stop()
    assert set(target.cancelled_methods) == {method}
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_single_cycle_waits_for_its_submissions(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    target = a_hanging_target(scene, "A", "submit")
    (job,) = scene.link.submit(WantJobRouter=True)
    single = asyncio.create_task(scene.router.run_to_completion())
    while not target.hung_methods:
        await asyncio.wait([single], timeout=0.01)
    assert not single.done()
    target.may_continue.set()
    await single
    assert scene.link.jobs[job].reference == f"ref:pilotage-{job}-1"


async def test_unexpected_error_at_one_target_is_logged_and_delays_no_other(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B"))
    target = a_hanging_target(scene, "A", "poll")
    scene.link.submit(4, WantJobRouter=True)
    await scene.run_cycles(2)
    del target.statuses  # without it the target raises AttributeError
    target.may_continue.set()
    with capture_logs() as logs:
        await complete_all(scene, "B", rounds=3)
    assert scene.link.states()["DONE"] == 2
    assert {entry["target"] for entry in logs if entry["log_level"] == "error"} == {str(target_of("A"))}


async def test_cancellation_is_repeated_once_per_polling_interval(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    target = scene.target("A")
    del scene.link.jobs[job]
    scene.router.leadership_gained()
    target.is_reachable = False
    for _ in range(5):
        await scene.router.run_once()
    assert len(target.cancelled) == 1
    await scene.run_cycles(2)
    assert len(target.cancelled) == 2


# Unexpected errors ---------------------------------------------------------------------------------------------------


@dataclass
class BrokenCollectTarget(ManualTarget):
    """A target where collecting the output of job `broken` raises an unexpected error."""

    broken: int = 0

    async def collect(self, reference: str) -> tuple[CollectedFile, ...]:
        if self.broken and self.copies[reference].job_id == self.broken:
            raise RecursionError("a path without end")
        return await super().collect(reference)


def error_events(logs: list[Any]) -> set[str]:
    return {line["event"] for line in logs if line["log_level"] == "error"}


async def test_unexpected_error_of_collect_delays_only_its_own_job(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path)
    target = BrokenCollectTarget(tmp_path / "left", scene.target().initial_status, clock=scene.clock)
    scene.targets.targets[str(target_of("A"))] = target
    target.broken = scene.link.submit(1, WantJobRouter=True)[0]
    scene.link.submit(3, WantJobRouter=True)
    with capture_logs() as logs:
        await scene.run_cycles()
        target.finish()
        await scene.run_cycles(3)
    assert scene.link.states()["DONE"] == 3
    assert error_events(logs) == {"unexpected error in a request to a target"}
    target.broken = 0
    await scene.run_cycles(10)
    assert scene.link.states() == {"DONE": 4}
