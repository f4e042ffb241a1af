"""Hooks of the job router: real commands that see copies begin, run and end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pilotage_agents.router.core.model import RoutedJobState
from support.router_scene import RouterScene, a_route, hooked_scene, written


@pytest.fixture
def hooked(tmp_path: Path) -> Callable[..., RouterScene]:
    """Return what makes a scene with hooks."""
    return partial(hooked_scene, tmp_path)


async def test_translate_sees_route_and_job_and_says_what_the_route_starts_from(
    tmp_path: Path, hooked: Callable[..., RouterScene]
) -> None:
    scene = hooked(
        translate="cat > $HERE/given; grep -v Secret $HERE/given | sed -n '/^------$/,$p' | sed 1d; echo 'X = 2 * 3'"
    )
    (job,) = scene.link.submit(WantJobRouter=True, Secret=r"c:\new", Path=r"c:\new")
    await scene.rounds()
    route, between, *lines = written(tmp_path, "given").splitlines()
    assert route == '[Name = "A"; TargetUniverse = 9; GridResource = "batch A"]'
    assert between == "------"
    assert r'Path = "c:\new"' in lines
    ad = scene.place().of_job(job).ad
    assert (ad["X"], ad["Path"], ad["Color"], "Secret" in ad) == (6, r"c:\new", "blue", False)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'no space' >&2; exit 3", "hook translate: no space"),
        ("echo 'this is no ad'", "is not of the form Name = value"),
        ("echo 'X = 1 +'", "its output is not an ad"),
        ("sleep 60", "no answer within 0.3 s"),
        ("head -c 2000000 /dev/zero | tr '\\0' x", "prints more than"),
    ],
)
async def test_a_job_whose_translation_fails_is_not_sent_and_that_counts_as_a_failure(
    hooked: Callable[..., RouterScene], script: str, why: str
) -> None:
    scene = hooked(translate=script, timeout_s=0.3 if "sleep" in script else 10.0)
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds(2)
    assert scene.spread() == {}
    (end,) = scene.link.jobs[job].outcomes
    assert (scene.link.jobs[job].state, end.outcome) == ("WAITING", "DECLINED")
    assert why in end.reason
    assert "1 failed" in scene.link.told[-1].routes[0].throttled


async def test_no_more_than_eight_hooks_of_a_route_run_at_a_time_whatever_the_number_of_jobs(
    tmp_path: Path, hooked: Callable[..., RouterScene]
) -> None:
    scene = hooked(
        translate="cat > $HERE/$$.given; mkdir $HERE/now.$$; ls -d $HERE/now.* | wc -l >> $HERE/counts; "
        "sed '1,/^------$/d' $HERE/$$.given; rmdir $HERE/now.$$"
    )
    scene.put_table(a_route(MaxJobs=60, MaxIdleJobs=-1))
    scene.link.submit(60, WantJobRouter=True)
    await scene.rounds()
    assert scene.spread() == {"A": 60}
    assert max(map(int, written(tmp_path, "counts").split())) <= 8


async def test_finalise_sees_the_job_with_its_end_and_the_copy(
    tmp_path: Path, hooked: Callable[..., RouterScene]
) -> None:
    scene = hooked(finalise="cat > $HERE/given", update="cat > $HERE/update; echo 'Progress = 70'")
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.place().move(RoutedJobState.RUNNING)
    await scene.rounds()
    scene.place().move(RoutedJobState.COMPLETED, of=RoutedJobState.RUNNING, exit_code=7)
    await scene.rounds()
    source, copy = written(tmp_path, "given").split("------\n")
    assert "ExitCode = 7\n" in source
    assert "Progress = 70\n" in source
    assert 'Color = "blue"' not in source
    assert 'Color = "blue"\n' in copy
    assert f'RoutedFromJobId = "{job}"\n' in copy
    assert 'Color = "blue"\n' in written(tmp_path, "update")
    assert scene.link.jobs[job].state == "FAILED"


async def test_a_job_that_cannot_be_finalised_waits_again_and_that_counts_as_a_failure(
    hooked: Callable[..., RouterScene],
) -> None:
    scene = hooked(finalise="echo 'no route to host' >&2; exit 1")
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.place().finish()
    await scene.rounds(2)
    assert (scene.link.jobs[job].state, scene.link.jobs[job].outcomes[0].outcome) == ("WAITING", "EVICTED")
    assert scene.link.jobs[job].outcomes[0].reason == "hook finalise: no route to host"
    assert "1 failed" in scene.link.told[-1].routes[0].throttled


@pytest.mark.parametrize("end", ["done", "removed", "vanished", "refused"])
async def test_cleanup_runs_at_every_end_and_until_it_goes_well(
    tmp_path: Path, hooked: Callable[..., RouterScene], end: str
) -> None:
    scene = hooked(
        cleanup="grep RoutedFromJobId >> $HERE/cleaned || echo none >> $HERE/cleaned; test -e $HERE/may",
        finalise="echo once >> $HERE/finalised",
    )
    (job,) = scene.link.submit(WantJobRouter=True)
    if end == "refused":
        scene.place().refuses = "no such account"
    await scene.rounds()
    if end == "done":
        scene.place().finish()
    elif end == "removed":
        scene.link.remove(job)
    elif end == "vanished":
        scene.place().move(RoutedJobState.GONE)
    await scene.rounds(2)
    assert scene.link.jobs[job].outcomes == [], "nothing ends before all is clean"
    (tmp_path / "here" / "may").touch()
    await scene.rounds(8)
    assert len(scene.link.jobs[job].outcomes) >= 1
    lines = written(tmp_path, "cleaned").splitlines()
    assert len(lines) >= 2
    assert set(lines) <= {f'RoutedFromJobId = "{job}"', "none"}
    if end == "done":
        assert written(tmp_path, "finalised") == "once\n"


async def test_jobs_choose_their_hooks_by_keyword(tmp_path: Path, hooked: Callable[..., RouterScene]) -> None:
    scene = hooked(default="", translate="cat >> $HERE/given; exit 1")
    scene.link.submit(WantJobRouter=True)
    scene.link.submit(WantJobRouter=True, HookKeyword="nobody's")
    await scene.rounds()
    assert scene.spread() == {"A": 2}
    scene.link.submit(WantJobRouter=True, HookKeyword="Staging")
    await scene.rounds()
    assert scene.spread() == {"A": 2}
    assert 'HookKeyword = "Staging"' in written(tmp_path, "given")


async def test_a_router_that_starts_again_runs_the_hooks_of_the_copies_that_it_adopts(
    tmp_path: Path, hooked: Callable[..., RouterScene]
) -> None:
    scene = hooked(finalise="cat > $HERE/given", cleanup="cat > $HERE/cleaned")
    (job,) = scene.link.submit(WantJobRouter=True)
    await scene.rounds()
    scene.start()
    scene.place().finish()
    await scene.rounds()
    assert 'Color = "blue"\n' in written(tmp_path, "given").split("------\n")[1]
    assert 'Color = "blue"\n' in written(tmp_path, "cleaned")
    assert scene.link.jobs[job].state == "DONE"
    assert list((tmp_path / "shared" / "hooks").iterdir()) == []
