"""The life cycle of jobs that a job router routes, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError, Violation, WorldError
from pilotage.values.routing import LeftOutRoute, PublishedRoutes
from pilotage_agents.router.core.model import RoutedJobState, RoutedJobStatus
from pilotage_agents.router.folder import RouterFolder
from pilotage_agents.router.ports import InputFiles, RoutedJobAnswer, RoutedJobRequest
from support.router_scene import FakeRouterLink, ManualTarget, RouterScene, a_route, target_of


@pytest.fixture
def scene(tmp_path: Path) -> RouterScene:
    return RouterScene(tmp_path)


async def test_routed_ad_has_attributes_of_its_route_and_original(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(set_remote_queue='"long"', set_RequestMemory=4000))
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    routed_job = scene.target().of_job(job)
    assert routed_job.name == f"pilotage-{job}-1"
    assert (
        routed_job.ad["remote_queue"],
        routed_job.ad["WantJobRouter"],
        routed_job.description.request_memory_mib,
    ) == (
        "long",
        True,
        4000,
    )
    origin = {name: routed_job.ad[name] for name in ("RoutedFromJobId", "RoutedBy", "RouteName")}
    assert origin == {"RoutedFromJobId": str(job), "RoutedBy": "jobrouter", "RouteName": "A"}


async def test_original_job_follows_the_state_of_its_routed_job(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.target().set_state(job, RoutedJobState.RUNNING, node="n17")
    await scene.run_cycles()
    assert (scene.link.jobs[job].state, scene.link.jobs[job].node) == ("RUNNING", "n17")
    scene.target().set_state(job, RoutedJobState.SUSPENDED, node="n17")
    await scene.run_cycles()
    scene.target().set_state(job, RoutedJobState.RUNNING, node="n17")
    await scene.run_cycles()
    scene.target().set_state(job, RoutedJobState.COMPLETED, exit_code=3, node="n17")
    await scene.run_cycles()
    assert scene.link.jobs[job].history == ["WAITING", "MATCHED", "RUNNING", "SUSPENDED", "RUNNING", "FAILED"]
    assert scene.link.jobs[job].outcomes[0].status.exit_code == 3
    assert list(scene.link.jobs[job].output) == ["stdout"]
    assert scene.target().forgotten == [f"pilotage-{job}-1"]


async def test_job_removed_at_its_target_is_routed_by_the_new_table(
    scene: RouterScene,
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.change_table(a_route("B"))
    scene.target().set_state(job, RoutedJobState.GONE, reason="removed by an operator")
    await scene.run_cycles(2)
    assert scene.spread() == {"B": 1}
    assert scene.link.jobs[job].history == ["WAITING", "MATCHED", "WAITING", "MATCHED"]
    assert scene.link.jobs[job].outcomes[0].outcome == "EVICTED"


@pytest.mark.parametrize("change", ["remove", "hold"])
async def test_removed_or_held_job_is_cancelled_at_its_target(scene: RouterScene, change: str) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.target().set_state(job, RoutedJobState.RUNNING)
    await scene.run_cycles()
    getattr(scene.link, change)(job)
    await scene.run_cycles(10)
    assert scene.target().cancelled == [f"ref:pilotage-{job}-1"]
    assert scene.target().copies == {}
    assert [end.outcome for end in scene.link.jobs[job].outcomes] == ["KILLED"]
    assert scene.link.jobs[job].state == {"remove": "REMOVED", "hold": "HELD"}[change]


async def test_released_job_is_routed_again_after_its_first_attempt_ends(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.link.hold(job)
    scene.link.release(job)
    scene.target().is_reachable = False
    await scene.run_cycles(12)
    assert list(scene.target().made) == [f"pilotage-{job}-1"]
    scene.target().is_reachable = True
    await scene.run_cycles(20)
    assert list(scene.target().made) == [f"pilotage-{job}-1", f"pilotage-{job}-2"]


async def test_only_waiting_jobs_follow_a_new_table(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A", MaxJobs=10))
    scene.link.submit(30, WantJobRouter=True)
    await scene.run_cycles()
    scene.change_table(a_route("B", "TARGET.ClusterId > 20"))
    await scene.run_cycles()
    assert scene.spread() == {"A": 10, "B": 10}
    left_out = LeftOutRoute("A", "it is no longer in the table", copies=10, idle=10)
    assert scene.link.published[-1].left_out == (left_out,)
    scene.change_table(a_route("B", "TARGET.ClusterId > 20"), a_route("A", EditJobInPlace="true"))
    await scene.run_cycles()
    (left_out,) = scene.link.published[-1].left_out
    assert (left_out.name, left_out.copies, "EditJobInPlace" in left_out.reason) == ("A", 10, True)
    scene.target("A").finish()
    scene.target("B").finish()
    await scene.run_cycles(2)
    assert scene.link.states() == {"DONE": 20, "WAITING": 10}
    assert [(route.name, route.copies) for route in scene.link.published[-1].left_out] == [("A", 0)]


async def test_faulty_new_table_is_rejected_and_the_old_one_stays(scene: RouterScene) -> None:
    scene.link.submit(1, WantJobRouter=True)
    await scene.run_cycles()
    scene.change_table(a_route("B"), a_route("C", "TARGET.WantJobRouter &&"))
    scene.link.submit(1, WantJobRouter=True)
    await scene.run_cycles(2)
    assert scene.spread() == {"A": 2}
    left_out = scene.link.published[-1].left_out[-1]
    assert left_out.name == "the newer table"
    assert 'route 2 "C"' in left_out.reason


async def test_routes_are_published_with_their_jobs_when_they_change(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A", MaxJobs=5), a_route("B", "false"))
    scene.link.submit(9, WantJobRouter=True)
    await scene.run_cycles(2)
    published = scene.link.published[-1]
    assert [(route.name, route.target, route.copies, route.idle) for route in published.routes] == [
        ("A", "queue SITE/ce/A", 5, 5),
        ("B", "queue SITE/ce/B", 0, 0),
    ]
    assert [(sample.labels, sample.value) for sample in scene.router.samples()] == [
        (("A", "idle"), 5),
        (("A", "running"), 0),
    ]
    before = len(scene.link.published)
    await scene.run_cycles(5)
    assert len(scene.link.published) == before
    scene.router.leadership_gained()
    await scene.run_cycles(2)
    assert scene.link.published[before:] == [published], "another replica may have published other routes meanwhile"


async def test_route_with_a_too_long_name_is_left_out(
    tmp_path: Path,
) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B").replace('name = "B"', f'name = "{"B" * 501}"'))
    scene.link.submit(10, WantJobRouter=True)
    await scene.run_cycles()
    assert scene.spread() == {"A": 10}
    (left_out,) = scene.link.published[-1].left_out
    assert left_out == LeftOutRoute("B" * 500, "its name has 501 characters, and may have 500")


class RejectsRoutes(FakeRouterLink):
    """A server that rejects published routes."""

    async def publish_routes(self, table: PublishedRoutes) -> None:
        raise InvalidInputError(Violation("routes", "names 1001, and one call may name 1000"))


async def test_jobs_are_routed_though_the_server_rejects_published_routes(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path)
    scene.link = RejectsRoutes()
    scene.start()
    scene.link.submit(10, WantJobRouter=True)
    await scene.run_cycles(2)
    assert scene.spread() == {"A": 10}
    assert RouterFolder(tmp_path / "router", tmp_path / "shared").load_mark().position > 0


async def test_jobs_that_the_server_refuses_are_requested_again_later(
    tmp_path: Path,
) -> None:
    scene = RouterScene(
        tmp_path, a_route("A", 'TARGET.Dataset == "MinBias"'), a_route("B", 'TARGET.Dataset == "TTbar"')
    )
    scene.link.refuses["A"] = "the queue is banned"
    scene.link.submit(30, Dataset="MinBias")
    scene.link.submit(30, Dataset="TTbar")
    await scene.run_cycles(3)
    assert scene.spread() == {"B": 30}
    assert "the queue is banned" in scene.link.published[-1].routes[0].closed
    scene.link.refuses.clear()
    await scene.run_cycles(8)
    assert scene.spread() == {"A": 30, "B": 30}


async def test_jobs_that_the_server_always_refuses_do_not_block_later_jobs(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(MaxJobs=50))
    never = scene.link.submit(500, WantJobRouter=True)
    scene.link.unroutable_jobs = frozenset(never)
    scene.link.submit(20, WantJobRouter=True)
    await scene.run_cycles()
    assert scene.spread() == {"A": 20}
    scene.target().finish()
    before = scene.link.calls.count("route")
    await scene.run_cycles(360)
    assert scene.link.states() == {"DONE": 20, "WAITING": 500}
    assert scene.link.calls.count("route") - before < 150


async def test_unreachable_target_loses_no_job_and_delays_no_other_route(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B"))
    scene.link.submit(20, WantJobRouter=True)
    await scene.run_cycles()
    scene.target("A").finish()
    scene.target("B").finish()
    scene.target("A").is_reachable = False
    scene.link.submit(20, WantJobRouter=True)
    await scene.run_cycles(5)
    assert scene.spread()["A"] == 10
    assert scene.link.states()["DONE"] == 10
    scene.target("A").is_reachable = True
    await scene.run_cycles(40)
    assert scene.link.states()["DONE"] == 20
    assert all(times == 1 for route in "AB" for times in scene.target(route).made.values())


class FailsAfterOneCall(ManualTarget):
    """A target that accepts one submission call and fails all others."""

    calls = 0

    async def submit(self, copies: Sequence[RoutedJobRequest], files: InputFiles) -> tuple[RoutedJobAnswer, ...]:
        self.calls += 1
        if self.calls > 1:
            raise WorldError("the target has gone", transient=True)
        return await super().submit(copies, files)


class SynchronizedCleanupTarget(ManualTarget):
    """A target that cleans up only when all others do so at the same time."""

    barrier: asyncio.Barrier

    async def forget(self, names: Collection[str]) -> None:
        await self.barrier.wait()
        await super().forget(names)


async def test_targets_are_cleaned_up_concurrently(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B"))
    barrier = asyncio.Barrier(2)
    for route in "AB":
        target = SynchronizedCleanupTarget(tmp_path, lambda _: RoutedJobStatus(RoutedJobState.IDLE))
        target.barrier = barrier
        scene.targets.targets[str(target_of(route))] = target
    scene.link.submit(4, WantJobRouter=True)
    await scene.run_cycles()
    scene.target("A").finish()
    scene.target("B").finish()
    async with asyncio.timeout(30):
        await scene.run_cycles()
    assert [len(scene.target(route).forgotten) for route in "AB"] == [2, 2]


async def test_target_failure_requeues_unsubmitted_jobs_at_once(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(MaxJobs=200, MaxIdleJobs=-1))
    target = FailsAfterOneCall(tmp_path, lambda _: RoutedJobStatus(RoutedJobState.IDLE))
    scene.targets.targets[str(target_of("A"))] = target
    scene.link.submit(150, WantJobRouter=True)
    await scene.router.run_once()
    assert target.calls == 2
    assert scene.link.states() == {"MATCHED": 100, "WAITING": 50}
    assert {job.outcomes[0].outcome for job in scene.link.jobs.values() if job.state == "WAITING"} == {"DECLINED"}


async def test_rejected_submission_requeues_the_job_with_the_reason(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    scene.target().refuses = "no such account"
    await scene.router.run_once()
    assert scene.link.jobs[job].state == "WAITING"
    assert (scene.link.jobs[job].outcomes[0].outcome, scene.link.jobs[job].outcomes[0].reason) == (
        "DECLINED",
        "no such account",
    )


async def test_job_with_failing_transform_takes_another_route(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A", eval_set_RequestCpus="Threads"), a_route("B"))
    jobs = scene.link.submit(4, WantJobRouter=True, Threads="many")
    await scene.run_cycles(4)
    assert scene.spread() == {"B": 4}
    assert max(scene.link.jobs[job].attempt for job in jobs) == 2
    assert "RequestCpus" in scene.link.jobs[jobs[0]].outcomes[0].reason
