"""Job files and the files of jobs: detection of the language, input files at submission, jobs as JSON."""

from __future__ import annotations

import hashlib
import os
from datetime import timedelta
from pathlib import Path

import pytest

from pilotage.errors import InvalidJobError
from pilotage.job_description import InputFile, JobDescription
from pilotage_client.readers import guess_language, read_jobs, read_jobs_with_files
from pilotage_client.readers.draft import ReadError, as_json
from pilotage_client.readers.files import resolve_local_files


def files_of(job: JobDescription, folder: Path) -> dict[str, InputFile]:
    return {file.name: file for file in resolve_local_files(job, folder).input_files}


def job_with(*sources: str, executable: str = "/bin/true", **fields: object) -> JobDescription:
    files = tuple(InputFile(Path(source).name or ".", source=source) for source in sources)
    return JobDescription(executable, input_files=files, **fields)  # type: ignore[arg-type]


# --- languages


@pytest.mark.parametrize(
    ("name", "text", "language"),
    [
        ("a.jdl", 'Executable = "a";', "jdl"),
        ("a.jdl", "executable = a\nqueue\n", "submit"),
        ("a.jdl.sub", 'Executable = "a";', "submit"),
        ("a.submit", "", "submit"),
        ("a.cmd", "", "submit"),
        ("a.condor", "", "submit"),
        ("A.TOML", "", "toml"),
        ("job", "executable = a\n  Queue 3\n", "submit"),
        ("job", '[\n Executable = "a";\n]', "jdl"),
        ("job", 'executable = "a"\n', "toml"),
        ("a.cfg", "Executable = a\n", "cfg"),
        ("a.cfg", "executable = a\nqueue\n", "submit"),
        ("a.cfg", '[ Executable = "a"; ]', "jdl"),
        ("a.jdl", 'Executable = "a";\n/*\nRequirements {\n*/', "jdl"),
        ("job", 'Executable = "a"\nArguments = -c "a; b"\nRequirements\n{\n  OS = el9\n}\n', "cfg"),
    ],
)
def test_guesses_language_from_name_and_text(name: str, text: str, language: str) -> None:
    assert guess_language(Path(name), text) == language


def test_error_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "a.jdl"
    file.write_text('Executable = "a";\nX = <y>;\n')
    with pytest.raises(ReadError) as caught:
        read_jobs(file)
    assert str(caught.value).startswith(f"{file}:2: ")
    assert (caught.value.file, caught.value.line) == (str(file), 2)


def test_rejects_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="no such file"):
        read_jobs(tmp_path / "missing.jdl")
    with pytest.raises(ReadError, match="is a directory"):
        read_jobs(tmp_path)
    (tmp_path / "a.jdl").write_bytes(b"Executable\n\0")
    with pytest.raises(ReadError, match=r"a\.jdl:2: not a text"):
        read_jobs(tmp_path / "a.jdl")
    with pytest.raises(ReadError, match="unknown job language cwl"):
        read_jobs(Path(__file__), language="cwl")


def test_reads_latin_1_file(tmp_path: Path) -> None:
    (tmp_path / "a.jdl").write_bytes(b'# Jos\xe9\nExecutable = "a";\n')
    assert read_jobs(tmp_path / "a.jdl")[0].executable == "a"


# --- files at submission


def test_input_file_has_checksum_and_size(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.txt").write_text("hello")
    file = files_of(job_with("data/x.txt"), tmp_path)["x.txt"]
    assert file.checksum == hashlib.sha256(b"hello").hexdigest()
    assert (file.size, file.executable) == (5, False)
    assert file.source == str(tmp_path / "data" / "x.txt")


def test_changed_file_gets_new_checksum(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("one")
    before = files_of(job_with("x"), tmp_path)["x"]
    (tmp_path / "x").write_text("other")
    assert files_of(job_with("x"), tmp_path)["x"].checksum != before.checksum


def test_folders_and_patterns_are_expanded(tmp_path: Path) -> None:
    (tmp_path / "dir" / "sub").mkdir(parents=True)
    for name in ("dir/a", "dir/sub/b", "x1.root", "x2.root"):
        (tmp_path / name).touch()
    assert set(files_of(job_with("dir"), tmp_path)) == {"dir/a", "dir/sub/b"}
    assert set(files_of(job_with("*.root"), tmp_path)) == {"x1.root", "x2.root"}
    contents = JobDescription("/bin/true", input_files=(InputFile(".", source="dir/"),))
    assert set(files_of(contents, tmp_path)) == {"a", "sub/b"}


def test_paths_are_relative_to_initialdir(tmp_path: Path) -> None:
    (tmp_path / "run0").mkdir()
    (tmp_path / "run0" / "in").touch()
    assert set(files_of(job_with("in", attributes={"Initial_Dir": "run0"}), tmp_path)) == {"in"}


def test_error_lists_all_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidJobError) as caught:
        resolve_local_files(job_with("one", "two/three", "*.none"), tmp_path)
    assert [violation.why.split(":")[0] for violation in caught.value.violations] == ["one", "two/three", "*.none"]


def test_name_that_is_too_long_is_no_local_file(tmp_path: Path) -> None:
    name = "a" * 300
    assert not files_of(job_with(executable=name, stdin=name), tmp_path)
    with pytest.raises(InvalidJobError, match="file name too long"):
        resolve_local_files(job_with(name), tmp_path)


def test_rejects_different_contents_under_one_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "x").write_text("1")
    (tmp_path / "a" / "x").write_text("2")
    with pytest.raises(InvalidJobError, match="would both be x"):
        resolve_local_files(job_with("x", "a/x"), tmp_path)
    (tmp_path / "a" / "x").write_text("1")
    assert set(files_of(job_with("x", "a/x"), tmp_path)) == {"x"}


def test_rejects_name_outside_job_folder(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(InvalidJobError, match="inside the job's folder"):
        resolve_local_files(JobDescription("a", input_files=(InputFile("../x", source="x"),)), tmp_path)


def test_rejects_names_with_invalid_characters(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).touch()
    with pytest.raises(InvalidJobError, match="lone surrogate"):
        resolve_local_files(job_with("*.txt"), tmp_path)
    with pytest.raises(InvalidJobError, match="cannot be the name of a file"):
        resolve_local_files(job_with("a\0b"), tmp_path)


def test_executable_next_to_job_file_is_transferred(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "run.sh").touch(mode=0o644)
    job = resolve_local_files(job_with(executable="bin/run.sh"), tmp_path)
    (file,) = job.input_files
    assert (job.executable, file.name, file.executable) == ("run.sh", "run.sh", True)


def test_executable_among_input_files_gets_mode(tmp_path: Path) -> None:
    (tmp_path / "run.sh").touch(mode=0o644)
    job = resolve_local_files(job_with("run.sh", executable="run.sh"), tmp_path)
    assert [file.executable for file in job.input_files] == [True]


def test_program_of_worker_node_is_not_transferred(tmp_path: Path) -> None:
    assert resolve_local_files(job_with(executable="/bin/sh"), tmp_path).input_files == ()
    assert resolve_local_files(job_with(executable="dirac-jobexec"), tmp_path).executable == "dirac-jobexec"
    (tmp_path / "Rscript").touch()
    job = job_with(executable="Rscript", attributes={"transfer_executable": "false"})
    assert resolve_local_files(job, tmp_path).input_files == ()


def test_transfer_executable_transfers_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "prog").write_text("x")
    job = job_with(executable=str(tmp_path / "prog"), attributes={"Transfer_Executable": "True"})
    resolved = resolve_local_files(job, Path("/"))
    assert (resolved.executable, resolved.input_files[0].name) == ("prog", "prog")


@pytest.mark.parametrize("program", ["src/run.sh", "./run.sh"])
def test_rejects_missing_executable_with_relative_path(tmp_path: Path, program: str) -> None:
    with pytest.raises(InvalidJobError, match=rf"executable: {program}: no such file"):
        resolve_local_files(job_with(executable=program), tmp_path)


def test_missing_image_is_named_as_image(tmp_path: Path) -> None:
    with pytest.raises(InvalidJobError, match=r"image: \./tool\.sif: no such file or directory"):
        resolve_local_files(job_with(image="./tool.sif"), tmp_path)


def test_local_standard_input_is_transferred(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x").touch()
    job = resolve_local_files(job_with(stdin="in/x"), tmp_path)
    assert (job.stdin, [file.name for file in job.input_files]) == ("x", ["x"])


@pytest.mark.parametrize(
    ("path", "expected"),
    [("./log/a.out", "log/a.out"), ("/var/log/a.out", "a.out"), ("../a.out", "a.out"), ("/dev/null", "/dev/null")],
)
def test_standard_streams_stay_inside_job_folder(path: str, expected: str, tmp_path: Path) -> None:
    assert resolve_local_files(job_with(stdout=path), tmp_path).stdout == expected


# --- jobs as JSON


def test_missing_fields_are_null_in_json() -> None:
    shown = as_json(JobDescription("/bin/true"))
    assert (shown.pop("executable"), shown.pop("attributes"), shown.pop("warnings")) == ("/bin/true", {}, [])
    assert set(shown.values()) == {None}
    assert list(shown) == [
        "arguments", "requirements", "requirements_expression", "site", "banned_sites", "platform", "cpu_time_s",
        "request_cpus", "request_memory_mb", "request_disk_mb", "request_gpus", "input_files", "output_files",
        "stdout", "stderr", "environment", "count",
    ]  # fmt: skip


def test_json_shows_fields_as_written() -> None:
    job = JobDescription(
        "run.sh",
        input_files=(InputFile("x", source="data/x"), InputFile("y")),
        requirements={"Tags": ("a", "b"), "Memory": 4000},
        sites=("CERN",),
        cpu_time=timedelta(hours=1),
        count=3,
    )
    shown = as_json(job)
    assert shown["input_files"] == ["data/x", "y"]
    assert shown["requirements"] == {"Tags": ["a", "b"], "Memory": 4000}
    assert (shown["site"], shown["cpu_time_s"], shown["count"]) == (["CERN"], 3600, 3)


def submit_file(folder: Path, text: str) -> Path:
    path = folder / "job.sub"
    path.write_text(f"{text}\nqueue\n")
    return path


def test_absolute_executable_of_submit_file_is_transferred_by_default(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "prog"
    program.parent.mkdir()
    program.write_text("x")
    (job,) = read_jobs_with_files(submit_file(tmp_path, f"executable = {program}"))
    assert (job.executable, [(file.name, file.executable) for file in job.input_files]) == ("prog", [("prog", True)])
    (local,) = read_jobs_with_files(submit_file(tmp_path, f"executable = {program}\ntransfer_executable = false"))
    assert (local.executable, local.input_files) == (str(program), ())


def test_missing_absolute_executable_belongs_to_worker_node(tmp_path: Path) -> None:
    (job,) = read_jobs_with_files(submit_file(tmp_path, "executable = /no/such/program"))
    assert (job.executable, job.input_files) == ("/no/such/program", ())


def test_absolute_executable_of_jdl_belongs_to_worker_node(tmp_path: Path) -> None:
    (tmp_path / "job.jdl").write_text('[ Executable = "/bin/sh"; ]')
    (job,) = read_jobs_with_files(tmp_path / "job.jdl")
    assert (job.executable, job.input_files) == ("/bin/sh", ())


def test_missing_files_of_all_jobs_are_named_with_the_file(tmp_path: Path) -> None:
    file = submit_file(tmp_path, "executable = a\ntransfer_input_files = $(x).in\nqueue x in (b c)\nx = d")
    with pytest.raises(InvalidJobError) as caught:
        read_jobs_with_files(file)
    assert [str(violation) for violation in caught.value.violations] == [
        f"{file}: input_files: {name}.in: no such file or directory" for name in ("b", "c", "d")
    ]


# --- user logs


@pytest.mark.parametrize(
    ("name", "text", "path"),
    [
        ("a.sub", "executable = /bin/true\nlog = logs/$(Cluster).log\nqueue\n", "logs/$(Cluster).log"),
        ("a.sub", "executable = /bin/true\ninitialdir = logs\nlog = a.log\nqueue\n", "logs/a.log"),
        ("a.sub", 'executable = /bin/true\n+UserLog = "a.log"\nqueue\n', "a.log"),
        ("a.sub", "executable = /bin/true\nlog = /dev/null\nqueue\n", "/dev/null"),
        ("a.jdl", 'Executable = "/bin/true"; UserLog = "logs/$(Process)";', "logs/$(Process)"),
        ("a.toml", 'executable = "/bin/true"\nlog = "a.log"\n', "a.log"),
    ],
)
def test_user_log_is_an_absolute_path(name: str, text: str, path: str, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    file = tmp_path / name
    file.write_text(text)
    (job,) = read_jobs_with_files(file)
    assert (job.attributes["UserLog"], job.warnings) == (str(tmp_path / path), ())


@pytest.mark.parametrize(("log", "fault"), [("none/a.log", "there is no folder"), ("logs", "is a folder")])
def test_user_log_needs_a_folder(log: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    file = tmp_path / "a.sub"
    file.write_text(f"executable = /bin/true\nlog = {log}\nqueue\n")
    with pytest.raises(InvalidJobError, match=fault):
        read_jobs_with_files(file)


def test_job_without_user_log_has_no_attribute(tmp_path: Path) -> None:
    file = tmp_path / "a.sub"
    file.write_text("executable = /bin/true\nlog =\nqueue\n")
    (job,) = read_jobs_with_files(file)
    assert "UserLog" not in job.attributes
