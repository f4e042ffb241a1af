"""Which jobs a job router sends along which routes, and how many, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage_agents.router.core.model import RoutedJobState
from support.router_scene import RouterScene, a_route


@pytest.fixture
def scene(tmp_path: Path) -> RouterScene:
    return RouterScene(tmp_path)


async def test_never_more_copies_than_the_route_may_have_and_new_ones_as_they_finish(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(MaxJobs=500, MaxIdleJobs=-1))
    scene.link.submit(10_000, WantJobRouter=True)
    place = scene.place()
    for _ in range(3):
        await scene.rounds()
        assert len(place.copies) == 500
        place.move(RoutedJobState.RUNNING)
        await scene.rounds()
        assert place.move(RoutedJobState.COMPLETED, of=RoutedJobState.RUNNING, most=200, exit_code=0) == 200
    await scene.rounds()
    assert scene.link.states() == {"DONE": 600, "MATCHED": 200, "RUNNING": 300, "WAITING": 8900}


async def test_a_copy_that_begins_to_run_lets_one_more_idle_one_in(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A", MaxIdleJobs=10), a_route("B", MaxIdleJobs=10))
    scene.link.submit(100, WantJobRouter=True)
    await scene.rounds(3)
    assert scene.spread() == {"A": 10, "B": 10}
    scene.place("A").move(RoutedJobState.RUNNING, most=1)
    await scene.rounds()
    assert scene.spread() == {"A": 11, "B": 10}


async def test_a_copy_that_its_target_put_back_into_its_queue_is_idle_again(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(MaxIdleJobs=10))
    scene.link.submit(100, WantJobRouter=True)
    await scene.rounds()
    scene.place().move(RoutedJobState.RUNNING)
    await scene.rounds()
    assert scene.spread() == {"A": 20}
    scene.place().move(RoutedJobState.IDLE, of=RoutedJobState.RUNNING)
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
