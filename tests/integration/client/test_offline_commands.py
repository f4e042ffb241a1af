"""Commands without a server on real files: conversion of job files, and errors of files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import json_objects, pilotage, run, tree

__all__ = ["tree"]

KEYS = [
    "executable", "arguments", "requirements", "requirements_expression", "site", "banned_sites", "platform",
    "cpu_time_s", "request_cpus", "request_memory_mb", "request_disk_mb", "request_gpus", "input_files",
    "output_files", "stdout", "stderr", "environment", "attributes", "count", "warnings",
]  # fmt: skip


def test_convert_prints_one_json_object_per_line(shared_data: Path) -> None:
    done = pilotage("convert", shared_data / "data/jdl/DIRAC__Test_ParametricJob.py_L49.jdl", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    jobs = json_objects(done.stdout)
    assert [list(job) for job in jobs] == [KEYS] * 3
    assert [job["arguments"] for job in jobs] == ["1 a", "3 b", "7 c"]
    assert [job["attributes"]["JobName"] for job in jobs] == ["Test_0", "Test_1", "Test_2"]
    assert {job["requirements"] for job in jobs} == {None}


def test_convert_error_has_file_line_and_cause(shared_data: Path) -> None:
    file = shared_data / "data/jdl/WMS-Test-Suite__dag2.jdl"
    done = pilotage("convert", file)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{file}:2: a DAG is not supported\n"


@pytest.mark.parametrize(("folder", "files"), [("jdl", 54), ("submit", 72)])
def test_convert_reads_every_real_file_or_names_the_line(folder: str, files: int, shared_data: Path) -> None:
    count = 0
    for file in sorted((shared_data / "data" / folder).iterdir()):
        result = run("convert", file, "--json", "--ignore-unsupported")
        count += 1
        if result.exit_code == 0:
            jobs = json_objects(result.stdout)
            assert jobs
            assert all([key for key in job if key != "notify"] == KEYS and job["executable"] for job in jobs), file
        else:
            first = json.loads(result.stderr)["error"]["violations"][0]
            line, cause = first["where"].removeprefix(f"{file}:"), first["why"]
            assert (result.exit_code, result.stdout, line.isdigit()) == (2, "", True), file
            assert cause
    assert count == files


def test_unsupported_statements_refuse_all_files_with_advice(tmp_path: Path) -> None:
    one, two = tmp_path / "one.sub", tmp_path / "two.jdl"
    one.write_text("executable = a\nnice_user = true\nconcurrency_limits = a\nqueue 3\n")
    two.write_text('Executable = "a";\nSplit = "se";\n')
    advice = "jobs would run without these statements; --ignore-unsupported submits them so"
    (tmp_path / "token").write_text("x")
    done = run("submit", "--server", "127.0.0.1:1", "--token-file", tmp_path / "token", one, two)
    assert done.exit_code == 2
    places = [line.partition(" = ")[0] for line in done.stderr.splitlines()]
    assert places == [
        *(f"{one}:2: nice_user", f"{one}:3: concurrency_limits", f"{one}: {advice}"),
        *(f"{two}:2: Split", f"{two}: {advice}"),
    ]
    assert run("convert", one).exit_code == 2
    (job,) = json_objects(run("convert", one, "--json", "--ignore-unsupported").stdout)
    assert [warning.partition(": ")[0] for warning in job["warnings"] if "ignored" in warning] == [
        "nice_user is ignored",
        "concurrency_limits is ignored",
    ]


def test_convert_prints_only_its_own_error(tmp_path: Path) -> None:
    file = tmp_path / "job.sub"
    file.write_text("executable = x\nif nonsense\nqueue\nendif\n")
    done = pilotage("convert", file)
    assert (done.returncode, done.stderr) == (2, f"{file}:2: not a submit command: if nonsense\n")


@pytest.mark.parametrize(
    ("content", "line", "cause"),
    [
        (None, "", "no such file or directory"),
        (b"", ":1", "there is no Executable"),
        (b"\x7fELF\0\0", ":1", "not a text"),
        (b'Executable = "a";\nX = <y>;\n', ":2", "X: <y> is not a ClassAd expression; is this a template that was not"),
    ],
)
def test_error_of_file_without_job_has_its_name(content: bytes | None, line: str, cause: str, tmp_path: Path) -> None:
    file = tmp_path / "job.jdl"
    if content is not None:
        file.write_bytes(content)
    result = run("convert", file)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{file}{line}: {cause}")


@pytest.mark.parametrize("command", [["convert"], ["tree", "resolve"], ["tree", "eligible", "--vo", "cms"]])
def test_folder_or_missing_file_is_an_error(command: list[str], tmp_path: Path) -> None:
    for path, cause in ((tmp_path, "is a directory"), (tmp_path / "none.json", "no such file or directory")):
        result = run(*command, path)
        assert (result.exit_code, result.stderr) == (2, f"{path}: {cause}\n")


@pytest.mark.parametrize("command", [["convert"], ["tree", "resolve"]])
def test_endless_file_is_rejected(command: list[str], tmp_path: Path) -> None:
    endless = tmp_path / "endless.json"
    endless.symlink_to("/dev/zero")
    result = run(*command, endless)
    assert (result.exit_code, result.stderr) == (2, f"{endless}: file too large\n")


def test_convert_omits_unset_fields_without_json_option(tmp_path: Path) -> None:
    (tmp_path / "job.jdl").write_text('Executable = "a"; Requirements = [ Tags = { "é" } ];')
    printed = json.loads(run("convert", tmp_path / "job.jdl").stdout)
    assert printed == {"executable": "a", "requirements": {"Tags": ["é"]}, "attributes": {}, "warnings": []}


def test_language_option_selects_the_reader(tmp_path: Path) -> None:
    (tmp_path / "job").write_text('executable = "a"\nqueue = 3\n')
    assert "queue is not a key of a job" in run("convert", tmp_path / "job", "--language", "toml").stderr
    assert "is a semicolon missing?" in run("convert", tmp_path / "job", "--language", "jdl").stderr
    assert "there is no queue statement" in run("convert", tmp_path / "job", "--language", "submit").stderr


def test_closed_output_pipe_is_no_error(shared_data: Path) -> None:
    command = [str(Path(sys.executable).with_name("pilotage")), "tree", "resolve"]
    tree = shared_data / "data/resources/tree.json"
    with subprocess.Popen([*command, tree, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        assert process.wait(60) == 0


def test_full_disk_is_one_error_line(tree: Path) -> None:
    with open("/dev/full", "w") as full:
        done = pilotage("tree", "resolve", tree, stdout=full.fileno())
    assert (done.returncode, done.stderr) == (1, "pilotage: no space left on device\n")
