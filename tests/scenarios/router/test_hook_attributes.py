"""Attributes that update hooks print: the router reports changes to the server once and within bounds."""

from __future__ import annotations

from pathlib import Path

from pilotage.jobs.report_limits import MAX_ATTRIBUTES
from pilotage_agents.router.core.model import RoutedJobState
from support.router_scene import RouterScene, hooked_scene

PRINT_ATTRIBUTES = "cat $HERE/says"


async def running(folder: Path, text: str, jobs: int = 1) -> tuple[RouterScene, list[int]]:
    """Return a scene with running routed jobs whose hooks have printed `text`, and the jobs."""
    scene = hooked_scene(folder, update=PRINT_ATTRIBUTES)
    set_output(folder, text)
    ids = scene.link.submit(jobs, WantJobRouter=True)
    await scene.run_cycles()
    scene.target().move(RoutedJobState.RUNNING)
    await scene.run_cycles()
    return scene, ids


def set_output(folder: Path, text: str) -> None:
    (folder / "here" / "says").write_text(text)


async def test_printed_attributes_appear_in_the_original_job(tmp_path: Path) -> None:
    scene, (job,) = await running(tmp_path, 'Progress = 70\nStage = "in"\nHosts = { "n1", "n2" }\n')
    assert scene.link.jobs[job].hook_attributes == [{"Progress": 70, "Stage": "in", "Hosts": ("n1", "n2")}]
    assert scene.link.jobs[job].shown["Progress"] == 70


async def test_attributes_are_reported_whole_and_only_when_they_change(tmp_path: Path) -> None:
    scene, (job,) = await running(tmp_path, 'Progress = 70\nStage = "in"\n')
    reports = scene.link.calls.count("report")
    await scene.run_cycles(3)
    assert scene.link.calls.count("report") - reports == 3, "one call per cycle, for unwanted jobs"
    set_output(tmp_path, "Progress = 80\n")
    await scene.run_cycles(2)
    set_output(tmp_path, "")
    await scene.run_cycles(2)
    scene.target().move(RoutedJobState.COMPLETED, of=RoutedJobState.RUNNING, exit_code=0)
    await scene.run_cycles()
    assert scene.link.jobs[job].state == "DONE"
    assert scene.link.jobs[job].hook_attributes == [{"Progress": 70, "Stage": "in"}, {"Progress": 80, "Stage": "in"}]


async def test_next_router_reports_attributes_again(tmp_path: Path) -> None:
    scene, (job,) = await running(tmp_path, "Progress = 70\n")
    set_output(tmp_path, "")
    scene.start(folder="elsewhere")
    await scene.run_cycles(3)
    assert scene.link.jobs[job].hook_attributes == [{"Progress": 70}] * 2


async def test_rejected_attributes_are_reported_again(tmp_path: Path) -> None:
    scene, (job,) = await running(tmp_path, "")
    set_output(tmp_path, "Progress = 70\n")
    scene.link.malformed_jobs = [job]
    await scene.run_cycles(2)
    scene.link.malformed_jobs = []
    await scene.run_cycles(2)
    assert scene.link.jobs[job].hook_attributes == [{"Progress": 70}]


async def test_excessive_attributes_do_not_prevent_the_outcome(tmp_path: Path) -> None:
    many = "".join(f"A{number} = {number}\n" for number in range(200))
    scene, jobs = await running(tmp_path, f'X = MY.A1 + 1\nLong = "{"x" * 30_000}"\n{many}', jobs=3)
    scene.target().move(RoutedJobState.COMPLETED, of=RoutedJobState.RUNNING, exit_code=0)
    await scene.run_cycles()
    for job in jobs:
        (reported,) = scene.link.jobs[job].hook_attributes
        assert (len(reported), "X" in reported) == (MAX_ATTRIBUTES, False)
        assert scene.link.jobs[job].state == "DONE"
