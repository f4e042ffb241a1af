"""Commands before they reach a server: job ids, edits, exit codes, help."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

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
from pilotage.values.selections import JobSelection
from pilotage_client.api import Client
from pilotage_client.cli.main import SECTIONS, main
from pilotage_client.cli.options import echo_table, error_text, exit_code, node_names
from pilotage_client.cli.selection.bulk import ranges
from pilotage_client.cli.status import active_of_workflow, bar
from pilotage_client.models import ClusterStatus
from pilotage_client.readers import read_jobs
from pilotage_client.selections import read_selections
from pilotage_client.templates import with_change

JOB = JobDescription("/bin/true", requirements={"Memory": 4000, "OS": "el9"}, sites=("A",))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", JobSelection(7)),
        ("7.0", JobSelection(7, (0, 0))),
        ("7.3", JobSelection(7, (3, 3))),
        ("7.0-99", JobSelection(7, (0, 99))),
        ("10-12", range(10, 13)),
        ("w7", JobSelection(7, workflow=True)),
    ],
)
def test_selection_is_a_cluster_a_part_of_it_or_job_ids(text: str, expected: JobSelection | range) -> None:
    assert read_selections([text]) == [expected]


INVALID = ["x", "0", "3-1", "-4", "1-", "1-99999999", "9" * 5000, "\N{FULLWIDTH DIGIT SEVEN}"]


@pytest.mark.parametrize(
    "text",
    [
        *INVALID,
        "1.",
        ".1",
        "1.2.3",
        "0.1",
        "1.3-2",
        "1.0-1000000",
        "1.-2",
        "1-2.3",
        "1.0-1.3",
        "w0",
        "W1",
        "w1.0",
        "w1-2",
    ],
)
def test_rejects_invalid_selection(text: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(text)):
        read_selections(["5", text])


def test_all_invalid_selections_are_named() -> None:
    with pytest.raises(InvalidInputError) as refusal:
        read_selections(["x", "5", "3-1"])
    assert [violation.where for violation in refusal.value.violations] == ["x", "3-1"]


@given(st.sets(st.integers(1, 60)).map(sorted))
def test_printed_ranges_round_trip(ids: list[int]) -> None:
    selected = read_selections(ranges(ids).split())
    assert [job for each in selected for job in ([each.id] if isinstance(each, JobSelection) else each)] == ids


@pytest.mark.parametrize(
    ("counts", "jobs", "expected"),
    [
        ([0, 0, 0, 0, 0, 1], 1, "...................."),
        ([5, 1, 0, 0, 4, 0], 10, "==========xx>>>>>>>>"),
        ([999_999, 1, 0, 0, 0, 0], 1_000_000, "===================="),
        ([1, 0, 0, 0, 0, 1], 4, "=====.....          "),
        ([1, 1, 1, 0, 0, 0], 3, "=======xxxxxx-------"),
    ],
)
def test_bar_shows_parts_of_the_submitted_jobs(counts: list[int], jobs: int, expected: str) -> None:
    assert bar(counts, jobs) == f"[{expected}]"


def test_table_escapes_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    echo_table(("GROUP", "USED"), [("müller", 1), ("two\nlines\x1b[2J é", 2)], empty="")
    assert capsys.readouterr().out.splitlines() == [
        "GROUP                USED",
        "müller               1",
        "two\\nlines\\x1b[2J é  2",
    ]


def test_edit_changes_only_its_field() -> None:
    edited = with_change(with_change(JOB, "request_memory=2 GB"), "wall_time=2 h")
    assert (edited.request_memory_mib, edited.wall_time) == (2048, timedelta(hours=2))
    assert edited.requirements == JOB.requirements


def test_edited_requirement_ignores_letter_case() -> None:
    assert with_change(JOB, "requirements.memory=8000").requirements == {"memory": 8000, "OS": "el9"}


def test_empty_value_removes_a_field() -> None:
    assert with_change(JOB, "sites=").sites == ()
    without = with_change(with_change(JOB, "requirements.Memory="), "requirements.OS=")
    assert without.requirements is None


@pytest.mark.parametrize(
    ("text", "change", "expected"),
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
def test_edit_replaces_equivalent_attributes(
    text: str, change: str, expected: dict[str, object], tmp_path: Path
) -> None:
    file = tmp_path / ("job.sub" if "queue" in text else "job.jdl")
    file.write_text(text)
    (read,) = read_jobs(file, ignore_unsupported=True)
    edited = with_change(dataclasses.replace(read, attributes={**read.attributes, "Other": 7}), change)
    assert dict(edited.attributes) == {**expected, "Other": 7}
    assert (edited.warnings, edited.ignored) == ((), ())


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ("retries=3", "retries", 3),
        ("retry_until=ExitCode > 3", "retry_until", "ExitCode > 3"),
        ("success_exit_code=-1", "success_exit_code", -1),
        ("retry_exit_codes=3, 4", "retry_exit_codes", (3, 4)),
        ("retry_delay_s=2 min", "retry_delay", timedelta(minutes=2)),
        ("retry_memory=2x", "retry_memory", 2.0),
    ],
)
def test_edit_changes_and_unsets_retries(change: str, field: str, value: Any) -> None:
    edited = with_change(JOB, change)
    assert edited == dataclasses.replace(JOB, **{field: value})
    assert with_change(edited, f"{change.partition('=')[0]}=") == JOB


@pytest.mark.parametrize(
    "change",
    [
        *("priority", "colour=red", "request_cpus=many", "owner=root", "wall_time=1e300", "request_disk=-1"),
        *("retries=-1", "success_exit_code=a", "retry_exit_codes=3,,4", "retry_delay_s=soon", "retry_memory=2"),
    ],
)
def test_rejects_invalid_edit(change: str) -> None:
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
        (ServerUnreachableError("no answer"), 3),
    ],
)
def test_exit_code_of_error(error: PilotageError, code: int) -> None:
    assert exit_code(error) == code


def test_each_violation_is_one_line_with_its_location() -> None:
    assert error_text(InvalidInputError(Violation("a", "b"), Violation("c", "d"))) == "a: b\nc: d"
    assert error_text(StateConflictError("the job has ended")) == "pilotage: the job has ended"


def test_tree_path_has_one_to_three_names() -> None:
    assert node_names("CERN") == ["CERN"]
    assert node_names("CERN/ce/long/fast") == ["CERN", "ce", "long/fast"]
    with pytest.raises(InvalidInputError):
        node_names("CERN//long")


def test_unreachable_server_has_exit_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_SERVER", "127.0.0.1:1")
    monkeypatch.setenv("PILOTAGE_TOKEN", "token")
    result = CliRunner().invoke(main, ["status", "7", "--json"])
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("pilotage: no server answers at 127.0.0.1:1")


def test_invalid_request_fails_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_SERVER", "127.0.0.1:1")
    monkeypatch.setenv("PILOTAGE_TOKEN", "token")
    for arguments in (["status", "x"], ["submit", "/nonexistent/job.jdl"], ["ban", "A", "--reason", "r", "--for", "x"]):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1


def all_commands(group: click.Group, prefix: str = "") -> list[str]:
    names: list[str] = []
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            names += all_commands(command, f"{name} ")
        if not isinstance(command, click.Group) or command.invoke_without_command:
            names.append(prefix + name)
    return names


def test_help_lists_every_command_once_without_truncation() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(all_commands(main))
    for arguments in ([], ["tree"]):
        shown = CliRunner().invoke(main, [*arguments, "--help"], terminal_width=80).stdout
        assert "..." not in shown.partition("Options:")[2]
        assert max(map(len, shown.splitlines())) <= 80


def test_commands_with_output_have_a_json_option() -> None:
    def has_json(command: str) -> bool:
        return "--json" in CliRunner().invoke(main, [*command.split(), "--help"]).stdout

    without_json = {"edit", "logs", "rescue", "ban", "unban", "drain", "token", "up", "demo", "init", "condor-commands"}
    without_json |= {"shares set-factor", "shares set-quota", "health hold", "health open"}
    without_json |= {"token join", "join", "context use", "context remove"}
    assert {command for command in all_commands(main) if not has_json(command)} == without_json


def test_workflow_that_changes_while_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Its only cluster is freed between two calls, and more jobs of it are stored."""
    workflow = ClusterStatus(12, "flow", "alice", "vo", "", 5000, None, {"BLOCKED": 1000}, workflow=True)

    class ChangingWorkflow:
        def __init__(self) -> None:
            self._states = iter(("BLOCKED", "WAITING"))

        def clusters(self, states: list[str], **_: Any) -> list[ClusterStatus]:
            state = next(self._states)
            cluster = dataclasses.replace(workflow, states={state: 2000}, workflow=False)
            return [cluster] if state in states else []

    (shown,) = active_of_workflow(cast(Client, ChangingWorkflow()), workflow)
    assert shown.states == {"WAITING": 2000}
    assert capsys.readouterr().err == ""
