"""What commands do before they reach a server: ids, edits, ranges, exit codes."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pilotage.errors import (
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    PilotageError,
    ServerUnreachableError,
    StateConflictError,
    Violation,
    WorldError,
)
from pilotage.job_description import JobDescription
from pilotage_client.cli.admin import node_names
from pilotage_client.cli.jobs import ranges
from pilotage_client.cli.main import SECTIONS, main
from pilotage_client.cli.options import echo_table, error_text, exit_code, job_ids
from pilotage_client.readers import read_jobs
from pilotage_client.templates import with_change

JOB = JobDescription("/bin/true", requirements={"Memory": 4000, "OS": "el9"}, sites=("A",))


def test_ids_are_numbers_and_ranges() -> None:
    assert job_ids(["7", "10-12"]) == [7, 10, 11, 12]


@pytest.mark.parametrize("text", ["x", "0", "3-1", "-4", "1-", "1-99999999", "9" * 5000, "\N{FULLWIDTH DIGIT SEVEN}"])
def test_what_is_no_id_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        job_ids([text])


@given(st.sets(st.integers(1, 60)).map(sorted))
def test_printed_ranges_read_back_as_the_same_ids(ids: list[int]) -> None:
    assert job_ids(ranges(ids).split()) == ids


def test_a_name_with_line_ends_and_commands_for_the_terminal_stays_in_its_cell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    echo_table(("GROUP", "USED"), [("müller", 1), ("two\nlines\x1b[2J é", 2)], empty="")
    assert capsys.readouterr().out.splitlines() == [
        "GROUP                USED",
        "müller               1",
        "two\\nlines\\x1b[2J é  2",
    ]


def test_an_edit_changes_one_thing_and_keeps_the_rest() -> None:
    edited = with_change(with_change(JOB, "request_memory=2 GB"), "wall_time=2 h")
    assert (edited.request_memory_mib, edited.wall_time) == (2048, timedelta(hours=2))
    assert edited.requirements == JOB.requirements


def test_an_edited_requirement_replaces_the_one_of_any_letter_case() -> None:
    assert with_change(JOB, "requirements.memory=8000").requirements == {"memory": 8000, "OS": "el9"}


def test_an_empty_value_takes_a_wish_back() -> None:
    assert with_change(JOB, "sites=").sites == ()
    without = with_change(with_change(JOB, "requirements.Memory="), "requirements.OS=")
    assert without.requirements is None


@pytest.mark.parametrize(
    ("text", "change", "kept"),
    [
        ('Executable = "a"; priority = 1;', "priority=5", {"priority": 5}),
        ('Executable = "a"; JobName = "old";', "name=new", {"JobName": "new"}),
        ('Executable = "a"; TTL = 60;', "wall_time=2 h", {"TTL": 7200}),
        ('Executable = "a"; Rank = 1;', "rank=", {}),
        ('Executable = "a"; Site = "";', "sites=A,B", {"Site": ("A", "B")}),
        ("executable = a\nprio = 1\npriority = 2\nqueue", "priority=5", {"prio": 5, "priority": 5}),
        ("executable = a\nJobLeaseDuration = 1200\nqueue", "lease=30 min", {"JobLeaseDuration": 1800}),
        ("executable = a\nbatch_name = old\nqueue", "name=new", {"batch_name": "new"}),
        ("executable = a\nrequest_memory = MY.Size\nqueue", "request_memory=2 GB", {"request_memory": "2048 MB"}),
    ],
)
def test_an_edit_changes_what_a_reader_has_kept_of_the_same_meaning(
    text: str, change: str, kept: dict[str, object], tmp_path: Path
) -> None:
    file = tmp_path / ("job.sub" if "queue" in text else "job.jdl")
    file.write_text(text)
    (read,) = read_jobs(file)
    edited = with_change(dataclasses.replace(read, attributes={**read.attributes, "Other": 7}), change)
    assert dict(edited.attributes) == {**kept, "Other": 7}
    assert edited.warnings == ()


@pytest.mark.parametrize(
    "change", ["priority", "colour=red", "request_cpus=many", "owner=root", "wall_time=1e300", "request_disk=-1"]
)
def test_an_edit_that_means_nothing_is_refused(change: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        with_change(JOB, change)
    assert change.partition("=")[0] in str(refusal.value)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInputError(Violation("a", "b")), 2),
        (NotFoundError("job", "7"), 2),
        (PermissionDeniedError("no"), 2),
        (StateConflictError("no"), 1),
        (WorldError("disk", transient=False), 1),
        (ServerUnreachableError("nobody there"), 3),
    ],
)
def test_exit_codes_say_whose_turn_it_is(error: PilotageError, code: int) -> None:
    assert exit_code(error) == code


def test_every_violation_has_its_own_line_and_begins_with_its_place() -> None:
    assert error_text(InvalidInputError(Violation("a", "b"), Violation("c", "d"))) == "a: b\nc: d"
    assert error_text(StateConflictError("the job has ended")) == "pilotage: the job has ended"


def test_a_node_has_one_to_three_names_and_a_queue_may_hold_a_slash() -> None:
    assert node_names("CERN") == ["CERN"]
    assert node_names("CERN/ce/long/fast") == ["CERN", "ce", "long/fast"]
    with pytest.raises(InvalidInputError):
        node_names("CERN//long")


def test_a_server_that_is_not_there_is_exit_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_SERVER", "127.0.0.1:1")
    monkeypatch.setenv("PILOTAGE_TOKEN", "token")
    result = CliRunner().invoke(main, ["status", "7", "--json"])
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("pilotage: no server answers at 127.0.0.1:1")


def test_a_wrong_request_is_told_before_any_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_SERVER", "127.0.0.1:1")
    monkeypatch.setenv("PILOTAGE_TOKEN", "token")
    for arguments in (["status", "x"], ["submit", "/nonexistent/job.jdl"], ["ban", "A", "--reason", "r", "--for", "x"]):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1


def every_command(group: click.Group, before: str = "") -> list[str]:
    names: list[str] = []
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            names += every_command(command, f"{name} ")
        if not isinstance(command, click.Group) or command.invoke_without_command:
            names.append(before + name)
    return names


def test_the_help_shows_every_command_once_and_no_sentence_cut() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(every_command(main))
    for words in ([], ["tree"]):
        shown = CliRunner().invoke(main, [*words, "--help"], terminal_width=80).stdout
        assert "..." not in shown.partition("Options:")[2]
        assert max(map(len, shown.splitlines())) <= 80


def test_what_shows_something_can_show_it_to_scripts() -> None:
    def has_json(command: str) -> bool:
        return "--json" in CliRunner().invoke(main, [*command.split(), "--help"]).stdout

    only_act = {"edit", "ban", "unban", "drain", "token", "up", "demo"}
    only_act |= {"shares set-factor", "shares set-quota", "health hold", "health open"}
    assert {command for command in every_command(main) if not has_json(command)} == only_act
