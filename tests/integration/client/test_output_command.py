"""What `pilotage output` and others say of the files that a job left, against a real server."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.job_description import JobDescription
from pilotage.v1 import jobs_pb2
from support.commands import Command, environment_of
from support.server import RunningServer
from support.wire_grid import WireGrid


class Left:
    """Jobs that have ended and what they left, and the command of their owner."""

    def __init__(self, grid: WireGrid, home: Path) -> None:
        self.grid = grid
        token = grid.server.token(vo=grid.vo)
        self.pilotage = Command(environment_of(home, PILOTAGE_SERVER=grid.server.address, PILOTAGE_TOKEN=token))

    def job(self, description: JobDescription, *truncated: str, **files: bytes) -> int:
        """Run an array's jobs, of which each leaves the same files; returns the last of them."""
        job_ids = self.grid.submit(description)
        pilot = self.grid.start_pilot()
        for _ in job_ids:
            (job,) = pilot.ask().matches
            outputs = [output_file(name, content, name in truncated) for name, content in files.items()]
            facts = {"outcome": jobs_pb2.OUTCOME_EXITED, "exit_code": 0, "output_files": outputs}
            assert pilot.report(job.job_id, job.attempt, **facts).accepted
        return job_ids[-1]


def output_file(name: str, content: bytes, truncated: bool) -> jobs_pb2.OutputFile:
    checksum = hashlib.sha256(content).hexdigest()
    return jobs_pb2.OutputFile(name=name, checksum=checksum, size=len(content), content=content, truncated=truncated)


@pytest.fixture
def left(shared_server: RunningServer, tmp_path: Path) -> Iterator[Left]:
    grid = WireGrid(shared_server)
    grid.put_tree()
    try:
        yield Left(grid, tmp_path)
    finally:
        grid.close()


def test_each_job_of_an_array_has_its_own_standard_output(left: Left) -> None:
    job = left.job(JobDescription("/bin/true", stdout="out.$(Process)", count=2), **{"out.1": b"one\n"})
    assert left.pilotage("output", job) == "one\n"


def test_a_file_that_is_not_whole_is_told_wherever_the_job_is_shown(left: Left, tmp_path: Path) -> None:
    job = left.job(JobDescription("/bin/true"), "stdout", stdout=b"12345", stderr=b"")
    note = "is truncated: the pilot cut it at 5 bytes\n"
    for words in (("output", job), ("output", job, "--to", tmp_path / "files"), ("logs", job)):
        assert left.pilotage.run(*words).stderr == f"pilotage: stdout {note}"
    assert left.pilotage.run("status", job).stderr == f"pilotage: stdout of job {job} {note}"
    assert "yes" in left.pilotage("output", job, "--list").splitlines()[2]
    files = left.pilotage.objects("output", job)
    assert files == [
        {"name": "stderr", "size": 0, "truncated": False},
        {"name": "stdout", "size": 5, "truncated": True},
    ]
    assert left.pilotage.run("status", job, "--json").stderr == ""


def test_a_job_that_left_only_errors_says_where_they_are(left: Left) -> None:
    for files in ({"stdout": b"", "its errors": b"oh\n"}, {"its errors": b"oh\n"}):
        job = left.job(JobDescription("/bin/true", stderr="its errors"), **files)
        done = left.pilotage.run("output", job)
        assert done.returncode == (0 if "stdout" in files else 1)
        hint = f"pilotage output {job} --file 'its errors'"
        assert done.stderr.splitlines()[0] == (
            f"pilotage: job {job} has printed nothing; its standard error has 3 bytes: {hint}"
        )
        assert left.pilotage("output", job, "--file", "its errors") == "oh\n"


def test_a_file_that_is_not_there_is_told_with_those_that_are(left: Left, tmp_path: Path) -> None:
    job = left.job(JobDescription("/bin/true"), stdout=b"x", other=b"y")
    done = left.pilotage.run("output", job, "--file", "none")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"pilotage: job {job} has no output file none; it has other, stdout\n"
    (line,) = left.pilotage("output", job, "--to", tmp_path, "--file", "other", "--json").splitlines()
    assert json.loads(line) == {"name": "other", "size": 1, "truncated": False, "path": str(tmp_path / "other")}
    assert (tmp_path / "other").read_text() == "y"
    assert not (tmp_path / "stdout").exists()


def test_list_and_to_do_not_go_together(left: Left, tmp_path: Path) -> None:
    assert left.pilotage.run("output", 1, "--list", "--to", tmp_path).stderr == "--list: cannot be combined with --to\n"


def test_bytes_that_are_no_text_come_as_they_are(left: Left) -> None:
    content = bytes(range(256)) * 100
    job = left.job(JobDescription("/bin/true"), stdout=content)
    command = ["pilotage", "output", str(job)]
    done = subprocess.run(command, env=left.pilotage.environment, stdout=subprocess.PIPE, timeout=60, check=True)
    assert done.stdout == content
