"""Start of payloads: input files, environment, streams, and faults that prevent it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pilotage.jobs.environment import DEFAULT_VARIABLES, FIXED_VARIABLES, PASSED_VARIABLES
from pilotage.jobs.files import JobFaultError
from pilotage_pilot.supervise.base import NodeFaultError
from support.pilot_bench import a_job
from support.pilot_ports import SITE, a_payload_runner
from support.processes import shell_job

_OF_THE_SHELL = ("_", "OLDPWD", "SHLVL")
_BINARY = Path("/bin/true").read_bytes()


async def test_job_reads_input_and_writes_output(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        job = shell_job(
            "cat data/in.txt; echo oops >&2; echo made > results/a.dat; exit 3",
            input_files=(bench.an_input("data/in.txt", b"hello\n"), bench.an_input("results/keep", b"")),
            output_files=("results/*.dat",),
        )
        end, files, notes = await bench.run(job)
    assert (end.exit_code, end.signal, notes) == (3, None, "")
    assert {name: file.content for name, file in files.items()} == {
        "stdout": b"hello\n",
        "stderr": b"oops\n",
        "results/a.dat": b"made\n",
    }


async def test_streams_may_be_redirected_merged_or_discarded(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        merged = shell_job("echo out; echo err >&2", stdout="logs/merged.txt", stderr="logs/merged.txt")
        _, files, _ = await bench.run(merged)
        discards = shell_job(
            "cat; echo out", 2, stdout="/dev/null", stdin="in", input_files=(bench.an_input("in", b"x"),)
        )
        _, other_files, _ = await bench.run(discards)
    assert {name: file.content for name, file in files.items()} == {"logs/merged.txt": b"out\nerr\n"}
    assert set(other_files) == {"stderr"}


async def test_environment_has_job_variables_and_no_pilot_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTAGE_PILOT_TOKEN", "secret")
    monkeypatch.setenv("SITE_SECRET", "secret")
    async with a_payload_runner(tmp_path) as bench:
        job = shell_job("env", environment={"GREETING": "good day", "PILOTAGE_ATTEMPT": "forged"}, cpus=2)
        _, files, _ = await bench.run(job)
    lines = (files["stdout"].content or b"").decode().splitlines()
    environment = dict(line.split("=", 1) for line in lines if "=" in line)
    assert environment["GREETING"] == "good day"
    assert environment["PILOTAGE_ATTEMPT"] == f"{SITE.marker}/1.1"
    assert (environment["PILOTAGE_JOB_ID"], environment["OMP_NUM_THREADS"]) == ("1", "2")
    assert environment["HOME"] == environment["PWD"] == environment["_CONDOR_SCRATCH_DIR"]
    assert "secret" not in "\n".join(lines)
    documented = {each.name for each in (*DEFAULT_VARIABLES, *FIXED_VARIABLES)}
    assert environment.keys() <= documented | {*PASSED_VARIABLES, "GREETING", *_OF_THE_SHELL}


async def test_program_among_input_files_takes_precedence(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        program = bench.an_input("true", b"#!/bin/sh\necho mine\n")
        _, files, _ = await bench.run(a_job(1, executable="true", input_files=(program,)))
        no_shebang = bench.an_input("run", b"echo without a first line $1\n")
        _, more, _ = await bench.run(a_job(2, executable="./run", arguments="x", input_files=(no_shebang,)))
    assert files["stdout"].content == b"mine\n"
    assert more["stdout"].content == b"without a first line x\n"


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"executable": "no-such-program"}, "there is no program no-such-program"),
        ({"executable": "/no/such/program"}, "there is no program /no/such/program"),
        ({"executable": "/etc/passwd"}, "may not be executed"),
        ({"executable": ""}, "names no program"),
        ({"executable": "/bin/true", "arguments": "'open"}, "arguments"),
        ({"executable": "/bin/true", "stdin": "absent"}, "standard input absent"),
        ({"executable": "/bin/true", "stdout": "../out"}, "does not stay inside"),
        ({"executable": "/bin/true", "stderr": "/tmp/err"}, "does not stay inside"),
        ({"executable": "../../bin/true"}, "does not stay inside"),
        ({"executable": "/".join(["b" * 200] * 20) + "b" * 75}, "File name too long"),
        ({"executable": "/bin/true", "stdout": "a/" * 1500 + "x"}, "has more than 100 parts"),
        ({"executable": "/bin/true", "stdout": "logs", "stderr": "logs/err"}, "logs/err cannot be opened"),
    ],
)
async def test_invalid_program_or_stream_is_the_jobs_fault(
    tmp_path: Path, description: dict[str, Any], message: str
) -> None:
    async with a_payload_runner(tmp_path) as bench:
        job = a_job(1, **description)
        await bench.prepare(job)
        with pytest.raises(JobFaultError, match=message):
            await bench.launch(job.key)


async def test_missing_interpreter_is_the_jobs_fault(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        job = a_job(1, executable="run", input_files=(bench.an_input("run", b"#!/no/such/interpreter\n"),))
        await bench.prepare(job)
        with pytest.raises(JobFaultError, match="interpreter"):
            await bench.launch(job.key)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "a/b"), "the same path"),
        (("a", "a/b/c"), "Not a directory"),
        (("a/" * 1500 + "x",), "more than 100 parts"),
    ],
)
async def test_conflicting_input_paths_are_the_jobs_fault(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    async with a_payload_runner(tmp_path) as bench:
        job = a_job(1, input_files=tuple(bench.an_input(name, b"x") for name in names))
        with pytest.raises(JobFaultError, match=message):
            await bench.prepare(job)


async def test_stream_below_an_input_file_is_the_jobs_fault(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        job = shell_job("true", stdout="out/log", input_files=(bench.an_input("out", b"x"),))
        with pytest.raises(JobFaultError, match="out/log cannot be opened"):
            await bench.start(job)


async def test_truncated_program_is_the_jobs_fault(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        truncated = bench.an_input("prog", _BINARY[:800])
        with pytest.raises(JobFaultError, match="the program prog cannot be run: it is damaged"):
            await bench.start(a_job(1, executable="prog", input_files=(truncated,)))


async def test_missing_input_is_the_jobs_fault_and_corrupt_input_the_nodes(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        missing = a_job(1, input_files=(bench.an_input("a", b"content"),))
        bench.link.files.clear()
        with pytest.raises(JobFaultError, match="a is not on the server"):
            await bench.prepare(missing)
        corrupt = a_job(2, input_files=(bench.an_input("b", b"content"),))
        bench.link.files = dict.fromkeys(bench.link.files, b"CONTENT")
        with pytest.raises(NodeFaultError, match="did not arrive as it was stored"):
            await bench.prepare(corrupt)


async def test_each_job_gets_its_own_copy_of_cached_input(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        file = bench.an_input("in", b"first")
        await bench.run(shell_job("echo changed > in", 1, input_files=(file,)))
        bench.link.files.clear()
        _, files, _ = await bench.run(shell_job("cat in", 2, input_files=(file,)))
    assert files["stdout"].content == b"first"
