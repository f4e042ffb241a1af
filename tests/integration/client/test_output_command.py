"""`pilotage output` and others on the output files of ended jobs, with a running server."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.job_description import JobDescription
from pilotage.v1 import jobs_pb2
from support.commands import Command, environment_of
from support.server import RunningServer
from support.wire_grid import WireGrid


class EndedJobs:
    """Jobs that have ended with output files, and the command line of their owner."""

    def __init__(self, grid: WireGrid, home: Path) -> None:
        self.grid = grid
        self.end: dict[str, Any] = {"outcome": jobs_pb2.OUTCOME_EXITED, "exit_code": 0}
        """How the jobs end."""
        token = grid.server.token(vo=grid.vo)
        self.pilotage = Command(environment_of(home, PILOTAGE_SERVER=grid.server.address, PILOTAGE_TOKEN=token))

    def job(self, description: JobDescription, *truncated: str, **files: bytes) -> int:
        """End each job of an array with these output files; return the last job."""
        job_ids = self.grid.submit(description)
        pilot = self.grid.start_pilot()
        for _ in job_ids:
            (job,) = pilot.request_jobs().matches
            outputs = [output_file(name, content, name in truncated) for name, content in files.items()]
            assert pilot.report(job.job_id, job.attempt, **self.end, output_files=outputs).accepted
        return job_ids[-1]


def output_file(name: str, content: bytes, truncated: bool) -> jobs_pb2.OutputFile:
    checksum = hashlib.sha256(content).hexdigest()
    return jobs_pb2.OutputFile(name=name, checksum=checksum, size=len(content), content=content, truncated=truncated)


@pytest.fixture
def ended_jobs(shared_server: RunningServer, tmp_path: Path) -> Iterator[EndedJobs]:
    grid = WireGrid(shared_server)
    grid.put_tree()
    try:
        yield EndedJobs(grid, tmp_path)
    finally:
        grid.close()


def test_each_job_of_an_array_has_its_own_output(ended_jobs: EndedJobs) -> None:
    job = ended_jobs.job(JobDescription("/bin/true", stdout="out.$(Process)", count=2), **{"out.1": b"one\n"})
    assert ended_jobs.pilotage("output", job) == "one\n"


def test_truncated_output_is_reported_by_every_command(ended_jobs: EndedJobs, tmp_path: Path) -> None:
    job = ended_jobs.job(JobDescription("/bin/true"), "stdout", stdout=b"12345", stderr=b"")
    note = "is truncated: the pilot cut it at 5 bytes\n"
    for command in (("output", job), ("output", job, "--to", tmp_path / "files"), ("events", job)):
        assert ended_jobs.pilotage.run(*command).stderr == f"pilotage: stdout {note}"
    assert ended_jobs.pilotage.run("status", job).stderr == f"pilotage: stdout of job {job} {note}"
    assert "yes" in ended_jobs.pilotage("output", job, "--list").splitlines()[2]
    files = ended_jobs.pilotage.json_objects("output", job)
    assert files == [
        {"name": "stderr", "size": 0, "truncated": False},
        {"name": "stdout", "size": 5, "truncated": True},
    ]
    assert ended_jobs.pilotage.run("status", job, "--json").stderr == ""


def test_empty_output_hints_at_standard_error(ended_jobs: EndedJobs) -> None:
    for files in ({"stdout": b"", "its errors": b"oh\n"}, {"its errors": b"oh\n"}):
        job = ended_jobs.job(JobDescription("/bin/true", stderr="its errors"), **files)
        done = ended_jobs.pilotage.run("output", job)
        assert done.returncode == (0 if "stdout" in files else 1)
        hint = f"pilotage output {job} --file 'its errors'"
        assert done.stderr.splitlines()[0] == (
            f"pilotage: job {job} has printed nothing; its standard error has 3 bytes: {hint}"
        )
        assert ended_jobs.pilotage("output", job, "--file", "its errors") == "oh\n"


def test_error_of_missing_file_lists_existing_ones(ended_jobs: EndedJobs, tmp_path: Path) -> None:
    job = ended_jobs.job(JobDescription("/bin/true"), stdout=b"x", other=b"y")
    done = ended_jobs.pilotage.run("output", job, "--file", "none")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"pilotage: job {job} has no output file none; it has other, stdout\n"
    (line,) = ended_jobs.pilotage("output", job, "--to", tmp_path, "--file", "other", "--json").splitlines()
    assert json.loads(line) == {"name": "other", "size": 1, "truncated": False, "path": str(tmp_path / "other")}
    assert (tmp_path / "other").read_text() == "y"
    assert not (tmp_path / "stdout").exists()


def test_list_and_to_cannot_be_combined(ended_jobs: EndedJobs, tmp_path: Path) -> None:
    assert (
        ended_jobs.pilotage.run("output", 1, "--list", "--to", tmp_path).stderr
        == "--list: cannot be combined with --to\n"
    )


def test_binary_output_is_printed_unchanged(ended_jobs: EndedJobs) -> None:
    content = bytes(range(256)) * 100
    job = ended_jobs.job(JobDescription("/bin/true"), stdout=content)
    command = ["pilotage", "output", str(job)]
    done = subprocess.run(command, env=ended_jobs.pilotage.environment, stdout=subprocess.PIPE, timeout=60, check=True)
    assert done.stdout == content


def test_each_attempt_of_a_retried_job_has_its_end_and_output(ended_jobs: EndedJobs, tmp_path: Path) -> None:
    (job,) = ended_jobs.grid.submit(JobDescription("/bin/true", retries=1))
    pilot = ended_jobs.grid.start_pilot()
    for exit_code in (3, 0):
        (match,) = pilot.request_jobs().matches
        files = [output_file("stdout", f"exit {exit_code}\n".encode(), False)]
        fields = {"outcome": jobs_pb2.OUTCOME_EXITED, "exit_code": exit_code, "output_files": files}
        fields["peak_memory_mib"] = 700 + exit_code
        assert pilot.report(job, match.attempt, **fields).accepted
    pilotage = ended_jobs.pilotage
    assert pilotage("output", job) == "exit 0\n"
    assert pilotage("output", job, "--attempt", 1) == "exit 3\n"
    assert pilotage("output", job, "--attempt", 1, "--to", tmp_path / "first") == f"{tmp_path}/first/stdout\n"
    missing = pilotage.run("output", job, "--attempt", 3)
    assert (missing.returncode, missing.stderr) == (2, f"pilotage: there is no attempt 3 of job {job}\n")
    (status,) = pilotage.json_objects("status", job)
    attempts = [(each["attempt"], each["outcome"], each["exit_code"], each["reason"]) for each in status["attempts"]]
    assert attempts == [(1, "exited", 3, "exit code 3"), (2, "exited", 0, None)]
    assert [each["usage"]["peak_memory_mib"] for each in status["attempts"]] == [703, 700]
    table = pilotage("status", job).splitlines()
    assert [line.split()[:4] for line in table[4:]] == [[str(job), "1", "exited", "3"], [str(job), "2", "exited", "0"]]
    assert ["703" in line for line in table[4:]] == [True, False]
    assert "retried" in pilotage("events", job)


def test_logs_prints_a_stream_of_an_ended_job(ended_jobs: EndedJobs) -> None:
    job = ended_jobs.job(JobDescription("/bin/true"), stdout=b"out\n", stderr=b"err\n")
    for options in ((), ("--follow",)):
        assert ended_jobs.pilotage("logs", job, *options) == "out\n"
        assert ended_jobs.pilotage("logs", job, "--stderr", *options) == "err\n"


def test_why_of_a_failed_job_names_the_command_that_shows_its_errors(ended_jobs: EndedJobs) -> None:
    ended_jobs.end = {"outcome": jobs_pb2.OUTCOME_EXITED, "exit_code": 3}
    job = ended_jobs.job(JobDescription("/bin/true"), stderr=b"err\n")
    first, second, *_ = ended_jobs.pilotage("why", job).splitlines()
    assert first.startswith(f"Job {job} is FAILED.")
    assert second == f"What it printed: `pilotage logs {job}`; its standard error: `pilotage logs {job} --stderr`"
    assert "Queues:" not in ended_jobs.pilotage("why", job)


def test_output_of_stopped_job_is_called_partial(ended_jobs: EndedJobs) -> None:
    ended_jobs.end = {"outcome": jobs_pb2.OUTCOME_LIMIT_EXCEEDED, "reason": "too much"}
    job = ended_jobs.job(JobDescription("/bin/true"), stdout=b"half\n")
    stop = "was stopped (limit exceeded: too much)"
    done = ended_jobs.pilotage.run("output", job)
    note = f"pilotage: the output of job {job} is partial: attempt 1 {stop}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "half\n", note)
    done = ended_jobs.pilotage.run("logs", job)
    assert (done.returncode, done.stdout, done.stderr) == (0, "half\n", f"pilotage: attempt 1 {stop}\n")


def test_logs_of_waiting_job_is_refused(ended_jobs: EndedJobs) -> None:
    (job,) = ended_jobs.grid.submit(JobDescription("/bin/true"))
    done = ended_jobs.pilotage.run("logs", job)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"pilotage: job {job} is WAITING, and no attempt of it has run yet\n"
