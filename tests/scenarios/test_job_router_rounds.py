"""What a job router does with jobs, routes and copies, in virtual time."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import Submission
from pilotage_agents.route_edges import CopyRequest, CopyState, CopyStatus, InputFiles
from support.router_scene import RouterScene, ScenePlace, a_route, target_of


@pytest.fixture
def scene(tmp_path: Path) -> RouterScene:
    return RouterScene(tmp_path)


def change_table(scene: RouterScene, *routes: str) -> None:
    """Replace the table, so that it is seen whatever the clock of the file system is worth."""
    scene.put_table(*routes, f"# at {scene.clock()}")


async def test_never_more_copies_than_the_route_may_have_and_new_ones_as_they_finish(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(MaxJobs=500, MaxIdleJobs=-1))
    scene.link.submit(10_000, WantJobRouter=True)
    place = scene.place()
    for _ in range(3):
        await scene.rounds()
        assert len(place.copies) == 500
        place.move(CopyState.RUNNING)
        await scene.rounds()
        assert place.move(CopyState.COMPLETED, of=CopyState.RUNNING, most=200, exit_code=0) == 200
    await scene.rounds()
    assert scene.link.states() == {"DONE": 600, "MATCHED": 200, "RUNNING": 300, "WAITING": 8900}


async def test_a_copy_that_begins_to_run_lets_one_more_idle_one_in(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A", MaxIdleJobs=10), a_route("B", MaxIdleJobs=10))
    scene.link.submit(100, WantJobRouter=True)
    await scene.rounds(3)
    assert scene.spread() == {"A": 10, "B": 10}
    scene.place("A").move(CopyState.RUNNING, most=1)
    await scene.rounds()
    assert scene.spread() == {"A": 11, "B": 10}


async def test_a_copy_that_its_target_put_back_into_its_queue_is_idle_again(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(MaxIdleJobs=10))
    scene.link.submit(100, WantJobRouter=True)
    await scene.rounds()
    scene.place().move(CopyState.RUNNING)
    await scene.rounds()
    assert scene.spread() == {"A": 20}
    scene.place().move(CopyState.IDLE, of=CopyState.RUNNING)
    await scene.rounds()
    assert scene.spread() == {"A": 20}


async def test_routes_that_take_the_same_jobs_get_them_in_turn(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B"), a_route("C", MaxJobs=5))
    scene.link.submit(45, WantJobRouter=True)
    await scene.rounds()
    assert scene.spread() == {"A": 20, "B": 20, "C": 5}


async def test_the_first_route_gets_all_where_the_table_says_so(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path)
    scene.table.write_text(
        "JOB_ROUTER_ROUND_ROBIN_SELECTION = False\nJOB_ROUTER_ROUTE_NAMES = A B\n"
        'JOB_ROUTER_ROUTE_A @=end\nGridResource = "batch A"\nREQUIREMENTS WantJobRouter\nMaxIdleJobs = 7\n@end\n'
        'JOB_ROUTER_ROUTE_B @=end\nGridResource = "batch B"\nREQUIREMENTS WantJobRouter\n@end\n'
    )
    scene.link.submit(10, WantJobRouter=True)
    await scene.rounds()
    assert scene.spread() == {"A": 7, "B": 3}


async def test_all_routes_together_have_no_more_copies_than_the_table_says(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path)
    scene.table.write_text(
        "JOB_ROUTER_MAX_JOBS = 5\nJOB_ROUTER_ROUTE_NAMES = A B\n"
        'JOB_ROUTER_ROUTE_A @=end\nGridResource = "batch A"\nREQUIREMENTS WantJobRouter\n@end\n'
        'JOB_ROUTER_ROUTE_B @=end\nGridResource = "batch B"\nREQUIREMENTS WantJobRouter\n@end\n'
    )
    scene.link.submit(10, WantJobRouter=True)
    await scene.rounds()
    assert scene.spread() == {"A": 3, "B": 2}
    scene.place("B").finish()
    await scene.rounds()
    assert sum(scene.spread().values()) == 5


async def test_jobs_that_did_not_ask_are_left_alone(scene: RouterScene) -> None:
    scene.link.submit(5)
    scene.link.submit(5, WantJobRouter=False)
    (asking,) = scene.link.submit(1, WantJobRouter=True)
    await scene.rounds()
    assert scene.spread() == {"A": 1}
    assert scene.link.jobs[asking].state == "MATCHED"
    assert scene.link.states() == {"MATCHED": 1, "WAITING": 10}


async def test_an_attribute_steers_jobs_to_a_site(tmp_path: Path) -> None:
    scene = RouterScene(
        tmp_path, a_route("A", 'TARGET.Dataset == "MinBias"'), a_route("B", 'TARGET.Dataset == "TTbar"')
    )
    scene.link.submit(3, Dataset="MinBias")
    scene.link.submit(4, Dataset="ttbar")
    await scene.rounds()
    assert scene.spread() == {"A": 3, "B": 4}


async def test_a_copy_says_what_its_route_sets_and_where_it_comes_from(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(set_remote_queue='"long"', set_RequestMemory=4000))
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    copy = scene.place().of_job(job)
    assert copy.name == f"pilotage-{job}-1"
    assert (copy.ad["remote_queue"], copy.ad["WantJobRouter"], copy.description.request_memory_mib) == (
        "long",
        True,
        4000,
    )
    said = {name: copy.ad[name] for name in ("RoutedFromJobId", "RoutedBy", "RouteName")}
    assert said == {"RoutedFromJobId": str(job), "RoutedBy": "jobrouter", "RouteName": "A"}


async def test_the_original_shows_where_its_copy_is(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.place().tell(job, CopyState.RUNNING, node="n17")
    await scene.rounds()
    assert (scene.link.jobs[job].state, scene.link.jobs[job].node) == ("RUNNING", "n17")
    scene.place().tell(job, CopyState.SUSPENDED, node="n17")
    await scene.rounds()
    scene.place().tell(job, CopyState.RUNNING, node="n17")
    await scene.rounds()
    scene.place().tell(job, CopyState.COMPLETED, exit_code=3, node="n17")
    await scene.rounds()
    assert scene.link.jobs[job].history == ["WAITING", "MATCHED", "RUNNING", "SUSPENDED", "RUNNING", "FAILED"]
    assert scene.link.jobs[job].outcomes[0].status.exit_code == 3
    assert list(scene.link.jobs[job].output) == ["stdout"]
    assert scene.place().forgotten == [f"ref:pilotage-{job}-1"]


async def test_a_copy_that_is_removed_at_its_target_lets_the_job_wait_and_take_the_present_table(
    scene: RouterScene,
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    change_table(scene, a_route("B"))
    scene.place().tell(job, CopyState.GONE, reason="removed by an operator")
    await scene.rounds(2)
    assert scene.spread() == {"B": 1}
    assert scene.link.jobs[job].history == ["WAITING", "MATCHED", "WAITING", "MATCHED"]
    assert scene.link.jobs[job].outcomes[0].outcome == "EVICTED"


@pytest.mark.parametrize("deed", ["remove", "hold"])
async def test_a_job_that_is_taken_away_has_its_copy_stopped_before_anything_else(
    scene: RouterScene, deed: str
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.place().tell(job, CopyState.RUNNING)
    await scene.rounds()
    getattr(scene.link, deed)(job)
    await scene.rounds(10)
    assert scene.place().cancelled == [f"ref:pilotage-{job}-1"]
    assert scene.place().copies == {}
    assert [end.outcome for end in scene.link.jobs[job].outcomes] == ["KILLED"]
    assert scene.link.jobs[job].state == {"remove": "REMOVED", "hold": "HELD"}[deed]


async def test_a_released_job_is_routed_anew_once_its_first_copy_is_over(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.link.hold(job)
    scene.link.release(job)
    scene.place().is_reachable = False
    await scene.rounds(12)
    assert list(scene.place().made) == [f"pilotage-{job}-1"]
    scene.place().is_reachable = True
    await scene.rounds(20)
    assert list(scene.place().made) == [f"pilotage-{job}-1", f"pilotage-{job}-2"]


async def test_a_copy_that_its_target_holds_ends_and_then_the_job_is_held_for_that_reason(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.place().tell(job, CopyState.HELD, reason="the proxy has expired")
    await scene.rounds(2)
    assert scene.place().cancelled == [f"ref:pilotage-{job}-1"]
    assert (scene.link.jobs[job].state, scene.link.jobs[job].reason) == ("HELD", "the proxy has expired")
    scene.link.release(job)
    await scene.rounds()
    assert list(scene.place().made) == [f"pilotage-{job}-1", f"pilotage-{job}-2"]


async def test_only_jobs_that_wait_follow_a_new_table(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A", MaxJobs=10))
    scene.link.submit(30, WantJobRouter=True)
    await scene.rounds()
    change_table(scene, a_route("B", "TARGET.ClusterId > 20"))
    await scene.rounds()
    assert scene.spread() == {"A": 10, "B": 10}
    scene.place("A").finish()
    scene.place("B").finish()
    await scene.rounds()
    assert scene.link.states() == {"DONE": 20, "WAITING": 10}


async def test_a_faulty_new_table_is_refused_whole_and_the_old_one_stays(scene: RouterScene) -> None:
    scene.link.submit(1, WantJobRouter=True)
    await scene.rounds()
    change_table(scene, a_route("B"), a_route("C", "TARGET.WantJobRouter &&"))
    scene.link.submit(1, WantJobRouter=True)
    await scene.rounds(2)
    assert scene.spread() == {"A": 2}
    (name, reason) = scene.link.told[-1].left_out[-1]
    assert name == "the newer table"
    assert 'route 2 "C"' in reason


async def test_people_are_told_of_the_routes_and_what_is_on_them(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A", MaxJobs=5), a_route("B", "false"))
    scene.link.submit(9, WantJobRouter=True)
    await scene.rounds(2)
    told = scene.link.told[-1]
    assert [(route.name, route.target, route.copies, route.idle) for route in told.routes] == [
        ("A", "queue SITE/ce/A", 5, 5),
        ("B", "queue SITE/ce/B", 0, 0),
    ]
    before = len(scene.link.told)
    await scene.rounds(5)
    assert len(scene.link.told) == before


async def test_what_the_server_does_not_give_is_asked_for_again_later_and_disturbs_no_other_route(
    tmp_path: Path,
) -> None:
    scene = RouterScene(
        tmp_path, a_route("A", 'TARGET.Dataset == "MinBias"'), a_route("B", 'TARGET.Dataset == "TTbar"')
    )
    scene.link.refuses["A"] = "the queue is banned"
    scene.link.submit(30, Dataset="MinBias")
    scene.link.submit(30, Dataset="TTbar")
    await scene.rounds(3)
    assert scene.spread() == {"B": 30}
    assert "the queue is banned" in scene.link.told[-1].routes[0].throttled
    scene.link.refuses.clear()
    await scene.rounds(8)
    assert scene.spread() == {"A": 30, "B": 30}


async def test_a_place_that_gives_no_answer_disturbs_no_other_route_and_loses_nothing(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B"))
    scene.link.submit(20, WantJobRouter=True)
    await scene.rounds()
    scene.place("A").finish()
    scene.place("B").finish()
    scene.place("A").is_reachable = False
    scene.link.submit(20, WantJobRouter=True)
    await scene.rounds(5)
    assert scene.spread()["A"] == 10
    assert scene.link.states()["DONE"] == 10
    scene.place("A").is_reachable = True
    await scene.rounds(40)
    assert scene.link.states()["DONE"] == 20
    assert all(times == 1 for route in "AB" for times in scene.place(route).made.values())


class GivesOut(ScenePlace):
    """A place that takes one call, and answers no other."""

    calls = 0

    async def submit(self, copies: Sequence[CopyRequest], files: InputFiles) -> tuple[Submission, ...]:
        self.calls += 1
        if self.calls > 1:
            raise WorldError("the place has gone", transient=True)
        return await super().submit(copies, files)


async def test_what_a_place_that_falls_silent_was_not_asked_for_goes_back_at_once(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(MaxJobs=200, MaxIdleJobs=-1))
    place = GivesOut(tmp_path, lambda _: CopyStatus(CopyState.IDLE))
    scene.places.places[str(target_of("A"))] = place
    scene.link.submit(150, WantJobRouter=True)
    await scene.router.run_once()
    assert place.calls == 2
    assert scene.link.states() == {"MATCHED": 100, "WAITING": 50}
    assert {job.outcomes[0].outcome for job in scene.link.jobs.values() if job.state == "WAITING"} == {"DECLINED"}


async def test_a_job_that_cannot_be_submitted_goes_back_with_the_reason(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    scene.place().refuses = "no such account"
    await scene.router.run_once()
    assert scene.link.jobs[job].state == "WAITING"
    assert (scene.link.jobs[job].outcomes[0].outcome, scene.link.jobs[job].outcomes[0].reason) == (
        "DECLINED",
        "no such account",
    )


async def test_a_job_of_which_a_route_can_make_nothing_takes_another_and_not_that_one_again(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A", eval_set_RequestCpus="Threads"), a_route("B"))
    jobs = scene.link.submit(4, WantJobRouter=True, Threads="many")
    await scene.rounds(4)
    assert scene.spread() == {"B": 4}
    assert max(scene.link.jobs[job].attempt for job in jobs) == 2
    assert "RequestCpus" in scene.link.jobs[jobs[0]].outcomes[0].reason


async def test_the_feed_is_followed_from_where_it_was_left(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(MaxJobs=10))
    scene.link.submit(2_500, WantJobRouter=True)
    await scene.rounds()
    await scene.router.stop()
    scene.link.read = 0
    scene.start()
    await scene.rounds()
    assert scene.link.read < 20
    scene.place().finish()
    await scene.rounds()
    assert scene.link.states() == {"DONE": 10, "MATCHED": 10, "WAITING": 2480}


async def test_a_full_route_costs_no_look_at_the_jobs_that_wait(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(MaxJobs=10))
    scene.link.submit(5_000, WantJobRouter=True)
    await scene.rounds()
    looked_at = scene.link.looked_at
    await scene.rounds(20)
    assert scene.link.looked_at == looked_at <= 1000


async def test_jobs_that_no_route_takes_are_looked_at_once(scene: RouterScene) -> None:
    scene.link.submit(3_000)
    await scene.rounds(5)
    assert scene.link.looked_at == 3_000
    change_table(scene, a_route("B"))
    await scene.rounds(5)
    assert scene.link.looked_at == 6_000


async def test_what_a_job_fulfils_with_time_alone_is_seen_within_ten_minutes(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A", "time() - TARGET.QDate > 3600"))
    start_s = int(scene.clock().timestamp())
    (job,) = scene.link.submit(QDate=start_s)
    while not scene.spread():
        scene.link.jobs[job].ad["MyCurrentTime"] = int(scene.clock().timestamp())
        await scene.rounds(every_s=300)
    assert 3600 < scene.clock().timestamp() - start_s <= 4500
    assert scene.link.looked_at <= 10


async def test_jobs_that_pilots_take_meanwhile_are_left_to_them(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(MaxJobs=2))
    jobs = scene.link.submit(10, WantJobRouter=True)
    await scene.rounds()
    for job in jobs[2:9]:
        scene.link.take(job)
    scene.place().finish()
    await scene.rounds()
    assert [copy.job_id for copy in scene.place().copies.values()] == jobs[9:]


async def test_a_dry_run_says_what_would_be_sent_and_why_not_and_changes_nothing(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A", MaxJobs=2), a_route("B", "false"))
    scene.link.submit(5, WantJobRouter=True)
    assert await scene.router.dry_run() == (
        "A -> queue SITE/ce/A: 2 jobs (1, 2); it has 0 of 2 copies, 0 idle of 50",
        "B -> queue SITE/ce/B: no job; it has 0 of 100 copies, 0 idle of 50",
        "3 jobs would go on waiting",
    )
    assert set(scene.link.calls) == {"next_events", "look_at", "copies"}
    assert scene.spread() == {}


def written(path: Path) -> Any:
    return json.loads(path.read_text())


async def test_a_mark_that_cannot_be_read_lets_the_feed_be_read_anew(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path)
    scene.link.submit(3, WantJobRouter=True)
    await scene.rounds()
    path = tmp_path / "router" / "feed.json"
    assert written(path)["position"] > 0
    path.write_text("[" + os.linesep)
    scene.link.submit(3, WantJobRouter=True)
    scene.start()
    await scene.rounds()
    assert scene.spread() == {"A": 6}
