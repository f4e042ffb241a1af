"""The folder of an attempt that left nothing serves the next one, which finds it like a new one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.pilot_bench import a_job
from support.pilot_edges import Bench, a_workshop
from support.processes import shell

SLEEPS = a_job(2, executable="/bin/sleep", arguments="600")
STREAMS = ["stderr", "stdout"]


async def end(bench: Bench, script: str) -> int:
    """Run a script to its end and forget it; returns its work folder's number in the file system."""
    key = await bench.start(job := shell(script))
    number = bench.work_of(key).stat().st_ino
    await bench.ends()
    bench.workshop.remove(job.key)
    return number


async def test_a_job_that_leaves_nothing_leaves_its_folder_to_the_next(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        number = await end(bench, "touch x $TMPDIR/y; rm x $TMPDIR/y")
        work = bench.work_of(await bench.start(SLEEPS))
        assert work.stat().st_ino == number
        assert os.listdir(work.parent.parent) == ["2.1"]


async def test_a_job_with_other_streams_or_with_input_finds_a_folder_without_those_of_the_last(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        await end(bench, "true")
        other = await bench.start(a_job(2, executable="/bin/sleep", arguments="600", stdout="out", stderr="out"))
        assert os.listdir(bench.work_of(other)) == ["out"]
        file = bench.an_input("stdout", b"read me first")
        await bench.start(a_job(3, executable="/bin/sleep", arguments="600", input_files=(file,)))


@pytest.mark.parametrize(
    "left",
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
async def test_whatever_a_job_leaves_the_next_finds_a_folder_like_a_new_one(tmp_path: Path, left: str) -> None:
    async with a_workshop(tmp_path) as bench:
        await end(bench, left)
        work = bench.work_of(await bench.start(SLEEPS))
        root, temporary = work.parent, work.parent / "tmp"
        assert sorted(os.listdir(work)) == STREAMS
        assert (os.listdir(temporary), sorted(os.listdir(root))) == ([], ["tmp", "work"])
        assert not temporary.is_symlink()
        assert {path.stat().st_mode & 0o777 for path in (root, work, temporary)} == {0o700}
        assert [os.listxattr(path) for path in (root, work, temporary)] == [[]] * 3
        states = [(work / name).stat() for name in STREAMS]
        assert [(state.st_size, state.st_nlink, state.st_mode & 0o777) for state in states] == [(0, 1, 0o600)] * 2
