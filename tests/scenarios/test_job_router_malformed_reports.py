"""What a job router does with reports that the server cannot take for what they say."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
    scene.link.cannot_read = [bad]
    for job in (bad, good):
        scene.place().tell(job, state, exit_code=0 if state is CopyState.COMPLETED else None)
    await scene.rounds(3)
    assert [scene.link.jobs[job].state for job in (bad, good)] == [
        "MATCHED",
        "RUNNING" if state is CopyState.RUNNING else "DONE",
    ]
    assert f"ref:pilotage-{bad}-1" not in scene.place().forgotten + scene.place().cancelled


async def test_the_report_of_such_a_copy_is_sent_again_with_each_look(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.link.cannot_read = [job]
    scene.place().tell(job, CopyState.RUNNING)
    await scene.rounds(3)
    scene.link.cannot_read = []
    scene.place().tell(job, CopyState.COMPLETED, node="n17", exit_code=0)
    await scene.rounds(2)
    assert scene.link.jobs[job].history == ["WAITING", "MATCHED", "DONE"]


async def test_a_report_that_cannot_be_taken_is_not_sent_again_before_the_next_look(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.link.cannot_read = [job]
    scene.place().tell(job, CopyState.RUNNING)
    before = scene.link.calls.count("report")
    await scene.rounds()
    assert scene.link.calls.count("report") - before == 2, "one asks what is unwanted, the other tells"


@pytest.mark.parametrize(
    "said",
    [
        {"node": "n\x00\x1b[31m"},
        {"node": "n\ud800", "reason": "x" * 100_000},
        {"exit_code": 10**12, "signal": -(10**12)},
        {"cpu_s": math.nan, "wall_s": -math.inf},
        {"started": datetime(1, 1, 1, tzinfo=UTC), "ended": datetime(1969, 12, 31, tzinfo=UTC)},
    ],
    ids=["control characters", "half a character", "codes", "amounts", "times"],
)
async def test_nothing_that_a_target_says_keeps_an_end_from_being_heard(
    scene: RouterScene, said: dict[str, Any]
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.place().tell(job, CopyState.COMPLETED, **({"exit_code": 3} | said))
    await scene.rounds()
    (outcome,) = scene.link.jobs[job].outcomes
    assert (scene.link.jobs[job].state, outcome.outcome) == ("FAILED", "EXITED")
