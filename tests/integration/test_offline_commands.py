"""The commands that need no server, as people and scripts run them over real files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pilotage_client.main import main

KEYS = [
    "executable", "arguments", "requirements", "requirements_expression", "site", "banned_sites", "platform",
    "cpu_time_s", "request_cpus", "request_memory_mb", "request_disk_mb", "request_gpus", "input_files",
    "output_files", "stdout", "stderr", "environment", "attributes", "count", "warnings",
]  # fmt: skip

QUEUE = '{"sites": {"S": {"ces": {"C": {"queues": {"Q": {"Memory": 4000, "Tags": ["a", "b"], "OS": "el9"}}}}}}}'


def pilotage(*arguments: str | Path, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run the command as a process of its own."""
    command = [str(Path(sys.executable).with_name("pilotage")), *map(str, arguments)]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


def run(*arguments: str | Path) -> Result:
    """Run the command in this process; whatever it raises is raised."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def objects(printed: str) -> list[dict[str, Any]]:
    """Return the JSON objects that were printed, one a line."""
    return [json.loads(line) for line in printed.splitlines()]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return the file of a tree with one queue."""
    file = tmp_path / "tree.json"
    file.write_text(QUEUE)
    return file


# --- convert


def test_convert_prints_one_object_a_line_with_all_its_keys(shared_data: Path) -> None:
    done = pilotage("convert", shared_data / "data/jdl/DIRAC__Test_ParametricJob.py_L49.jdl", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    jobs = objects(done.stdout)
    assert [list(job) for job in jobs] == [KEYS] * 3
    assert [job["arguments"] for job in jobs] == ["1 a", "3 b", "7 c"]
    assert [job["attributes"]["JobName"] for job in jobs] == ["Test_0", "Test_1", "Test_2"]
    assert {job["requirements"] for job in jobs} == {None}


def test_convert_says_file_line_and_cause_and_exits_2(shared_data: Path) -> None:
    file = shared_data / "data/jdl/WMS-Test-Suite__dag2.jdl"
    done = pilotage("convert", file, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{file}:2: a DAG is not supported\n"


@pytest.mark.parametrize(("folder", "files"), [("jdl", 54), ("submit", 72)])
def test_convert_reads_every_real_file_or_says_where_it_cannot(folder: str, files: int, shared_data: Path) -> None:
    seen = 0
    for file in sorted((shared_data / "data" / folder).iterdir()):
        result = run("convert", file, "--json")
        seen += 1
        if result.exit_code == 0:
            jobs = objects(result.stdout)
            assert jobs
            assert all(list(job) == KEYS and job["executable"] for job in jobs), file
        else:
            place, _, cause = result.stderr.removeprefix(f"{file}:").partition(": ")
            assert (result.exit_code, result.stdout, place.isdigit()) == (2, "", True), file
            assert cause.count("\n") == 1
    assert seen == files


def test_convert_tells_nothing_but_the_error_where_htcondors_parser_would_chat(tmp_path: Path) -> None:
    file = tmp_path / "job.sub"
    file.write_text("executable = x\nif nonsense\nqueue\nendif\n")
    done = pilotage("convert", file)
    assert (done.returncode, done.stderr) == (2, f"{file}:2: not a submit command: if nonsense\n")


@pytest.mark.parametrize(
    ("content", "place", "cause"),
    [
        (None, "", "no such file or directory"),
        (b"", ":1", "there is no Executable"),
        (b"\x7fELF\0\0", ":1", "not a text"),
        (b'Executable = "a";\nX = <y>;\n', ":2", "X: <y> is not a ClassAd expression; is this a template that was not"),
    ],
)
def test_a_file_that_describes_no_job_is_told_by_its_name(
    content: bytes | None, place: str, cause: str, tmp_path: Path
) -> None:
    file = tmp_path / "job.jdl"
    if content is not None:
        file.write_bytes(content)
    result = run("convert", file, "--json")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{file}{place}: {cause}")


@pytest.mark.parametrize("command", [["convert"], ["tree", "resolve"], ["tree", "eligible", "--vo", "cms"]])
def test_a_folder_or_nothing_at_all_is_no_file(command: list[str], tmp_path: Path) -> None:
    for path, cause in ((tmp_path, "is a directory"), (tmp_path / "none.json", "no such file or directory")):
        result = run(*command, path)
        assert (result.exit_code, result.stderr) == (2, f"{path}: {cause}\n")


@pytest.mark.parametrize("command", [["convert"], ["tree", "resolve"]])
def test_a_file_without_an_end_is_refused(command: list[str], tmp_path: Path) -> None:
    endless = tmp_path / "endless.json"
    endless.symlink_to("/dev/zero")
    result = run(*command, endless)
    assert (result.exit_code, result.stderr) == (2, f"{endless}: file too large\n")


def test_convert_for_people_leaves_out_what_was_not_said(tmp_path: Path) -> None:
    (tmp_path / "job.jdl").write_text('Executable = "a"; Requirements = [ Tags = { "é" } ];')
    shown = json.loads(run("convert", tmp_path / "job.jdl").stdout)
    assert shown == {"executable": "a", "requirements": {"Tags": ["é"]}, "attributes": {}, "warnings": []}


def test_the_language_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "job").write_text('executable = "a"\nqueue = 3\n')
    assert "queue is no key of a job" in run("convert", tmp_path / "job", "--language", "toml").stderr
    assert "is a semicolon missing?" in run("convert", tmp_path / "job", "--language", "jdl").stderr
    assert "there is no queue statement" in run("convert", tmp_path / "job", "--language", "submit").stderr


# --- tree resolve


def test_resolve_prints_the_oracle_to_the_letter(shared_data: Path) -> None:
    done = pilotage("tree", "resolve", shared_data / "data/resources/tree.json", "--json")
    assert (done.returncode, done.stderr) == (0, "warning: provenance: has no meaning here and is ignored\n")
    # The oracle has the queues of a computing element in another order than its tree.
    oracle = (shared_data / "data/resources/resolved.jsonl").read_text().splitlines()
    assert sorted(done.stdout.splitlines()) == sorted(oracle)
    assert len(oracle) == 683


def test_resolve_shows_what_a_vo_sees_and_where_each_value_comes_from(tree: Path) -> None:
    tree.write_text(QUEUE.replace('"OS"', '"ForVO": {"cms": {"Memory": 8000}}, "OS"'))
    assert objects(run("tree", "resolve", tree, "--vo", "CMS", "--json").stdout)[0]["params"]["Memory"] == 8000
    assert run("tree", "resolve", tree, "--vo", "CMS").stdout.splitlines() == [
        "S/C/Q",
        "  Memory = 8000  (queue for VO cms)",
        "  Tags = a, b  (queue)",
        "  OS = el9  (queue)",
    ]


def test_a_tree_is_refused_with_every_fault_each_on_a_line_with_the_file(tree: Path) -> None:
    tree.write_text('{"sites": {"S": {"Enabled": "no", "ces": {"C": []}}, "T/U": {}}}')
    result = run("tree", "resolve", tree)
    assert result.exit_code == 2
    assert sorted(result.stderr.splitlines()) == [
        f"{tree}: sites.S.Enabled: 'no' is neither true nor false",
        f"{tree}: sites.S.ces.C: [] is not a section",
        f'{tree}: sites.T/U: the name of a site or computing element has no "/"',
    ]


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("tree.json", b'{"sites":\n {,}}', "line 2, column 3: Expecting property name"),
        ("tree.yaml", b"sites:\n\tS: 1", "line 2, column 1: while scanning for the next token"),
        ("tree.toml", b"a = ", "line 1, column 5: Invalid value"),
        ("tree.cfg", b"Resources {", "line 1: the section Resources, which begins here, is not closed"),
        ("tree.json", b"", "line 1, column 1: Expecting value"),
        ("tree.json", b"{}", "there is no section sites"),
        ("tree.xml", b"<sites/>", '"tree.xml" does not say its format'),
    ],
)
def test_a_text_that_is_no_tree_is_told_with_its_place(name: str, content: bytes, cause: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    result = run("tree", "resolve", tmp_path / name)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{tmp_path / name}: {cause}")


def test_a_tree_file_that_is_no_text_is_told_with_its_line(tree: Path) -> None:
    tree.write_bytes(b'{"sites":\n "\xff"}')
    assert run("tree", "resolve", tree).stderr == f"{tree}:2: not a text in UTF-8\n"


# --- tree eligible

Offer = dict[str, Any]

QUESTIONS: list[tuple[list[str], Callable[[Offer], bool]]] = [
    ([], lambda offer: True),
    (["Memory=4000"], lambda offer: is_number(offer.get("Memory")) and offer["Memory"] >= 4000),
    (["memory=4 GB"], lambda offer: is_number(offer.get("Memory")) and offer["Memory"] >= 4096),
    (
        ["CPUs=8", "Country=de,FR"],
        lambda o: is_number(o.get("CPUs")) and o["CPUs"] >= 8 and o.get("Country") in ("DE", "FR"),
    ),
    (["Tags=GPU"], lambda offer: "GPU" in offer.get("Tags", ())),
    (["Tags=GPU,arm"], lambda offer: {"GPU", "ARM"} <= set(offer.get("Tags", ()))),
    (['OS="rhel7"'], lambda offer: offer.get("OS") == "rhel7"),
    (["OS=rhel7,any"], lambda offer: offer.get("OS") in ("rhel7", "any")),
    (["Production=true"], lambda offer: offer.get("Production") is True),
    (["MaxWallTime=2 d"], lambda offer: is_number(offer.get("MaxWallTime")) and offer["MaxWallTime"] >= 172800),
    (["NobodyHasThis=1"], lambda offer: False),
]


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def expected(lines: list[Offer], vo: str, fits: Callable[[Offer], bool]) -> dict[str, dict[str, set[str]]]:
    """Return the queues of the oracle that are enabled, admit the VO and fit."""
    found: dict[str, dict[str, set[str]]] = {}
    for line in lines:
        offer = line["params"]
        if offer["Enabled"] and vo in map(str.lower, offer["VOs"]) and fits(offer):
            found.setdefault(line["site"], {}).setdefault(line["ce"], set()).add(line["queue"])
    return found


@pytest.mark.parametrize(("requirements", "fits"), QUESTIONS)
def test_eligible_is_what_the_resolved_queues_say(
    requirements: list[str], fits: Callable[[Offer], bool], shared_data: Path
) -> None:
    folder = shared_data / "data/resources"
    lines = objects((folder / "resolved.jsonl").read_text())
    options = [part for requirement in requirements for part in ("--require", requirement)]
    for vo in ("cms", "OSGVO", "nobody"):
        result = run("tree", "eligible", folder / "tree.json", "--vo", vo, *options, "--json")
        assert result.exit_code == 0
        (found,) = objects(result.stdout)
        as_sets = {site: {ce: set(queues) for ce, queues in ces.items()} for site, ces in found.items()}
        assert as_sets == expected(lines, vo.lower(), fits)


def test_eligible_exits_0_when_nothing_fits(tree: Path) -> None:
    done = pilotage("tree", "eligible", tree, "--vo", "cms", "--require", "Memory=4001", "--json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "{}\n", "")


def test_eligible_for_people_lists_queues_and_counts_them(tree: Path) -> None:
    result = run("tree", "eligible", tree, "--vo", "cms", "--require", "OS='EL9'")
    assert (result.exit_code, result.stdout) == (0, "S/C/Q\n")
    assert "1 queues" in result.stderr


@pytest.mark.parametrize(
    ("requirement", "error"),
    [
        ("Memory", "Memory: is no requirement; write NAME=VALUE"),
        ("Memory=", "Memory: an empty text asks for nothing"),
        ("Memory=-1", "Memory: -1 is negative"),
        ("Memory=soon", "Memory: 'soon' is not a number"),
        ("Memory=" + "9" * 5000, "Memory: '999"),
        ("Tags=,", "Tags: an empty list asks for nothing"),
        ('OS="el9', 'OS: cannot be read from here: "el9'),
        ("Site=S", "Site: is a keyword of the job"),
    ],
)
def test_a_requirement_without_a_meaning_is_refused(requirement: str, error: str, tree: Path) -> None:
    result = run("tree", "eligible", tree, "--vo", "cms", "--require", requirement, "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(error)


@pytest.mark.parametrize(
    ("requirement", "exit_code"),
    [("Memory=1e400", 0), ("Größe=\N{FULLWIDTH DIGIT ONE}", 0), ("OS=it's", 2), ("\udcff=1", 0)],
)
def test_an_odd_requirement_is_judged_and_no_accident(requirement: str, exit_code: int, tree: Path) -> None:
    result = run("tree", "eligible", tree, "--vo", "cms", "--require", requirement, "--json")
    assert (result.exit_code, result.stdout) == (exit_code, "" if exit_code else "{}\n")


# --- where the output goes


def test_a_reader_that_goes_away_is_no_error(shared_data: Path) -> None:
    command = [str(Path(sys.executable).with_name("pilotage")), "tree", "resolve"]
    tree = shared_data / "data/resources/tree.json"
    with subprocess.Popen([*command, tree, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        assert process.wait(60) == 0


def test_a_full_disk_is_one_clear_line(tree: Path) -> None:
    with open("/dev/full", "w") as full:
        done = pilotage("tree", "resolve", tree, "--json", stdout=full.fileno())
    assert (done.returncode, done.stderr) == (1, "pilotage: no space left on device\n")
