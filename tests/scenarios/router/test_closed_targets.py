"""Targets that cannot be opened or that reject all jobs: the router takes no job for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pilotage_agents.batch_systems.base import NotSubmitted
from pilotage_agents.router.core.model import RoutedJobState, RoutedJobStatus
from pilotage_agents.router.core.table import Target
from pilotage_agents.router.ports import InputFiles, RoutedJobAnswer, RoutedJobRequest, RouteUnsuitable
from support.router_scene import CYCLE_WAIT_S, ManualTarget, RouterScene, a_route, target_of
from support.virtual_clock import LoopTime

UNKNOWN = 'no batch system is configured for its CEType "slurm"'


@dataclass
class RejectingTarget(ManualTarget):
    """A target that gives the same answer to all submissions and records their times."""

    answer: RoutedJobAnswer = field(default_factory=lambda: NotSubmitted("its disk is away", was_tried=False))
    submission_times: list[float] = field(default_factory=list)

    async def submit(self, copies: Sequence[RoutedJobRequest], files: InputFiles) -> tuple[RoutedJobAnswer, ...]:
        self.submission_times.append(self.clock().timestamp())
        return (self.answer,) * len(copies)


@dataclass
class SlowlyOpenedTargets:
    """Targets that open only after the end of a cycle that does not wait for them."""

    scene: RouterScene
    time: LoopTime

    async def open(self, target: Target) -> ManualTarget:
        for _ in range(5000):
            if "tell_routes" in self.scene.link.calls:
                break
            self.time.advance(CYCLE_WAIT_S / 1000)
            await asyncio.sleep(0)
        return await self.scene.targets.open(target)


def close_target(scene: RouterScene, route: str, reason: str = UNKNOWN) -> None:
    """Make the target of a route fail to open."""
    scene.targets.closed[str(target_of(route))] = reason


def open_target(scene: RouterScene, route: str) -> None:
    """Make the target of a route open again."""
    del scene.targets.closed[str(target_of(route))]


def make_target_reject(scene: RouterScene, route: str, answer: RoutedJobAnswer | None = None) -> RejectingTarget:
    """Replace the target of a route by one that rejects all jobs; return it."""
    target = RejectingTarget(
        scene.target(route).folder, lambda _: RoutedJobStatus(RoutedJobState.IDLE), clock=scene.clock
    )
    target.answer = answer or target.answer
    scene.targets.targets[str(target_of(route))] = target
    return target


async def test_route_whose_target_cannot_be_opened_gets_no_job(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B", requirements="TARGET.OnlyB"))
    close_target(scene, "A")
    jobs = scene.link.submit(3, WantJobRouter=True)
    scene.link.submit(2, OnlyB=True)
    await scene.run_cycles(60)
    assert [scene.link.jobs[job].attempt for job in jobs] == [0, 0, 0]
    assert scene.spread() == {"B": 2}
    published = {route.name: (route.closed, route.throttled) for route in scene.link.published[-1].routes}
    assert published == {"A": (f"its target cannot be opened: queue SITE/ce/A: {UNKNOWN}", ""), "B": ("", "")}


async def test_route_resumes_when_its_target_can_be_opened(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    close_target(scene, "A")
    scene.link.submit(3, WantJobRouter=True)
    await scene.run_cycles(60)
    open_target(scene, "A")
    await scene.run_cycles(7)
    assert scene.spread() == {"A": 3}
    assert scene.link.published[-1].routes[0].closed == ""


async def test_dry_run_reports_targets_that_cannot_be_opened(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B"))
    close_target(scene, "A")
    scene.link.submit(3, WantJobRouter=True)
    lines = await scene.router.dry_run()
    assert any(
        f"A -> queue SITE/ce/A: no job: its target cannot be opened: queue SITE/ce/A: {UNKNOWN}" in line
        for line in lines
    )
    assert any("B -> queue SITE/ce/B: 3 jobs" in line for line in lines)


async def test_single_cycle_waits_until_its_targets_are_open(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    router = scene.start(places=SlowlyOpenedTargets(scene, LoopTime()))
    scene.link.submit(3, WantJobRouter=True)
    await router.run_to_completion()
    assert scene.spread() == {"A": 3}


async def test_failure_to_open_a_target_requeues_its_jobs_at_once(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    await scene.run_cycles()
    close_target(scene, "A")
    scene.link.submit(3, WantJobRouter=True)
    await scene.run_cycles()
    assert scene.link.states() == {"WAITING": 3}
    assert {job.outcomes[-1].outcome for job in scene.link.jobs.values()} == {"DECLINED"}
    await scene.run_cycles(30)
    assert {job.attempt for job in scene.link.jobs.values()} == {1}, "no job is taken while the target is closed"
    open_target(scene, "A")
    await scene.run_cycles(7)
    assert scene.spread() == {"A": 3}


async def test_pauses_grow_for_a_target_that_tries_no_submission(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    target = make_target_reject(scene, "A")
    (job,) = scene.link.submit(1, WantJobRouter=True)
    await scene.run_cycles(360)
    assert scene.link.jobs[job].state == "WAITING"
    pauses = [
        later - earlier for earlier, later in zip(target.submission_times, target.submission_times[1:], strict=False)
    ]
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(300)
    assert scene.link.published[-1].routes[0].closed == "its target gives no answer: its disk is away"


async def test_job_that_is_unsuitable_for_one_route_takes_another(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B", requirements="TARGET.WantJobRouter && TARGET.MayB"))
    target = make_target_reject(scene, "A", RouteUnsuitable("it brings no token"))
    both, one = scene.link.submit(1, WantJobRouter=True, MayB=True) + scene.link.submit(1, WantJobRouter=True)
    await scene.run_cycles(50)
    assert (scene.spread(), scene.link.jobs[both].state) == ({"B": 1}, "MATCHED")
    assert (scene.link.jobs[one].state, scene.link.jobs[one].attempt) == ("WAITING", 1)
    assert len(target.submission_times) <= 2
    assert scene.link.published[-1].routes[0].closed == "", "one unsuitable job does not close the route"
