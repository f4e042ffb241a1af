"""The folders of attempts and pilots go when they are over, whatever became of them."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pilotage_pilot.supervise.folders import PilotFolder, remove_leftovers
from support.pilot_edges import a_workshop
from support.processes import shell, until


async def test_a_forgotten_attempt_leaves_nothing_whatever_it_did_to_its_folder(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        job = shell("mkdir -p a/b/c; touch a/b/c/x; chmod 0 a/b/c a/b a; touch $TMPDIR/y")
        await bench.run(job)
        bench.workshop.remove(job.key)
        await until(lambda: not list(tmp_path.glob("*/jobs/*")))


def test_the_folder_of_a_dead_pilot_is_removed_by_the_next_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    living = PilotFolder(tmp_path)
    dead = PilotFolder(tmp_path)
    (dead.jobs / "1.1").mkdir()
    os.close(dead._lock)
    assert remove_leftovers(tmp_path) == (dead.path,)
    assert living.path.exists()
    living.remove()
    assert list(tmp_path.iterdir()) == []


def test_folder_of_a_dead_pilot_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = PilotFolder(tmp_path)
    os.close(dead._lock)
    with monkeypatch.context() as other_user:
        other_user.setattr(os, "getuid", lambda: dead.path.stat().st_uid + 1)
        assert remove_leftovers(tmp_path) == ()
    assert dead.path.exists()
    assert remove_leftovers(tmp_path) == (dead.path,)


def test_pilots_that_start_at_once_leave_each_other_their_folders(tmp_path: Path) -> None:
    def starts(_: int) -> tuple[tuple[Path, ...], PilotFolder]:
        return remove_leftovers(tmp_path), PilotFolder(tmp_path)

    with ThreadPoolExecutor(8) as pilots:
        started = list(pilots.map(starts, range(200)))
    assert [removed for removed, _ in started if removed] == []
    assert all(folder.jobs.is_dir() for _, folder in started)
    for _, folder in started:
        folder.remove()


DEEP = "import os; [(os.mkdir('d' * 100), os.chdir('d' * 100)) for _ in range(1200)]"
REMOVAL = """
import sys; from pathlib import Path; from pilotage_pilot.supervise.folders import remove_leftovers
remove_leftovers(Path(sys.argv[1]))
"""


def remove_as_a_plain_user(scratch: Path) -> None:
    """Remove leftovers in a process that meets the modes of files as a plain user does."""
    plain = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    subprocess.run([*plain, sys.executable, "-c", REMOVAL, scratch], check=True)


@pytest.mark.parametrize(
    "job",
    [
        ["sh", "-c", "mkdir -p 1/2/3/4/5/6/7; touch 1/2/3/x; find . -depth -mindepth 1 -type d -exec chmod 0 {} +"],
        ["sh", "-c", "ln -s / root; ln -s nowhere lost; mkdir -- -rf"],
        [sys.executable, "-c", DEEP],
    ],
    ids=["closed folders", "odd names", "a deep folder"],
)
def test_what_a_job_leaves_is_removed_with_its_pilots_folder(tmp_path: Path, job: list[str]) -> None:
    dead = PilotFolder(tmp_path)
    os.close(dead._lock)
    subprocess.run(job, cwd=dead.jobs, check=True)
    remove_as_a_plain_user(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_what_cannot_be_removed_now_is_removed_by_a_later_pilot(tmp_path: Path) -> None:
    dead = PilotFolder(tmp_path)
    os.close(dead._lock)
    (dead.jobs / "others").mkdir()
    (dead.jobs / "others" / "file").touch()
    os.chown(dead.jobs / "others", 65534, 65534)
    remove_as_a_plain_user(tmp_path)
    assert [path.name for path in dead.jobs.iterdir()] == ["others"]
    assert remove_leftovers(tmp_path) == (dead.path,)
    assert list(tmp_path.iterdir()) == []


def test_pilots_that_clean_up_at_once_leave_the_scratch_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    for _ in range(20):
        dead = [PilotFolder(tmp_path) for _ in range(3)]
        for folder in dead:
            os.close(folder._lock)
        with ThreadPoolExecutor(4) as pilots:
            removed = [path for each in pilots.map(remove_leftovers, [tmp_path] * 4) for path in each]
        assert sorted(removed) == sorted(folder.path for folder in dead), "each by one of them"
    assert tmp_path.stat().st_mode & 0o7777 == 0o1777
