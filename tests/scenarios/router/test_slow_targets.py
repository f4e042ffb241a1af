"""A job router and targets that are slow or hang: nothing else waits for them, and nothing is done twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pilotage_agents.router.core.model import RoutedJobState
from support.router_scene import TARGET_TIMEOUT_S, RouterScene, StuckPlace, a_route, a_stuck_place, target_of

METHODS = ("submit", "find_again", "poll", "collect", "cancel", "forget")


async def bring_all_home(scene: RouterScene, *routes: str, rounds: int = 40) -> None:
    """Let copies run and end until nothing changes any more."""
    for _ in range(rounds):
        await scene.rounds()
        for route in routes:
            scene.place(route).finish()
            scene.place(route).move(RoutedJobState.COMPLETED, of=RoutedJobState.RUNNING, exit_code=0)


async def stuck_in(scene: RouterScene, place: StuckPlace, method: str) -> None:
    """Let a router come to where the place hangs in a method."""
    place.loses_answers = method == "find_again"
    scene.link.submit(4, WantJobRouter=True)
    await scene.rounds()
    if method == "cancel":
        for job in scene.link.jobs.values():
            if job.copy is not None and job.copy.route == "A":
                scene.link.remove(job.job_id)
    scene.place("A").finish(most=0 if method == "cancel" else 10**9)
    await scene.rounds(3)
    assert method in place.hung


@pytest.mark.parametrize("method", METHODS)
async def test_a_place_that_hangs_in_any_of_its_methods_keeps_no_other_from_its_work(
    tmp_path: Path, method: str
) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B"))
    place = a_stuck_place(scene, "A", method)
    await stuck_in(scene, place, method)
    scene.link.submit(10, WantJobRouter=True)
    await bring_all_home(scene, "B", rounds=8)
    assert len(scene.place("B").made) >= 7, "its share of the ten, and of the first four"
    assert scene.place("B").copies == {}, "all that it had has come home"
    place.let_go.set()
    await bring_all_home(scene, "A", "B")
    gone = 2 if method == "cancel" else 0
    assert scene.link.states() == {"DONE": 14 - gone, **({"REMOVED": gone} if gone else {})}
    assert {**place.made, **scene.place("B").made}.keys() == {f"pilotage-{job}-1" for job in scene.link.jobs}
    assert {*place.made.values(), *scene.place("B").made.values()} == {1}
    assert scene.spread() == {}


async def test_copies_that_are_on_their_way_are_neither_looked_for_nor_ended(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    place = a_stuck_place(scene, "A", "submit")
    scene.link.submit(3, WantJobRouter=True)
    await scene.rounds(100)
    assert place.hung == ["submit"]
    assert place.asked == []
    assert scene.link.states() == {"MATCHED": 3}


async def test_a_route_gets_no_more_jobs_while_its_target_has_not_taken_the_last_ones(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B"))
    place = a_stuck_place(scene, "A", "submit")
    scene.link.submit(2, WantJobRouter=True)
    await scene.rounds()
    scene.link.submit(10, WantJobRouter=True)
    await scene.rounds(2)
    assert (place.hung, len(scene.place("B").made)) == (["submit"], 11)


@pytest.mark.parametrize("after", [True, False], ids=["after it was made", "before it was made"])
async def test_a_job_that_is_removed_while_its_copy_is_on_its_way_has_it_stopped_once_it_has_arrived(
    tmp_path: Path, after: bool
) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    place = a_stuck_place(scene, "A", "submit", after=after)
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.link.remove(job)
    await scene.rounds(3)
    assert (scene.link.jobs[job].outcomes, place.asked, place.cancelled) == ([], [], [])
    place.let_go.set()
    await scene.rounds(3)
    assert (place.cancelled, place.forgotten) == ([f"ref:pilotage-{job}-1"], [f"pilotage-{job}-1"])
    assert [end.outcome for end in scene.link.jobs[job].outcomes] == ["KILLED"]


async def test_what_a_copy_left_is_fetched_no_further_once_its_job_is_removed(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    place = a_stuck_place(scene, "A", "collect")
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    place.finish()
    await scene.rounds(3)
    assert scene.link.jobs[job].state == "COMPLETING"
    assert [asked for asked in place.asked if asked.startswith("collect")] == [f"collect ref:pilotage-{job}-1"]
    scene.link.remove(job)
    await scene.rounds(3)
    assert place.cut_off == ["collect"]
    assert [end.outcome for end in scene.link.jobs[job].outcomes] == ["KILLED"]
    assert place.forgotten == [f"pilotage-{job}-1"]


async def test_output_that_takes_long_comes_home_whole_as_long_as_it_moves_on(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    place = a_stuck_place(scene, "A", slow_s=0.9 * TARGET_TIMEOUT_S)
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    place.finish()
    await scene.rounds(20)
    assert scene.link.jobs[job].state == "DONE"
    assert list(scene.link.jobs[job].output) == ["stdout"]
    assert len([asked for asked in place.asked if asked.startswith("collect")]) == 1


async def test_a_copy_whose_output_does_not_move_is_asked_for_it_again_and_its_neighbours_come_home(
    tmp_path: Path,
) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    place = a_stuck_place(scene, "A", "collect")
    first, second = scene.link.submit(2, WantJobRouter=True)
    place.only = f"ref:pilotage-{first}-1"
    await scene.rounds()
    place.finish()
    await scene.rounds(2)
    place.time.advance(TARGET_TIMEOUT_S)
    (third,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    place.finish()
    await scene.rounds()
    assert [scene.link.jobs[job].state for job in (first, second, third)] == ["COMPLETING", "DONE", "DONE"]
    place.let_go.set()
    await scene.rounds(3)
    assert scene.link.states() == {"DONE": 3}


async def test_files_that_are_long_on_their_way_to_the_server_hold_up_nothing_else(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B"), round_waits_s=0.1)
    scene.link.submit(2, WantJobRouter=True)
    await scene.rounds()
    scene.link.takes_files.clear()
    scene.place("A").finish()
    await scene.rounds(2)
    scene.link.submit(2, WantJobRouter=True)
    scene.place("B").move(RoutedJobState.RUNNING)
    await scene.rounds(2)
    assert scene.link.states() == {"COMPLETING": 1, "MATCHED": 2, "RUNNING": 1}
    scene.link.takes_files.set()
    await scene.rounds(2)
    assert scene.link.states() == {"DONE": 1, "MATCHED": 2, "RUNNING": 1}


async def test_copies_that_come_home_for_long_do_not_count_as_idle(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A", MaxIdleJobs=2))
    place = a_stuck_place(scene, "A", "collect")
    scene.link.submit(4, WantJobRouter=True)
    await scene.rounds()
    place.finish()
    await scene.rounds(2)
    assert len(place.made) == 4


@pytest.mark.parametrize("after", [True, False], ids=["after it was made", "before it was made"])
async def test_a_turn_that_is_lost_amid_a_submission_ends_it_before_another_router_acts(
    tmp_path: Path, after: bool
) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    first, place = scene.router, a_stuck_place(scene, "A", "submit", after=after)
    jobs = scene.link.submit(3, WantJobRouter=True)
    await scene.rounds()
    first.leadership_lost()
    place.let_go.set()
    scene.start(folder="second")
    await bring_all_home(scene, "A")
    assert place.cut_off == ["submit"]
    assert scene.link.states() == {"DONE": 3}
    assert set(place.made.values()) == {1}
    assert {end.outcome for job in jobs for end in scene.link.jobs[job].outcomes} == (
        {"EXITED"} if after else {"EVICTED", "EXITED"}
    )
    scene.router = first
    first.leadership_gained()
    await scene.rounds(2)
    assert scene.link.states() == {"DONE": 3}


@pytest.mark.parametrize("method", ["submit", "poll", "collect", "forget"])
async def test_a_router_that_is_stopped_leaves_nothing_going_on(tmp_path: Path, method: str) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B"))
    place = a_stuck_place(scene, "A", method)
    await stuck_in(scene, place, method)
    await scene.router.stop()
    assert set(place.cut_off) == {method}
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_single_round_waits_for_what_it_has_begun(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    place = a_stuck_place(scene, "A", "submit")
    (job,) = scene.link.submit(WantJobRouter=True)
    single = asyncio.create_task(scene.router.run_to_completion())
    while not place.hung:
        await asyncio.wait([single], timeout=0.01)
    assert not single.done()
    place.let_go.set()
    await single
    assert scene.link.jobs[job].reference == f"ref:pilotage-{job}-1"


async def test_a_fault_of_our_own_in_one_place_is_logged_and_keeps_no_other_from_its_work(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B"))
    place = a_stuck_place(scene, "A", "poll")
    scene.link.submit(4, WantJobRouter=True)
    await scene.rounds(2)
    del place.statuses  # what the place itself cannot do without
    place.let_go.set()
    with capture_logs() as logs:
        await bring_all_home(scene, "B", rounds=3)
    assert scene.link.states()["DONE"] == 2
    (target,) = {line["target"] for line in logs if line["log_level"] == "error"}
    assert target == str(target_of("A"))


async def test_copies_that_may_live_on_are_stopped_again_at_each_look_and_not_in_between(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"))
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    place = scene.place("A")
    del scene.link.jobs[job]
    scene.router.leadership_gained()
    place.is_reachable = False
    for _ in range(5):
        await scene.router.run_once()
    assert len(place.cancelled) == 1
    await scene.rounds(2)
    assert len(place.cancelled) == 2
