"""What update hooks print of copies is told to the server: what is new, once, within bounds."""

from __future__ import annotations

from pathlib import Path

from pilotage.jobs.report_limits import MAX_ATTRIBUTES
from pilotage_agents.router.core.model import RoutedJobState
from support.router_scene import RouterScene, hooked_scene

SAYS = "cat $HERE/says"


async def running(folder: Path, says: str, jobs: int = 1) -> tuple[RouterScene, list[int]]:
    """Return a scene with running copies, after their hooks have said something, and the jobs."""
    scene = hooked_scene(folder, update=SAYS)
    say(folder, says)
    ids = scene.link.submit(jobs, WantJobRouter=True)
    await scene.rounds()
    scene.place().move(RoutedJobState.RUNNING)
    await scene.rounds()
    return scene, ids


def say(folder: Path, text: str) -> None:
    (folder / "here" / "says").write_text(text)


async def test_what_a_hook_prints_of_a_copy_is_shown_with_the_original(tmp_path: Path) -> None:
    scene, (job,) = await running(tmp_path, 'Progress = 70\nStage = "in"\nHosts = { "n1", "n2" }\n')
    assert scene.link.jobs[job].said == [{"Progress": 70, "Stage": "in", "Hosts": ("n1", "n2")}]
    assert scene.link.jobs[job].shown["Progress"] == 70


async def test_it_is_told_only_when_it_has_changed_and_then_with_all_that_was_said(tmp_path: Path) -> None:
    scene, (job,) = await running(tmp_path, 'Progress = 70\nStage = "in"\n')
    reports = scene.link.calls.count("report")
    await scene.rounds(3)
    assert scene.link.calls.count("report") - reports == 3, "at each look one asks what is unwanted, and none tells"
    say(tmp_path, "Progress = 80\n")
    await scene.rounds(2)
    say(tmp_path, "")
    await scene.rounds(2)
    scene.place().move(RoutedJobState.COMPLETED, of=RoutedJobState.RUNNING, exit_code=0)
    await scene.rounds()
    assert scene.link.jobs[job].state == "DONE"
    assert scene.link.jobs[job].said == [{"Progress": 70, "Stage": "in"}, {"Progress": 80, "Stage": "in"}]


async def test_the_next_router_tells_it_again_as_it_does_not_know_what_was_heard(tmp_path: Path) -> None:
    scene, (job,) = await running(tmp_path, "Progress = 70\n")
    say(tmp_path, "")
    scene.start(folder="elsewhere")
    await scene.rounds(3)
    assert scene.link.jobs[job].said == [{"Progress": 70}] * 2


async def test_what_the_server_has_not_heard_is_told_when_it_is_back(tmp_path: Path) -> None:
    scene, (job,) = await running(tmp_path, "")
    say(tmp_path, "Progress = 70\n")
    scene.link.cannot_read = [job]
    await scene.rounds(2)
    scene.link.cannot_read = []
    await scene.rounds(2)
    assert scene.link.jobs[job].said == [{"Progress": 70}]


async def test_what_is_said_beyond_all_bounds_keeps_no_end_from_being_heard(tmp_path: Path) -> None:
    many = "".join(f"A{number} = {number}\n" for number in range(200))
    scene, jobs = await running(tmp_path, f'X = MY.A1 + 1\nLong = "{"x" * 30_000}"\n{many}', jobs=3)
    scene.place().move(RoutedJobState.COMPLETED, of=RoutedJobState.RUNNING, exit_code=0)
    await scene.rounds()
    for job in jobs:
        (said,) = scene.link.jobs[job].said
        assert (len(said), "X" in said) == (MAX_ATTRIBUTES, False)
        assert scene.link.jobs[job].state == "DONE"
