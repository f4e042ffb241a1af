"""What a job router does with reports that the server cannot take for what they say."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pilotage_agents.router.core.model import RoutedJobReport, RoutedJobState
from pilotage_agents.router.core.routed_job import HELD_BY_TARGET
from support.router_scene import RouterScene


@pytest.fixture
def scene(tmp_path: Path) -> RouterScene:
    return RouterScene(tmp_path)


@pytest.mark.parametrize("state", [RoutedJobState.RUNNING, RoutedJobState.COMPLETED])
async def test_a_copy_of_which_the_server_cannot_take_the_report_is_kept(
    scene: RouterScene, state: RoutedJobState
) -> None:
    bad, good = scene.link.submit(2, WantJobRouter=True)
    await scene.rounds()
    scene.link.cannot_read = [bad]
    for job in (bad, good):
        scene.place().tell(job, state, exit_code=0 if state is RoutedJobState.COMPLETED else None)
    await scene.rounds(3)
    assert [scene.link.jobs[job].state for job in (bad, good)] == [
        "MATCHED",
        "RUNNING" if state is RoutedJobState.RUNNING else "DONE",
    ]
    assert f"ref:pilotage-{bad}-1" not in scene.place().forgotten + scene.place().cancelled


async def test_the_report_of_such_a_copy_is_sent_again_with_each_look(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.link.cannot_read = [job]
    scene.place().tell(job, RoutedJobState.RUNNING)
    await scene.rounds(3)
    scene.link.cannot_read = []
    scene.place().tell(job, RoutedJobState.COMPLETED, node="n17", exit_code=0)
    await scene.rounds(2)
    assert scene.link.jobs[job].history == ["WAITING", "MATCHED", "DONE"]


async def test_a_report_that_cannot_be_taken_is_not_sent_again_before_the_next_look(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.link.cannot_read = [job]
    scene.place().tell(job, RoutedJobState.RUNNING)
    before = scene.link.calls.count("report")
    await scene.rounds()
    assert scene.link.calls.count("report") - before == 2, "one asks what is unwanted, the other tells"


def dislikes_words(report: RoutedJobReport) -> str:
    """Return what a server has against what targets and hooks say."""
    outcome = report.outcome
    said = outcome is not None and (outcome.status.reason or "disk" in outcome.reason)
    return 'node: "n\u00f61\x1b" is not liked' if report.node or report.attributes or said else ""


def dislikes_files(report: RoutedJobReport) -> str:
    """Return what a server has against files."""
    return "report.output_files[0].name: is not liked" if report.outcome and report.outcome.files else ""


async def test_an_end_that_the_server_cannot_take_is_told_in_our_words_with_all_else_as_it_was(
    scene: RouterScene,
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.link.finds = dislikes_words
    ended = datetime(2026, 1, 1, 12, tzinfo=UTC)
    scene.place().tell(job, RoutedJobState.COMPLETED, node="n17", exit_code=3, wall_s=5.0, ended=ended)
    await scene.rounds(2)
    (outcome,) = scene.link.jobs[job].outcomes
    assert (scene.link.jobs[job].state, scene.link.jobs[job].output) == ("FAILED", {"stdout": b"\n"})
    assert (outcome.status.exit_code, outcome.status.wall_s, outcome.status.ended) == (3, 5.0, ended)
    assert outcome.reason == 'the server rejected the report of its end: node: "n?1?" is not liked'


async def test_an_end_of_which_the_server_cannot_take_the_files_keeps_them_for_an_hour_and_then_waits_again(
    scene: RouterScene,
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.link.finds = dislikes_files
    name = scene.place().of_job(job).name
    scene.place().tell(job, RoutedJobState.COMPLETED, exit_code=0)
    await scene.rounds(59, every_s=60)
    assert (scene.link.jobs[job].state, scene.place().forgotten) == ("MATCHED", [])
    await scene.rounds(4, every_s=60)
    (outcome,) = scene.link.jobs[job].outcomes
    assert (outcome.outcome, outcome.status.exit_code) == ("OUTPUT_LOST", 0)
    assert "report.output_files[0].name: is not liked" in outcome.reason
    assert (scene.link.jobs[job].attempt, name in scene.place().forgotten) == (2, True)


async def test_files_come_home_where_the_server_cannot_take_the_numbers_of_an_end(scene: RouterScene) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.link.finds = lambda report: "wall_s: is not liked" if report.outcome and report.outcome.status.wall_s else ""
    scene.place().tell(job, RoutedJobState.COMPLETED, exit_code=0, wall_s=5.0)
    await scene.rounds(4, every_s=60)
    (outcome,) = scene.link.jobs[job].outcomes
    assert (scene.link.jobs[job].state, scene.link.jobs[job].output) == ("DONE", {"stdout": b"\n"})
    assert (outcome.status.exit_code, outcome.status.wall_s) == (0, 0.0)


async def test_files_come_home_whole_where_the_server_can_take_them_within_the_hour(
    scene: RouterScene,
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.link.finds = dislikes_files
    scene.place().tell(job, RoutedJobState.COMPLETED, exit_code=0)
    await scene.rounds(30, every_s=60)
    scene.link.finds = lambda _: ""
    await scene.rounds()
    assert (scene.link.jobs[job].state, scene.link.jobs[job].output) == ("DONE", {"stdout": b"\n"})


async def test_a_copy_that_its_target_held_holds_its_job_also_where_its_reason_cannot_be_taken(
    scene: RouterScene,
) -> None:
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.link.finds = lambda report: "held: is not liked" if report.held and report.held != HELD_BY_TARGET else ""
    scene.place().tell(job, RoutedJobState.HELD, reason="disk full")
    await scene.rounds()
    scene.place().tell(job, RoutedJobState.GONE)
    await scene.rounds(3)
    assert (scene.link.jobs[job].state, scene.link.jobs[job].reason) == ("HELD", HELD_BY_TARGET)
    assert [each.outcome for each in scene.link.jobs[job].outcomes] == ["KILLED"]


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
    scene.place().tell(job, RoutedJobState.COMPLETED, **({"exit_code": 3} | said))
    await scene.rounds()
    (outcome,) = scene.link.jobs[job].outcomes
    assert (scene.link.jobs[job].state, outcome.outcome) == ("FAILED", "EXITED")
