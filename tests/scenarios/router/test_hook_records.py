"""Records of hooks: each routed job with hooks is cleaned up once, by whichever router ends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.errors import WorldError
from pilotage_agents.router.core.model import RoutedJobState
from pilotage_agents.router.hooks import HookRecords
from support.router_scene import hooked_scene, written

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
    await scene.rounds()
    scene.place().move(RoutedJobState.RUNNING)
    await scene.rounds()
    scene.router = second
    scene.place().move(RoutedJobState.COMPLETED, of=RoutedJobState.RUNNING, exit_code=0)
    await scene.rounds()
    source, routed_job = written(tmp_path, "given").split("------\n")
    assert "Progress = 70\n" in source
    assert 'Color = "blue"\n' in routed_job
    assert written(tmp_path, "cleaned") == cleaned(job)
    assert scene.link.jobs[job].state == "DONE"
    assert records(tmp_path) == []


async def test_next_router_does_not_finalise_again(tmp_path: Path) -> None:
    scene = hooked_scene(
        tmp_path, finalise="echo once >> $HERE/finalised", cleanup=f"test -e $HERE/may && {APPEND_JOB_ID}"
    )
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.place().finish()
    await scene.rounds(2)
    scene.start(folder="elsewhere")
    (tmp_path / "here" / "may").touch()
    await scene.rounds(2)
    assert written(tmp_path, "finalised") == "once\n"
    assert written(tmp_path, "cleaned") == cleaned(job)


async def test_routed_job_with_a_rejected_report_is_cleaned_up(tmp_path: Path) -> None:
    scene = hooked_scene(tmp_path, cleanup=APPEND_JOB_ID)
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.link.jobs[job].holder = 0
    scene.place().move(RoutedJobState.RUNNING)
    await scene.rounds(8)
    assert scene.place().cancelled == [f"ref:pilotage-{job}-1"]
    assert written(tmp_path, "cleaned") == cleaned(job)
    assert records(tmp_path) == []


async def test_unlisted_routed_job_is_cleaned_up_after_its_cancellation(tmp_path: Path) -> None:
    scene = hooked_scene(tmp_path, cleanup=APPEND_JOB_ID)
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.link.jobs[job].holder = 0
    scene.place().is_reachable = False
    await scene.rounds(60)
    assert written(tmp_path, "cleaned") == "", "it may still run"
    scene.place().is_reachable = True
    await scene.rounds(60)
    assert scene.place().cancelled[0] == f"ref:pilotage-{job}-1"
    assert written(tmp_path, "cleaned") == cleaned(job)
    assert records(tmp_path) == []


async def test_next_router_retries_cleanup_until_it_succeeds(tmp_path: Path) -> None:
    scene = hooked_scene(tmp_path, cleanup=f"test -e $HERE/may && {APPEND_JOB_ID}")
    jobs = scene.link.submit(20, WantJobRouter=True)
    await scene.rounds()
    for job in jobs:
        del scene.link.jobs[job]
    scene.start(folder="elsewhere")
    await scene.rounds()
    assert len(records(tmp_path)) == 20
    (tmp_path / "here" / "may").touch()
    await scene.rounds(20)
    assert sorted(written(tmp_path, "cleaned").splitlines()) == sorted(cleaned(*jobs).splitlines())
    assert records(tmp_path) == []


async def test_unreadable_record_does_not_prevent_completion(tmp_path: Path) -> None:
    scene = hooked_scene(tmp_path, cleanup=APPEND_JOB_ID)
    first, second = scene.link.submit(2, WantJobRouter=True)
    await scene.rounds()
    (tmp_path / "shared" / "hooks" / f"pilotage-{first}-1.json").write_text('{"form": 99}')
    scene.start(folder="elsewhere")
    scene.place().finish()
    await scene.rounds()
    assert scene.link.states() == {"DONE": 2}
    assert written(tmp_path, "cleaned") == cleaned(second)


def test_missing_shared_folder_is_an_error(tmp_path: Path) -> None:
    assert HookRecords(tmp_path / "router" / "hooks").names() == frozenset()
    with pytest.raises(WorldError, match="is not there"):
        HookRecords(tmp_path / "mount" / "router" / "hooks").names()
