"""How a job router finds waiting jobs through the feed, and at what cost, in virtual time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.router_scene import RouterScene, a_route


@pytest.fixture
def scene(tmp_path: Path) -> RouterScene:
    return RouterScene(tmp_path)


async def test_feed_is_read_from_the_saved_cursor(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(MaxJobs=10))
    scene.link.submit(2_500, WantJobRouter=True)
    await scene.run_cycles()
    await scene.router.stop()
    scene.link.read = 0
    scene.start()
    await scene.run_cycles()
    assert scene.link.read < 20
    scene.target().finish()
    await scene.run_cycles()
    assert scene.link.states() == {"DONE": 10, "MATCHED": 10, "WAITING": 2480}


async def test_full_routes_load_no_waiting_jobs(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(MaxJobs=10))
    scene.link.submit(5_000, WantJobRouter=True)
    await scene.run_cycles()
    loaded = scene.link.looked_at
    await scene.run_cycles(20)
    assert scene.link.looked_at == loaded <= 1000


async def test_jobs_without_route_are_loaded_once(scene: RouterScene) -> None:
    scene.link.submit(3_000)
    await scene.run_cycles(5)
    assert scene.link.looked_at == 3_000
    scene.change_table(a_route("B"))
    await scene.run_cycles(5)
    assert scene.link.looked_at == 6_000


async def test_time_dependent_requirements_are_reevaluated(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A", "time() - TARGET.QDate > 3600"))
    start_s = int(scene.clock().timestamp())
    (job,) = scene.link.submit(QDate=start_s)
    while not scene.spread():
        scene.link.jobs[job].ad["MyCurrentTime"] = int(scene.clock().timestamp())
        await scene.run_cycles(every_s=300)
    assert 3600 < scene.clock().timestamp() - start_s <= 4500
    assert scene.link.looked_at <= 10


async def test_jobs_that_pilots_took_are_not_routed(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route(MaxJobs=2))
    jobs = scene.link.submit(10, WantJobRouter=True)
    await scene.run_cycles()
    for job in jobs[2:9]:
        scene.link.take(job)
    scene.target().finish()
    await scene.run_cycles()
    assert [routed_job.job_id for routed_job in scene.target().copies.values()] == jobs[9:]


async def test_dry_run_reports_routable_jobs_and_changes_nothing(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path, a_route("A", MaxJobs=2), a_route("B", "false"))
    scene.link.submit(5, WantJobRouter=True)
    assert await scene.router.dry_run() == (
        "A -> queue SITE/ce/A: 2 jobs (1, 2); it has 0 of 2 copies, 0 idle of 50",
        "B -> queue SITE/ce/B: no job; it has 0 of 100 copies, 0 idle of 50",
        "3 jobs would stay waiting",
    )
    assert set(scene.link.calls) == {"next_events", "look_at", "copies"}
    assert scene.spread() == {}


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


async def test_position_of_a_lost_time_restarts_the_feed(tmp_path: Path) -> None:
    """The restored server knows neither the position nor the last job, and another job waits again."""
    scene = RouterScene(tmp_path)
    scene.link.submit(3, WantJobRouter=True)
    path = tmp_path / "router" / "feed.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"position": 1_000, "waiting": [3, 900]}))
    scene.start()
    await scene.run_cycles()
    assert scene.spread() == {"A": 3}
    await scene.router.stop()
    assert 3 <= read_json(path)["position"] <= len(scene.link.events)


async def test_unreadable_cursor_restarts_the_feed(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path)
    scene.link.submit(3, WantJobRouter=True)
    await scene.run_cycles()
    path = tmp_path / "router" / "feed.json"
    assert read_json(path)["position"] > 0
    path.write_text("[" + os.linesep)
    scene.link.submit(3, WantJobRouter=True)
    scene.start()
    await scene.run_cycles()
    assert scene.spread() == {"A": 6}
