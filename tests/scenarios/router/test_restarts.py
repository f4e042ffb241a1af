"""A job router that crashes, loses the server or loses leadership: no job is lost and none runs twice."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError, LeadershipLostError, ServerUnreachableError
from pilotage.values.routing import NewRoutedJob
from pilotage_agents.router.core.model import RoutedJobState
from pilotage_agents.router.ports import NotRouted, Routed, RouterFeedPage
from support.processes import CrashingProxy, CrashingTargets, CrashPoint, SimulatedCrash
from support.router_scene import FakeRouterLink, RouterScene, a_route, target_of

CALLS = 24
"""The minimum number of calls in the cycles below; the router dies at each of them in turn."""


async def run_until_death(scene: RouterScene, crash_point: CrashPoint) -> bool:
    """Run cycles of a mortal router while its routed jobs end; return whether it died."""
    router = scene.start(
        link=CrashingProxy(scene.link, crash_point), places=CrashingTargets(scene.targets, crash_point)
    )
    died = False
    try:
        for _ in range(3):
            while await router.run_once() == timedelta(0):
                pass
            scene.clock.advance(seconds=10)
            scene.target("A").finish()
            scene.target("B").finish()
    except* SimulatedCrash:
        died = True
    return died


@pytest.mark.parametrize("is_done", [True, False], ids=["after the call", "before the call"])
@pytest.mark.parametrize("at_call", range(1, CALLS + 1))
async def test_router_that_dies_in_any_call_neither_loses_nor_doubles_jobs(
    tmp_path: Path, at_call: int, is_done: bool
) -> None:
    scene = RouterScene(tmp_path, a_route("A", MaxJobs=3), a_route("B", MaxJobs=3))
    jobs = scene.link.submit(8, WantJobRouter=True)
    assert await run_until_death(scene, CrashPoint(at_call, is_done=is_done))
    scene.start()
    for _ in range(20):
        await scene.run_cycles()
        scene.target("A").finish()
        scene.target("B").finish()
    made = {**scene.target("A").made, **scene.target("B").made}
    assert scene.link.states() == {"DONE": 8}
    assert set(made.values()) == {1}, "no attempt was submitted twice"
    assert all(scene.link.jobs[job].history.count("DONE") == 1 for job in jobs)
    assert sorted(name.split("-")[1] for name in made) == sorted(str(job) for job in jobs), "no job was routed twice"
    assert scene.spread() == {}, "no routed job is left"


async def test_number_of_calls_covers_all_cycles(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A", MaxJobs=3), a_route("B", MaxJobs=3))
    scene.link.submit(8, WantJobRouter=True)
    crash_point = CrashPoint(10**9, is_done=True)
    assert not await run_until_death(scene, crash_point)
    assert crash_point.calls >= CALLS


async def test_router_on_another_host_adopts_routed_jobs(scene: RouterScene) -> None:
    scene.link.submit(5, WantJobRouter=True)
    await scene.run_cycles()
    scene.target().move(RoutedJobState.RUNNING, most=2)
    await scene.run_cycles()
    scene.start(folder="elsewhere")
    scene.target().finish()
    scene.target().move(RoutedJobState.COMPLETED, of=RoutedJobState.RUNNING, exit_code=0)
    await scene.run_cycles(2)
    assert scene.link.states() == {"DONE": 5}
    assert set(scene.target().made.values()) == {1}


async def test_started_router_adopts_stops_and_releases_routed_jobs(scene: RouterScene) -> None:
    kept, removed = scene.link.submit(2, WantJobRouter=True)
    await scene.run_cycles()
    (unsent,) = scene.link.submit(executable="never sent")
    place = target_of("A")
    await scene.link.route("by a router that dies", [NewRoutedJob(unsent, "A", str(place), place.queue)])
    scene.link.remove(removed)
    scene.start(folder="elsewhere")
    await scene.run_cycles(8)
    assert [scene.link.jobs[job].state for job in (kept, removed, unsent)] == ["MATCHED", "REMOVED", "WAITING"]
    assert [*scene.target().statuses] == [f"ref:pilotage-{kept}-1"]
    assert scene.target().made == {f"pilotage-{kept}-1": 1, f"pilotage-{removed}-1": 1}


async def test_submission_with_a_lost_answer_is_found_by_name(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    scene.target().loses_answers = True
    await scene.run_cycles(2)
    assert scene.link.jobs[job].reference == f"ref:pilotage-{job}-1"
    scene.target().finish()
    await scene.run_cycles()
    assert scene.link.states() == {"DONE": 1}


async def test_unfound_submission_counts_as_failure_after_ten_minutes(
    tmp_path: Path,
) -> None:
    scene = RouterScene(tmp_path, a_route(FailureRateThreshold=0.0001, MaxJobs=1))
    (job,) = scene.link.submit(WantJobRouter=True)
    scene.target().loses_answers = True
    await scene.run_cycles()
    scene.target().statuses.clear()
    await scene.run_cycles(59)
    assert scene.link.jobs[job].state == "MATCHED"
    await scene.run_cycles(2)
    assert scene.link.jobs[job].state == "WAITING"
    assert "no job was found for 600 s" in scene.link.jobs[job].reason
    await scene.run_cycles()
    assert "1 failed" in scene.link.published[-1].routes[0].throttled
    assert scene.target().forgotten == [f"pilotage-{job}-1"]


async def test_job_with_lost_output_does_not_succeed(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.target().loses_output = True
    scene.target().finish()
    await scene.run_cycles()
    (outcome,) = scene.link.jobs[job].outcomes
    assert (outcome.outcome, outcome.reason) == ("OUTPUT_LOST", "the output is lost: its disk is gone")
    assert "DONE" not in scene.link.jobs[job].history


async def test_unreachable_target_never_ends_a_routed_job(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.target().is_reachable = False
    await scene.run_cycles(200)
    assert scene.link.jobs[job].history == ["WAITING", "MATCHED"]
    scene.target().is_reachable = True
    scene.target().finish()
    await scene.run_cycles(40)
    assert scene.link.jobs[job].state == "DONE"


async def test_unclear_submission_does_not_block_other_routed_jobs(
    scene: RouterScene,
) -> None:
    first, second = scene.link.submit(2, WantJobRouter=True)
    scene.target().loses_answers = True
    scene.target().unclear = {f"pilotage-{first}-1"}
    await scene.run_cycles(2)
    scene.target().finish()
    await scene.run_cycles(200)
    assert scene.link.jobs[second].state == "DONE"
    assert scene.link.jobs[first].history == ["WAITING", "MATCHED"], "however long the target gives no clear answer"
    scene.target().unclear = set()
    await scene.run_cycles(2)
    assert scene.link.jobs[first].state == "DONE"


async def test_unreachable_server_loses_no_outcome(scene: RouterScene) -> None:
    scene.link.submit(3, WantJobRouter=True)
    await scene.run_cycles()
    scene.target().finish()
    scene.link.is_reachable = False
    for _ in range(3):
        with pytest.raises(ServerUnreachableError):
            await scene.router.run_once()
        scene.clock.advance(seconds=10)
    scene.link.is_reachable = True
    await scene.run_cycles(2)
    assert scene.link.states() == {"DONE": 3}


class LosesFirstAnswer(FakeRouterLink):
    """A server whose answer to the first request for jobs is lost."""

    is_done = False
    was_called = False

    async def route(self, request: str, copies: Sequence[NewRoutedJob]) -> tuple[Routed | NotRouted, ...]:
        if self.was_called:
            return await super().route(request, copies)
        self.was_called = True
        if self.is_done:
            await super().route(request, copies)
        raise ServerUnreachableError("the answer was lost")


class WithoutFeed(FakeRouterLink):
    """A server that gives no feed."""

    async def next_events(self, after: int) -> RouterFeedPage:
        raise ServerUnreachableError("no feed")


@pytest.mark.parametrize("is_done", [True, False], ids=["after the call", "before the call"])
@pytest.mark.parametrize("same_router", [True, False], ids=["same router", "next router"])
async def test_jobs_of_a_lost_answer_are_not_lost(scene: RouterScene, is_done: bool, same_router: bool) -> None:
    scene.link = link = LosesFirstAnswer()
    link.is_done = is_done
    router = scene.start()
    link.submit(8, WantJobRouter=True)
    with pytest.raises(ServerUnreachableError):
        await router.run_once()
    await router.stop()
    scene.router = router if same_router else scene.start()
    for _ in range(10):
        await scene.run_cycles()
        scene.target().finish()
    assert link.states() == {"DONE": 8}


async def test_adopted_jobs_complete_though_the_table_is_faulty(
    scene: RouterScene,
) -> None:
    scene.link.submit(5, WantJobRouter=True)
    await scene.run_cycles()
    scene.put_table(a_route(requirements="WantJobRouter &&"))
    scene.start()
    scene.target().finish()
    for _ in range(2):
        with pytest.raises(InvalidInputError):
            await scene.router.run_once()
        scene.clock.advance(seconds=10)
    assert scene.link.states() == {"DONE": 5}


async def test_adopted_jobs_complete_though_the_feed_is_unreadable(scene: RouterScene) -> None:
    scene.link.submit(5, WantJobRouter=True)
    await scene.run_cycles()
    scene.link = WithoutFeed(scene.link.jobs, scene.link.events)
    scene.start()
    scene.target().finish()
    with pytest.raises(ServerUnreachableError):
        await scene.router.run_once()
    assert scene.link.states() == {"DONE": 5}


async def test_new_leader_loads_the_work_of_another_replica(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(MaxJobs=4))
    scene.link.submit(12, WantJobRouter=True)
    first = scene.router
    await scene.run_cycles()
    scene.start(folder="second")
    scene.target().finish()
    await scene.run_cycles()
    scene.router = first
    first.leadership_gained()
    await scene.run_cycles()
    assert len(scene.target().copies) == 4
    assert scene.link.states() == {"DONE": 4, "MATCHED": 4, "WAITING": 4}
    assert set(scene.target().made.values()) == {1}


async def test_router_without_leadership_submits_nothing(scene: RouterScene) -> None:
    scene.link.submit(3, WantJobRouter=True)
    scene.link.is_leader = False
    with pytest.raises(LeadershipLostError):
        await scene.router.run_once()
    assert scene.spread() == {}


@pytest.fixture
def scene(tmp_path: Path) -> RouterScene:
    return RouterScene(tmp_path)
