"""Folders of attempts and pilots: their removal, and their reuse by later jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pilotage_pilot.supervise.folders import PilotFolder, remove_leftovers
from support.pilot_bench import a_job
from support.pilot_ports import PayloadBench, a_payload_runner
from support.processes import shell_job, until


async def test_attempt_folder_is_removed_despite_closed_subfolders(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        job = shell_job("mkdir -p a/b/c; touch a/b/c/x; chmod 0 a/b/c a/b a; touch $TMPDIR/y")
        await bench.run(job)
        bench.payload_runner.remove(job.key)
        await until(lambda: not list(tmp_path.glob("*/jobs/*")))


def test_only_folders_of_dead_pilots_are_removed(tmp_path: Path) -> None:
    living = PilotFolder(tmp_path)
    dead = PilotFolder(tmp_path)
    (dead.jobs / "1.1").mkdir()
    os.close(dead._lock)
    assert remove_leftovers(tmp_path) == (dead.path,)
    assert living.path.exists()
    living.remove()
    assert list(tmp_path.iterdir()) == []


def test_folder_of_another_users_dead_pilot_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = PilotFolder(tmp_path)
    os.close(dead._lock)
    with monkeypatch.context() as other_user:
        other_user.setattr(os, "getuid", lambda: dead.path.stat().st_uid + 1)
        assert remove_leftovers(tmp_path) == ()
    assert dead.path.exists()
    assert remove_leftovers(tmp_path) == (dead.path,)


def test_concurrent_starts_remove_no_live_folder(tmp_path: Path) -> None:
    def start(_: int) -> tuple[tuple[Path, ...], PilotFolder]:
        return remove_leftovers(tmp_path), PilotFolder(tmp_path)

    with ThreadPoolExecutor(8) as pilots:
        started = list(pilots.map(start, range(200)))
    assert [removed for removed, _ in started if removed] == []
    assert all(folder.jobs.is_dir() for _, folder in started)
    for _, folder in started:
        folder.remove()


DEEP = "import os; [(os.mkdir('d' * 100), os.chdir('d' * 100)) for _ in range(1200)]"
REMOVE_LEFTOVERS = """
import sys; from pathlib import Path; from pilotage_pilot.supervise.folders import remove_leftovers
remove_leftovers(Path(sys.argv[1]))
"""


def remove_leftovers_unprivileged(scratch: Path) -> None:
    """Remove leftovers in a process that is subject to file modes, even if the test runs as root."""
    prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    subprocess.run([*prefix, sys.executable, "-c", REMOVE_LEFTOVERS, scratch], check=True)


@pytest.mark.parametrize(
    "job",
    [
        ["sh", "-c", "mkdir -p 1/2/3/4/5/6/7; touch 1/2/3/x; find . -depth -mindepth 1 -type d -exec chmod 0 {} +"],
        ["sh", "-c", "ln -s / root; ln -s nowhere lost; mkdir -- -rf"],
        [sys.executable, "-c", DEEP],
    ],
    ids=["closed folders", "unusual names", "a deep folder"],
)
def test_leftovers_of_jobs_are_removed_with_the_pilot_folder(tmp_path: Path, job: list[str]) -> None:
    dead = PilotFolder(tmp_path)
    os.close(dead._lock)
    subprocess.run(job, cwd=dead.jobs, check=True)
    remove_leftovers_unprivileged(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_later_pilot_removes_what_an_unprivileged_one_could_not(tmp_path: Path) -> None:
    dead = PilotFolder(tmp_path)
    os.close(dead._lock)
    (dead.jobs / "others").mkdir()
    (dead.jobs / "others" / "file").touch()
    os.chown(dead.jobs / "others", 65534, 65534)
    remove_leftovers_unprivileged(tmp_path)
    assert [path.name for path in dead.jobs.iterdir()] == ["others"]
    assert remove_leftovers(tmp_path) == (dead.path,)
    assert list(tmp_path.iterdir()) == []


def test_concurrent_cleanups_remove_each_folder_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    for _ in range(20):
        dead = [PilotFolder(tmp_path) for _ in range(3)]
        for folder in dead:
            os.close(folder._lock)
        with ThreadPoolExecutor(4) as pilots:
            removed = [path for paths in pilots.map(remove_leftovers, [tmp_path] * 4) for path in paths]
        assert sorted(removed) == sorted(folder.path for folder in dead), "each folder is removed once"
    assert tmp_path.stat().st_mode & 0o7777 == 0o1777


SLEEPS = a_job(2, executable="/bin/sleep", arguments="600")
STREAM_NAMES = ["stderr", "stdout"]


async def run_to_end(bench: PayloadBench, script: str) -> int:
    """Run a script, remove its attempt and return the inode number of its work folder."""
    key = await bench.start(job := shell_job(script))
    inode = bench.work_folder(key).stat().st_ino
    await bench.next_exit()
    bench.payload_runner.remove(job.key)
    return inode


async def test_empty_folder_is_reused_by_the_next_job(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        inode = await run_to_end(bench, "touch x $TMPDIR/y; rm x $TMPDIR/y")
        work = bench.work_folder(await bench.start(SLEEPS))
        assert work.stat().st_ino == inode
        assert os.listdir(work.parent.parent) == ["2.1"]


async def test_reused_folder_has_no_streams_of_the_last_job(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        await run_to_end(bench, "true")
        other = await bench.start(a_job(2, executable="/bin/sleep", arguments="600", stdout="out", stderr="out"))
        assert os.listdir(bench.work_folder(other)) == ["out"]
        # An input file may have the name of a stream.
        file = bench.an_input("stdout", b"read me first")
        await bench.start(a_job(3, executable="/bin/sleep", arguments="600", input_files=(file,)))


@pytest.mark.parametrize(
    "script",
    [
        "echo secret",
        "echo secret >&2",
        "touch x",
        "touch $TMPDIR/x",
        "touch ../x",
        "rm stdout",
        "chmod 644 stdout",
        "chmod 755 .",
        "chmod 755 $TMPDIR",
        "rmdir $TMPDIR; ln -s / $TMPDIR",
        "ln stdout ../../../link",
        'python3 -c \'import os; os.setxattr(".", "user.mark", b"x")\'',
    ],
)
async def test_next_job_gets_a_folder_like_a_new_one(tmp_path: Path, script: str) -> None:
    async with a_payload_runner(tmp_path) as bench:
        await run_to_end(bench, script)
        work = bench.work_folder(await bench.start(SLEEPS))
        root, temporary = work.parent, work.parent / "tmp"
        assert sorted(os.listdir(work)) == STREAM_NAMES
        assert (os.listdir(temporary), sorted(os.listdir(root))) == ([], ["private-tmp", "tmp", "work"])
        assert not temporary.is_symlink()
        assert {path.stat().st_mode & 0o777 for path in (root, work, temporary)} == {0o700}
        assert [os.listxattr(path) for path in (root, work, temporary)] == [[]] * 3
        states = [(work / name).stat() for name in STREAM_NAMES]
        assert [(state.st_size, state.st_nlink, state.st_mode & 0o777) for state in states] == [(0, 1, 0o600)] * 2
