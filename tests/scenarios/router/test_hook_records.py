"""Records of hooks: each routed job with hooks is cleaned up once, by whichever router ends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.errors import WorldError
from pilotage_agents.router.core.model import RoutedJobState
from pilotage_agents.router.hooks import HookRecords
from support.router_scene import hook_output, hooked_scene

APPEND_JOB_ID = "grep RoutedFromJobId >> $HERE/cleaned"


def records(folder: Path) -> list[str]:
    return [path.name for path in (folder / "shared" / "hooks").iterdir()]


def cleaned(*jobs: int) -> str:
    return "".join(f'RoutedFromJobId = "{job}"\n' for job in jobs)


@pytest.mark.parametrize("is_elsewhere", [True, False], ids=["on another host", "on the same host"])
async def test_new_leader_runs_the_hooks_of_the_other_routers_jobs(tmp_path: Path, is_elsewhere: bool) -> None:
    scene = hooked_scene(tmp_path, finalise="cat > $HERE/given", update="echo 'Progress = 70'", cleanup=APPEND_JOB_ID)
    second = scene.start(folder="elsewhere" if is_elsewhere else "router")  # it waits for leadership
    scene.start()
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.target().move(RoutedJobState.RUNNING)
    await scene.run_cycles()
    scene.router = second
    scene.target().move(RoutedJobState.COMPLETED, of=RoutedJobState.RUNNING, exit_code=0)
    await scene.run_cycles()
    source, routed_job = hook_output(tmp_path, "given").split("------\n")
    assert "Progress = 70\n" in source
    assert 'Color = "blue"\n' in routed_job
    assert hook_output(tmp_path, "cleaned") == cleaned(job)
    assert scene.link.jobs[job].state == "DONE"
    assert records(tmp_path) == []


async def test_next_router_does_not_finalise_again(tmp_path: Path) -> None:
    scene = hooked_scene(
        tmp_path, finalise="echo once >> $HERE/finalised", cleanup=f"test -e $HERE/may && {APPEND_JOB_ID}"
    )
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.target().finish()
    await scene.run_cycles(2)
    scene.start(folder="elsewhere")
    (tmp_path / "here" / "may").touch()
    await scene.run_cycles(2)
    assert hook_output(tmp_path, "finalised") == "once\n"
    assert hook_output(tmp_path, "cleaned") == cleaned(job)


async def test_routed_job_with_a_rejected_report_is_cleaned_up(tmp_path: Path) -> None:
    scene = hooked_scene(tmp_path, cleanup=APPEND_JOB_ID)
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.link.jobs[job].holder = 0
    scene.target().move(RoutedJobState.RUNNING)
    await scene.run_cycles(8)
    assert scene.target().cancelled == [f"ref:pilotage-{job}-1"]
    assert hook_output(tmp_path, "cleaned") == cleaned(job)
    assert records(tmp_path) == []


async def test_unlisted_routed_job_is_cleaned_up_after_its_cancellation(tmp_path: Path) -> None:
    scene = hooked_scene(tmp_path, cleanup=APPEND_JOB_ID)
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.link.jobs[job].holder = 0
    scene.target().is_reachable = False
    await scene.run_cycles(60)
    assert hook_output(tmp_path, "cleaned") == "", "it may still run"
    scene.target().is_reachable = True
    await scene.run_cycles(60)
    assert scene.target().cancelled[0] == f"ref:pilotage-{job}-1"
    assert hook_output(tmp_path, "cleaned") == cleaned(job)
    assert records(tmp_path) == []


async def test_next_router_retries_cleanup_until_it_succeeds(tmp_path: Path) -> None:
    scene = hooked_scene(tmp_path, cleanup=f"test -e $HERE/may && {APPEND_JOB_ID}")
    jobs = scene.link.submit(20, WantJobRouter=True)
    await scene.run_cycles()
    for job in jobs:
        del scene.link.jobs[job]
    scene.start(folder="elsewhere")
    await scene.run_cycles()
    assert len(records(tmp_path)) == 20
    (tmp_path / "here" / "may").touch()
    await scene.run_cycles(20)
    assert sorted(hook_output(tmp_path, "cleaned").splitlines()) == sorted(cleaned(*jobs).splitlines())
    assert records(tmp_path) == []


async def test_unreadable_record_does_not_prevent_completion(tmp_path: Path) -> None:
    scene = hooked_scene(tmp_path, cleanup=APPEND_JOB_ID)
    first, second = scene.link.submit(2, WantJobRouter=True)
    await scene.run_cycles()
    (tmp_path / "shared" / "hooks" / f"pilotage-{first}-1.json").write_text('{"form": 99}')
    scene.start(folder="elsewhere")
    scene.target().finish()
    await scene.run_cycles()
    assert scene.link.states() == {"DONE": 2}
    assert hook_output(tmp_path, "cleaned") == cleaned(second)


def test_missing_shared_folder_is_an_error(tmp_path: Path) -> None:
    assert HookRecords(tmp_path / "router" / "hooks").names() == frozenset()
    with pytest.raises(WorldError, match="is not there"):
        HookRecords(tmp_path / "mount" / "router" / "hooks").names()
