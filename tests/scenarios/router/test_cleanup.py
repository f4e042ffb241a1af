"""What a job router does about what its copies leave at their targets, also those that nobody knows any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage_agents.router.core.model import RoutedJobState, RoutedJobStatus
from support.router_scene import RouterScene


async def test_a_copy_that_is_no_more_the_routers_is_stopped_before_it_is_forgotten_also_by_the_next_router(
    scene: RouterScene,
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.place().move(RoutedJobState.RUNNING)
    await scene.rounds()
    reference = scene.link.jobs[job].reference
    scene.place().is_reachable = False
    del scene.link.jobs[job]
    scene.router.leadership_gained()
    await scene.rounds(3)
    assert scene.place().forgotten == []
    scene.start()
    scene.place().is_reachable = True
    await scene.rounds(40)
    assert reference in scene.place().cancelled
    assert scene.place().forgotten == [f"pilotage-{job}-1"]


async def test_what_was_made_ready_for_a_copy_that_was_never_submitted_is_forgotten_by_its_name(
    scene: RouterScene,
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    scene.place().loses_answers = True
    await scene.rounds()
    scene.place().statuses.clear()
    scene.start()
    await scene.rounds(9)
    assert scene.link.jobs[job].history.count("WAITING") == 2
    assert f"pilotage-{job}-1" in scene.place().forgotten
    assert f"pilotage-{job}-1" not in scene.place().since


async def test_what_copies_have_left_that_nobody_knows_is_forgotten_after_a_day_and_all_else_stays(
    scene: RouterScene,
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.place().move(RoutedJobState.RUNNING)
    scene.place().since |= {"pilotage-7-1": scene.clock(), "pilotage-8-1": scene.clock()}
    scene.place().statuses["ref:pilotage-8-1"] = RoutedJobStatus(RoutedJobState.RUNNING)
    scene.clock.advance(seconds=23 * 3600)
    await scene.rounds()
    assert scene.place().forgotten == []
    scene.place().since["pilotage-9-1"] = scene.clock()
    scene.clock.advance(seconds=2 * 3600)
    await scene.rounds(2)
    assert sorted(scene.place().forgotten) == ["pilotage-7-1", "pilotage-8-1"]
    assert scene.place().cancelled == ["ref:pilotage-8-1"], "it is stopped before"
    assert scene.link.jobs[job].state == "RUNNING"


async def test_what_nobody_knows_and_cannot_be_stopped_now_is_stopped_later(scene: RouterScene) -> None:
    scene.place().since["pilotage-8-1"] = scene.clock()
    scene.place().statuses["ref:pilotage-8-1"] = RoutedJobStatus(RoutedJobState.RUNNING)
    scene.clock.advance(seconds=25 * 3600)
    scene.place().is_reachable = False
    await scene.rounds()
    assert scene.place().forgotten == []
    scene.place().is_reachable = True
    scene.clock.advance(seconds=3600)
    await scene.rounds(2)
    assert scene.place().forgotten == ["pilotage-8-1"]


async def test_a_copy_of_which_the_server_knows_nothing_more_is_stopped(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.place().move(RoutedJobState.RUNNING)
    scene.link.jobs[job].holder = 0
    await scene.rounds(7)
    assert scene.place().cancelled == [f"ref:pilotage-{job}-1"]
    assert scene.spread() == {}


@pytest.fixture
def scene(tmp_path: Path) -> RouterScene:
    return RouterScene(tmp_path)
