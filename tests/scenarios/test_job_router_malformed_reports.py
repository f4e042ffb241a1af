"""What a job router does with reports that the server cannot take for what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage_agents.router.route_edges import CopyState
from support.router_scene import RouterScene


@pytest.fixture
def scene(tmp_path: Path) -> RouterScene:
    return RouterScene(tmp_path)


@pytest.mark.parametrize("state", [CopyState.RUNNING, CopyState.COMPLETED])
async def test_a_copy_of_which_the_server_cannot_take_the_report_is_kept(scene: RouterScene, state: CopyState) -> None:
    bad, good = scene.link.submit(2, WantJobRouter=True)
    await scene.rounds()
    for job, node in ((bad, "n\0"), (good, "n17")):
        scene.place().tell(job, state, node=node, exit_code=0 if state is CopyState.COMPLETED else None)
    await scene.rounds(3)
    assert [scene.link.jobs[job].state for job in (bad, good)] == [
        "MATCHED",
        "RUNNING" if state is CopyState.RUNNING else "DONE",
    ]
    assert f"ref:pilotage-{bad}-1" not in scene.place().forgotten + scene.place().cancelled


async def test_the_report_of_such_a_copy_is_sent_again_with_each_look(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.place().tell(job, CopyState.RUNNING, node="n\0")
    await scene.rounds(3)
    scene.place().tell(job, CopyState.COMPLETED, node="n17", exit_code=0)
    await scene.rounds(2)
    assert scene.link.jobs[job].history == ["WAITING", "MATCHED", "DONE"]


async def test_a_report_that_cannot_be_taken_is_not_sent_again_before_the_next_look(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.place().tell(job, CopyState.RUNNING, node="n\0")
    before = scene.link.calls.count("report")
    await scene.rounds()
    assert scene.link.calls.count("report") - before == 2, "one asks what is unwanted, the other tells"
