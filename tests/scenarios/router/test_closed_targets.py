"""A job router and targets that cannot be opened, or that take no copies: no job is taken for them in vain."""

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
from support.router_scene import ROUND_WAITS_S, RouterScene, ScenePlace, a_route, target_of
from support.virtual_clock import LoopTime

UNKNOWN = 'no batch system is configured for its CEType "slurm"'


@dataclass
class RefusingPlace(ScenePlace):
    """A place that says the same to all copies, and keeps when it was asked."""

    answer: RoutedJobAnswer = field(default_factory=lambda: NotSubmitted("its disk is away", was_tried=False))
    asked: list[float] = field(default_factory=list)

    async def submit(self, copies: Sequence[RoutedJobRequest], files: InputFiles) -> tuple[RoutedJobAnswer, ...]:
        self.asked.append(self.clock().timestamp())
        return (self.answer,) * len(copies)


@dataclass
class SlowlyOpened:
    """Places that are not open before a round that does not wait for them is over."""

    scene: RouterScene
    time: LoopTime

    async def open(self, target: Target) -> ScenePlace:
        for _ in range(5000):
            if "tell_routes" in self.scene.link.calls:
                break
            self.time.advance(ROUND_WAITS_S / 1000)
            await asyncio.sleep(0)
        return await self.scene.places.open(target)


def closed_to(scene: RouterScene, route: str, why: str = UNKNOWN) -> None:
    """Let the target of a route be one that cannot be opened."""
    scene.places.closed[str(target_of(route))] = why


def opened_to(scene: RouterScene, route: str) -> None:
    """Let the target of a route be one that can be opened."""
    del scene.places.closed[str(target_of(route))]


def refusing(scene: RouterScene, route: str, answer: RoutedJobAnswer | None = None) -> RefusingPlace:
    """Put a place where a route goes to that refuses all copies; returns it."""
    place = RefusingPlace(scene.place(route).folder, lambda _: RoutedJobStatus(RoutedJobState.IDLE), clock=scene.clock)
    place.answer = answer or place.answer
    scene.places.places[str(target_of(route))] = place
    return place


async def test_a_route_whose_target_cannot_be_opened_gets_no_job_and_says_why(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B", requirements="TARGET.OnlyB"))
    closed_to(scene, "A")
    jobs = scene.link.submit(3, WantJobRouter=True)
    scene.link.submit(2, OnlyB=True)
    await scene.rounds(60)
    assert [scene.link.jobs[job].attempt for job in jobs] == [0, 0, 0]
    assert scene.spread() == {"B": 2}
    told = {route.name: (route.closed, route.throttled) for route in scene.link.told[-1].routes}
    assert told == {"A": (f"its target cannot be opened: queue SITE/ce/A: {UNKNOWN}", ""), "B": ("", "")}


async def test_a_route_goes_on_by_itself_when_its_target_can_be_opened(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    closed_to(scene, "A")
    scene.link.submit(3, WantJobRouter=True)
    await scene.rounds(60)
    opened_to(scene, "A")
    await scene.rounds(7)
    assert scene.spread() == {"A": 3}
    assert scene.link.told[-1].routes[0].closed == ""


async def test_a_dry_run_opens_targets_and_says_which_cannot_be(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B"))
    closed_to(scene, "A")
    scene.link.submit(3, WantJobRouter=True)
    lines = await scene.router.dry_run()
    assert any(
        f"A -> queue SITE/ce/A: no job: its target cannot be opened: queue SITE/ce/A: {UNKNOWN}" in each
        for each in lines
    )
    assert any("B -> queue SITE/ce/B: 3 jobs" in each for each in lines)


async def test_a_single_round_waits_until_its_targets_are_open(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    router = scene.start(places=SlowlyOpened(scene, LoopTime()))
    scene.link.submit(3, WantJobRouter=True)
    await router.run_to_completion()
    assert scene.spread() == {"A": 3}


async def test_jobs_that_were_taken_for_a_target_that_cannot_be_opened_then_wait_again_at_once(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    await scene.rounds()
    closed_to(scene, "A")
    scene.link.submit(3, WantJobRouter=True)
    await scene.rounds()
    assert scene.link.states() == {"WAITING": 3}
    assert {job.outcomes[-1].outcome for job in scene.link.jobs.values()} == {"DECLINED"}
    await scene.rounds(30)
    assert {job.attempt for job in scene.link.jobs.values()} == {1}, "none is taken while it cannot be opened"
    opened_to(scene, "A")
    await scene.rounds(7)
    assert scene.spread() == {"A": 3}


async def test_a_target_that_tries_no_copy_is_left_alone_ever_longer(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    place = refusing(scene, "A")
    (job,) = scene.link.submit(1, WantJobRouter=True)
    await scene.rounds(360)
    assert scene.link.jobs[job].state == "WAITING"
    pauses = [later - earlier for earlier, later in zip(place.asked, place.asked[1:], strict=False)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(300)
    assert scene.link.told[-1].routes[0].closed == "its target gives no answer: its disk is away"


async def test_a_job_that_lacks_what_one_way_needs_takes_another_and_is_not_sent_that_way_again(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B", requirements="TARGET.WantJobRouter && TARGET.MayB"))
    place = refusing(scene, "A", RouteUnsuitable("it brings no token"))
    both, one = scene.link.submit(1, WantJobRouter=True, MayB=True) + scene.link.submit(1, WantJobRouter=True)
    await scene.rounds(50)
    assert (scene.spread(), scene.link.jobs[both].state) == ({"B": 1}, "MATCHED")
    assert (scene.link.jobs[one].state, scene.link.jobs[one].attempt) == ("WAITING", 1)
    assert len(place.asked) <= 2
    assert scene.link.told[-1].routes[0].closed == "", "it speaks against no route"
