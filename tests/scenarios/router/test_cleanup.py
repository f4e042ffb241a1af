"""How a job router cleans up at targets, also after routed jobs that no server or router knows any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage_agents.router.core.model import RoutedJobState, RoutedJobStatus
from support.router_scene import RouterScene


async def test_next_router_cancels_a_dropped_job_before_cleaning_up(
    scene: RouterScene,
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.target().move(RoutedJobState.RUNNING)
    await scene.run_cycles()
    reference = scene.link.jobs[job].reference
    scene.target().is_reachable = False
    del scene.link.jobs[job]
    scene.router.leadership_gained()
    await scene.run_cycles(3)
    assert scene.target().forgotten == []
    scene.start()
    scene.target().is_reachable = True
    await scene.run_cycles(40)
    assert reference in scene.target().cancelled
    assert scene.target().forgotten == [f"pilotage-{job}-1"]


async def test_cleans_up_by_name_after_a_job_that_was_never_submitted(
    scene: RouterScene,
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    scene.target().loses_answers = True
    await scene.run_cycles()
    scene.target().statuses.clear()
    scene.start()
    await scene.run_cycles(9)
    assert scene.link.jobs[job].history.count("WAITING") == 2
    assert f"pilotage-{job}-1" in scene.target().forgotten
    assert f"pilotage-{job}-1" not in scene.target().since


async def test_unknown_jobs_are_cleaned_up_after_a_day(
    scene: RouterScene,
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.target().move(RoutedJobState.RUNNING)
    scene.target().since |= {"pilotage-7-1": scene.clock(), "pilotage-8-1": scene.clock()}
    scene.target().statuses["ref:pilotage-8-1"] = RoutedJobStatus(RoutedJobState.RUNNING)
    scene.clock.advance(seconds=23 * 3600)
    await scene.run_cycles()
    assert scene.target().forgotten == []
    scene.target().since["pilotage-9-1"] = scene.clock()
    scene.clock.advance(seconds=2 * 3600)
    await scene.run_cycles(2)
    assert sorted(scene.target().forgotten) == ["pilotage-7-1", "pilotage-8-1"]
    assert scene.target().cancelled == ["ref:pilotage-8-1"], "it is cancelled first"
    assert scene.link.jobs[job].state == "RUNNING"


async def test_cleanup_of_unknown_jobs_waits_for_an_unreachable_target(scene: RouterScene) -> None:
    scene.target().since["pilotage-8-1"] = scene.clock()
    scene.target().statuses["ref:pilotage-8-1"] = RoutedJobStatus(RoutedJobState.RUNNING)
    scene.clock.advance(seconds=25 * 3600)
    scene.target().is_reachable = False
    await scene.run_cycles()
    assert scene.target().forgotten == []
    scene.target().is_reachable = True
    scene.clock.advance(seconds=3600)
    await scene.run_cycles(2)
    assert scene.target().forgotten == ["pilotage-8-1"]


async def test_routed_job_that_the_server_does_not_know_is_cancelled(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.target().move(RoutedJobState.RUNNING)
    scene.link.jobs[job].holder = 0
    await scene.run_cycles(7)
    assert scene.target().cancelled == [f"ref:pilotage-{job}-1"]
    assert scene.spread() == {}


@pytest.fixture
def scene(tmp_path: Path) -> RouterScene:
    return RouterScene(tmp_path)
