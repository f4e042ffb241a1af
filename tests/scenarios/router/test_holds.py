"""Routed jobs that their targets hold: the original is held for the same reason, in virtual time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from pilotage_agents.router.core.model import RoutedJobState
from support.processes import CrashingProxy, CrashingTargets, CrashPoint, SimulatedCrash
from support.router_scene import RouterScene, a_route

REASON = "the proxy has expired"


@pytest.fixture
def scene(tmp_path: Path) -> RouterScene:
    return RouterScene(tmp_path, a_route(FailureRateThreshold=0.0001))


async def job_held_at_its_target(scene: RouterScene) -> int:
    """Route a job and hold it at its target; return its id."""
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.target().set_state(job, RoutedJobState.HELD, reason=REASON)
    return job


async def test_target_hold_holds_the_original_and_cancels_the_routed_job(scene: RouterScene) -> None:
    job = await job_held_at_its_target(scene)
    await scene.run_cycles()
    assert (scene.link.jobs[job].state, scene.link.jobs[job].reason) == ("HELD", REASON)
    await scene.run_cycles(2)
    assert scene.target().cancelled == [f"ref:pilotage-{job}-1"]
    assert "1 failed" in scene.link.published[-1].routes[0].throttled
    assert scene.link.jobs[job].history.count("HELD") == 1


async def test_released_job_is_routed_again_after_the_held_attempt_ends(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route())
    job = await job_held_at_its_target(scene)
    await scene.router.run_once()
    scene.link.release(job)
    assert list(scene.target().made) == [f"pilotage-{job}-1"]
    await scene.run_cycles(10)
    assert list(scene.target().made) == [f"pilotage-{job}-1", f"pilotage-{job}-2"]
    assert scene.target().cancelled == [f"ref:pilotage-{job}-1"]


@pytest.mark.parametrize("is_done", [True, False], ids=["after the call", "before the call"])
@pytest.mark.parametrize("at_call", range(1, 13))
async def test_job_stays_held_when_the_router_dies(scene: RouterScene, at_call: int, is_done: bool) -> None:
    job = await job_held_at_its_target(scene)
    crash_point = CrashPoint(at_call, is_done=is_done)
    router = scene.start(
        link=CrashingProxy(scene.link, crash_point), places=CrashingTargets(scene.targets, crash_point)
    )
    died = False
    try:
        for _ in range(4):
            while await router.run_once() == timedelta(0):
                pass
            scene.clock.advance(seconds=10)
    except* SimulatedCrash:
        died = True
    assert died
    scene.start(folder="another host")
    await scene.run_cycles(10)
    assert (scene.link.jobs[job].state, scene.link.jobs[job].reason) == ("HELD", REASON)
    assert scene.link.jobs[job].attempt == 1
    assert scene.spread() == {}


async def test_unreported_hold_is_dropped_when_the_routed_job_completes(scene: RouterScene) -> None:
    job = await job_held_at_its_target(scene)
    scene.target().is_reachable = False
    await scene.run_cycles()
    scene.target().is_reachable = True
    scene.target().set_state(job, RoutedJobState.COMPLETED, exit_code=0)
    await scene.run_cycles(6)
    assert scene.link.jobs[job].history[-1] == "DONE"
