"""Copies that their targets hold: their originals are held, and nobody forgets why, in virtual time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from pilotage_agents.router.core.model import RoutedJobState
from support.processes import Death, DiedError, Mortal, MortalPlaces
from support.router_scene import RouterScene, a_route

WHY = "the proxy has expired"


@pytest.fixture
def scene(tmp_path: Path) -> RouterScene:
    return RouterScene(tmp_path, a_route(FailureRateThreshold=0.0001))


async def a_held_copy(scene: RouterScene) -> int:
    """Let the copy of a job be held at its target; returns the job."""
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.place().tell(job, RoutedJobState.HELD, reason=WHY)
    return job


async def test_a_copy_that_its_target_holds_holds_its_job_for_that_reason_and_ends(scene: RouterScene) -> None:
    job = await a_held_copy(scene)
    await scene.rounds()
    assert (scene.link.jobs[job].state, scene.link.jobs[job].reason) == ("HELD", WHY)
    await scene.rounds(2)
    assert scene.place().cancelled == [f"ref:pilotage-{job}-1"]
    assert "1 failed" in scene.link.told[-1].routes[0].throttled
    assert scene.link.jobs[job].history.count("HELD") == 1


async def test_a_job_that_is_released_is_routed_anew_once_the_held_copy_is_over(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route())
    job = await a_held_copy(scene)
    await scene.router.run_once()
    scene.link.release(job)
    assert list(scene.place().made) == [f"pilotage-{job}-1"]
    await scene.rounds(10)
    assert list(scene.place().made) == [f"pilotage-{job}-1", f"pilotage-{job}-2"]
    assert scene.place().cancelled == [f"ref:pilotage-{job}-1"]


@pytest.mark.parametrize("is_done", [True, False], ids=["after it was done", "before it was done"])
@pytest.mark.parametrize("at_call", range(1, 13))
async def test_a_router_that_dies_meanwhile_leaves_the_job_held_also_when_the_next_is_on_another_host(
    scene: RouterScene, at_call: int, is_done: bool
) -> None:
    job = await a_held_copy(scene)
    death = Death(at_call, is_done=is_done)
    router = scene.start(link=Mortal(scene.link, death), places=MortalPlaces(scene.places, death))
    died = False
    try:
        for _ in range(4):
            while await router.run_once() == timedelta(0):
                pass
            scene.clock.advance(seconds=10)
    except* DiedError:
        died = True
    assert died
    scene.start(folder="another host")
    await scene.rounds(10)
    assert (scene.link.jobs[job].state, scene.link.jobs[job].reason) == ("HELD", WHY)
    assert scene.link.jobs[job].attempt == 1
    assert scene.spread() == {}


async def test_a_held_copy_that_ends_by_itself_before_the_server_hears_is_no_held_job(scene: RouterScene) -> None:
    job = await a_held_copy(scene)
    scene.place().is_reachable = False
    await scene.rounds()
    scene.place().is_reachable = True
    scene.place().tell(job, RoutedJobState.COMPLETED, exit_code=0)
    await scene.rounds(6)
    assert scene.link.jobs[job].history[-1] == "DONE"
