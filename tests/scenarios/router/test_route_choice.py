"""Which jobs take which routes, and how many, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage_agents.router.core.model import RoutedJobState
from support.router_scene import RouterScene, a_route


@pytest.fixture
def scene(tmp_path: Path) -> RouterScene:
    return RouterScene(tmp_path)


async def test_route_refills_up_to_max_jobs(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(MaxJobs=500, MaxIdleJobs=-1))
    scene.link.submit(10_000, WantJobRouter=True)
    target = scene.target()
    for _ in range(3):
        await scene.run_cycles()
        assert len(target.copies) == 500
        target.move(RoutedJobState.RUNNING)
        await scene.run_cycles()
        assert target.move(RoutedJobState.COMPLETED, of=RoutedJobState.RUNNING, most=200, exit_code=0) == 200
    await scene.run_cycles()
    assert scene.link.states() == {"DONE": 600, "MATCHED": 200, "RUNNING": 300, "WAITING": 8900}


async def test_started_job_makes_room_for_one_more_idle_job(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A", MaxIdleJobs=10), a_route("B", MaxIdleJobs=10))
    scene.link.submit(100, WantJobRouter=True)
    await scene.run_cycles(3)
    assert scene.spread() == {"A": 10, "B": 10}
    scene.target("A").move(RoutedJobState.RUNNING, most=1)
    await scene.run_cycles()
    assert scene.spread() == {"A": 11, "B": 10}


async def test_requeued_job_at_the_target_counts_as_idle(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(MaxIdleJobs=10))
    scene.link.submit(100, WantJobRouter=True)
    await scene.run_cycles()
    scene.target().move(RoutedJobState.RUNNING)
    await scene.run_cycles()
    assert scene.spread() == {"A": 20}
    scene.target().move(RoutedJobState.IDLE, of=RoutedJobState.RUNNING)
    await scene.run_cycles()
    assert scene.spread() == {"A": 20}


async def test_equal_routes_get_jobs_round_robin(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A"), a_route("B"), a_route("C", MaxJobs=5))
    scene.link.submit(45, WantJobRouter=True)
    await scene.run_cycles()
    assert scene.spread() == {"A": 20, "B": 20, "C": 5}


async def test_first_route_gets_all_jobs_without_round_robin(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path)
    scene.table.write_text(
        "JOB_ROUTER_ROUND_ROBIN_SELECTION = False\nJOB_ROUTER_ROUTE_NAMES = A B\n"
        'JOB_ROUTER_ROUTE_A @=end\nGridResource = "batch A"\nREQUIREMENTS WantJobRouter\nMaxIdleJobs = 7\n@end\n'
        'JOB_ROUTER_ROUTE_B @=end\nGridResource = "batch B"\nREQUIREMENTS WantJobRouter\n@end\n'
    )
    scene.link.submit(10, WantJobRouter=True)
    await scene.run_cycles()
    assert scene.spread() == {"A": 7, "B": 3}


async def test_max_jobs_of_the_table_limits_all_routes_together(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path)
    scene.table.write_text(
        "JOB_ROUTER_MAX_JOBS = 5\nJOB_ROUTER_ROUTE_NAMES = A B\n"
        'JOB_ROUTER_ROUTE_A @=end\nGridResource = "batch A"\nREQUIREMENTS WantJobRouter\n@end\n'
        'JOB_ROUTER_ROUTE_B @=end\nGridResource = "batch B"\nREQUIREMENTS WantJobRouter\n@end\n'
    )
    scene.link.submit(10, WantJobRouter=True)
    await scene.run_cycles()
    assert scene.spread() == {"A": 3, "B": 2}
    scene.target("B").finish()
    await scene.run_cycles()
    assert sum(scene.spread().values()) == 5


async def test_jobs_that_match_no_route_stay_waiting(scene: RouterScene) -> None:
    scene.link.submit(5)
    scene.link.submit(5, WantJobRouter=False)
    (routable,) = scene.link.submit(1, WantJobRouter=True)
    await scene.run_cycles()
    assert scene.spread() == {"A": 1}
    assert scene.link.jobs[routable].state == "MATCHED"
    assert scene.link.states() == {"MATCHED": 1, "WAITING": 10}


async def test_attribute_selects_the_route(tmp_path: Path) -> None:
    scene = RouterScene(
        tmp_path, a_route("A", 'TARGET.Dataset == "MinBias"'), a_route("B", 'TARGET.Dataset == "TTbar"')
    )
    scene.link.submit(3, Dataset="MinBias")
    scene.link.submit(4, Dataset="ttbar")
    await scene.run_cycles()
    assert scene.spread() == {"A": 3, "B": 4}
