"""Hooks of the job router: real commands that run at the start, updates and end of routed jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pilotage_agents.router.core.model import RoutedJobState
from pilotage_agents.router.hooks import HookKind, HookSettings
from support.router_scene import RouterScene, a_route, hook_output, hooked_scene


@pytest.fixture
def hooked(tmp_path: Path) -> Callable[..., RouterScene]:
    """Return a maker of scenes with hooks."""
    return partial(hooked_scene, tmp_path)


async def test_translate_hook_reads_route_and_job_and_prints_an_ad(
    tmp_path: Path, hooked: Callable[..., RouterScene]
) -> None:
    scene = hooked(
        translate="cat > $HERE/given; grep -v Secret $HERE/given | sed -n '/^------$/,$p' | sed 1d; echo 'X = 2 * 3'"
    )
    (job,) = scene.link.submit(WantJobRouter=True, Secret=r"c:\new", Path=r"c:\new")
    await scene.run_cycles()
    route, between, *lines = hook_output(tmp_path, "given").splitlines()
    assert route == '[Name = "A"; TargetUniverse = 9; GridResource = "batch A"]'
    assert between == "------"
    assert r'Path = "c:\new"' in lines
    ad = scene.target().of_job(job).ad
    assert (ad["X"], ad["Path"], ad["Color"], "Secret" in ad) == (6, r"c:\new", "blue", False)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'no space' >&2; exit 3", "hook translate: no space"),
        ("echo 'this is no ad'", "is not of the form Name = value"),
        ("echo 'X = 1 +'", "its output is not an ad"),
        ("sleep 60", "no answer within 0.3 s"),
        ("head -c 2000000 /dev/zero | tr '\\0' x", "prints more than"),
    ],
)
async def test_failing_translate_declines_the_job_and_counts_as_failure(
    hooked: Callable[..., RouterScene], script: str, reason: str
) -> None:
    scene = hooked(translate=script, timeout_s=0.3 if "sleep" in script else 10.0)
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles(2)
    assert scene.spread() == {}
    (end,) = scene.link.jobs[job].outcomes
    assert (scene.link.jobs[job].state, end.outcome) == ("WAITING", "DECLINED")
    assert reason in end.reason
    assert "1 failed" in scene.link.published[-1].routes[0].throttled


async def test_at_most_eight_hooks_of_a_route_run_at_a_time(tmp_path: Path, hooked: Callable[..., RouterScene]) -> None:
    scene = hooked(
        translate="cat > $HERE/$$.given; mkdir $HERE/now.$$; ls -d $HERE/now.* | wc -l >> $HERE/counts; "
        "sed '1,/^------$/d' $HERE/$$.given; rmdir $HERE/now.$$"
    )
    scene.put_table(a_route(MaxJobs=60, MaxIdleJobs=-1))
    scene.link.submit(60, WantJobRouter=True)
    await scene.run_cycles()
    assert scene.spread() == {"A": 60}
    assert max(map(int, hook_output(tmp_path, "counts").split())) <= 8


async def test_finalise_reads_the_completed_job_and_the_routed_job(
    tmp_path: Path, hooked: Callable[..., RouterScene]
) -> None:
    scene = hooked(finalise="cat > $HERE/given", update="cat > $HERE/update; echo 'Progress = 70'")
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.target().move(RoutedJobState.RUNNING)
    await scene.run_cycles()
    scene.target().move(RoutedJobState.COMPLETED, of=RoutedJobState.RUNNING, exit_code=7)
    await scene.run_cycles()
    source, routed_job = hook_output(tmp_path, "given").split("------\n")
    assert "ExitCode = 7\n" in source
    assert "Progress = 70\n" in source
    assert 'Color = "blue"' not in source
    assert 'Color = "blue"\n' in routed_job
    assert f'RoutedFromJobId = "{job}"\n' in routed_job
    assert 'Color = "blue"\n' in hook_output(tmp_path, "update")
    assert scene.link.jobs[job].state == "FAILED"


async def test_failing_finalise_requeues_the_job_and_counts_as_failure(
    hooked: Callable[..., RouterScene],
) -> None:
    scene = hooked(finalise="echo 'no route to host' >&2; exit 1")
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.target().finish()
    await scene.run_cycles(2)
    assert (scene.link.jobs[job].state, scene.link.jobs[job].outcomes[0].outcome) == ("WAITING", "EVICTED")
    assert scene.link.jobs[job].outcomes[0].reason == "hook finalise: no route to host"
    assert "1 failed" in scene.link.published[-1].routes[0].throttled


@pytest.mark.parametrize("end", ["done", "removed", "vanished", "refused"])
async def test_cleanup_runs_after_every_end_until_it_succeeds(
    tmp_path: Path, hooked: Callable[..., RouterScene], end: str
) -> None:
    scene = hooked(
        cleanup="grep RoutedFromJobId >> $HERE/cleaned || echo none >> $HERE/cleaned; test -e $HERE/may",
        finalise="echo once >> $HERE/finalised",
    )
    (job,) = scene.link.submit(WantJobRouter=True)
    if end == "refused":
        scene.target().refuses = "no such account"
    await scene.run_cycles()
    if end == "done":
        scene.target().finish()
    elif end == "removed":
        scene.link.remove(job)
    elif end == "vanished":
        scene.target().move(RoutedJobState.GONE)
    await scene.run_cycles(2)
    assert scene.link.jobs[job].outcomes == [], "no outcome is reported before the cleanup succeeds"
    (tmp_path / "here" / "may").touch()
    await scene.run_cycles(8)
    assert len(scene.link.jobs[job].outcomes) >= 1
    lines = hook_output(tmp_path, "cleaned").splitlines()
    assert len(lines) >= 2
    assert set(lines) <= {f'RoutedFromJobId = "{job}"', "none"}
    if end == "done":
        assert hook_output(tmp_path, "finalised") == "once\n"


async def test_hook_keyword_selects_the_hooks(tmp_path: Path, hooked: Callable[..., RouterScene]) -> None:
    scene = hooked(default="", translate="cat >> $HERE/given; exit 1")
    scene.link.submit(WantJobRouter=True)
    scene.link.submit(WantJobRouter=True, HookKeyword="unknown")
    await scene.run_cycles()
    assert scene.spread() == {"A": 2}
    scene.link.submit(WantJobRouter=True, HookKeyword="Staging")
    await scene.run_cycles()
    assert scene.spread() == {"A": 2}
    assert 'HookKeyword = "Staging"' in hook_output(tmp_path, "given")


async def test_restarted_router_runs_the_hooks_of_adopted_jobs(
    tmp_path: Path, hooked: Callable[..., RouterScene]
) -> None:
    scene = hooked(finalise="cat > $HERE/given", cleanup="cat > $HERE/cleaned")
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.run_cycles()
    scene.start()
    scene.target().finish()
    await scene.run_cycles()
    assert 'Color = "blue"\n' in hook_output(tmp_path, "given").split("------\n")[1]
    assert 'Color = "blue"\n' in hook_output(tmp_path, "cleaned")
    assert scene.link.jobs[job].state == "DONE"
    assert list((tmp_path / "shared" / "hooks").iterdir()) == []


# Hooks that hang -----------------------------------------------------------------------------------------------------


JOBS = 24
"""More jobs on each route than hooks of one kind that run at a time."""

TIMEOUT_S = 60.0


def hooks_that_hang_on_route_a(kind: HookKind, folder: Path) -> HookSettings:
    """Return settings with one hook that hangs for jobs on route A and works for others."""
    input_file = f"{folder}/input_file.$$"
    script = f"cat > {input_file}; grep -q '\"A\"' {input_file} && exec sleep 1000; sed '1,/^------$/d' {input_file}"
    return HookSettings({"staging": {kind: ("/bin/sh", "-c", script)}}, "STAGING", 1000.0)


@pytest.mark.parametrize("kind", HookKind)
async def test_hanging_hook_delays_no_other_route(tmp_path: Path, kind: HookKind) -> None:
    routes = (a_route("A"), a_route("B"))
    scene = RouterScene(tmp_path, *routes, hooks=hooks_that_hang_on_route_a(kind, tmp_path), cycle_wait_s=0.2)
    scene.link.submit(JOBS, WantJobRouter=True)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while done_on_route(scene, "B") < JOBS // 2:
                await scene.run_cycles()
                for target in (scene.target("A"), scene.target("B")):
                    target.move(RoutedJobState.COMPLETED, of=RoutedJobState.RUNNING, exit_code=0)
                    target.move(RoutedJobState.RUNNING)
    finally:
        await scene.router.stop()
    assert done_on_route(scene, "A") == (JOBS // 2 if kind is HookKind.UPDATE else 0), (
        "completion does not wait for an update hook"
    )


def done_on_route(scene: RouterScene, route: str) -> int:
    """Return the number of jobs that have completed on a route."""
    routed_jobs = [job.copy for job in scene.link.jobs.values() if job.state == "DONE"]
    return len([routed_job for routed_job in routed_jobs if routed_job is not None and routed_job.route == route])
