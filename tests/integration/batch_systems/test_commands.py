"""A batch system by commands: what their exit codes and output mean."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from pilotage_agents.batch_systems.base import GlideinRequest, GlideinState, NotSubmitted, Submitted, Unanswered
from pilotage_agents.batch_systems.commands import CommandBatchSystem
from pilotage_agents.batch_systems.settings import CommandBatchSystemSettings
from pilotage_agents.batch_systems.shape import Shape


def a_system(submit: str = "echo 1", status: str = "true", find: str = "") -> CommandBatchSystem:
    settings = CommandBatchSystemSettings(
        type="command",
        submit_command=(
            "sh",
            "-c",
            submit,
            "{stamp}",
            "{folder}",
            "{queue}",
            "{cpus}",
            "{memory_mib}",
            "{wall_time_s}",
        ),
        status_command=("sh", "-c", status, "status"),
        remove_command=("true",),
        find_command=("sh", "-c", find, "find") if find else (),
        timeout_s=20,
    )
    return CommandBatchSystem("grid", settings)


def a_request(folder: Path, stamp: str = "s1") -> GlideinRequest:
    (folder / stamp).mkdir()
    return GlideinRequest(stamp, "gold", ("echo", "it's me"), folder / stamp, Shape(cpus=2), 3600)


async def test_submit_command_gets_the_pilot_and_prints_its_id_last(tmp_path: Path) -> None:
    system = a_system('printf "%s\\n" "$0" "$@" > "$1/words"; echo accepted:; echo job-7; echo')
    assert await system.submit_many([a_request(tmp_path)]) == (Submitted("job-7"),)
    assert (tmp_path / "s1/words").read_text().split("\n") == [
        *("s1", str(tmp_path / "s1"), "gold", "2", "", "3600", "")
    ]
    script = tmp_path / "s1/start.sh"
    assert script.read_text().endswith("exec echo 'it'\"'\"'s me' >pilot.log 2>&1\n")
    assert stat.S_IMODE(script.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("submit", "expected", "reason"),
    [
        ("echo no quota >&2; exit 3", NotSubmitted, "grid: no quota"),
        ("true", Unanswered, "the last line is no id: ''"),
        ("echo job 7", Unanswered, "the last line is no id: 'job 7'"),
        ("kill -9 $$", Unanswered, "grid: sh: "),
    ],
)
async def test_submission_without_an_id(tmp_path: Path, submit: str, expected: type, reason: str) -> None:
    first, second = await a_system(submit).submit_many([a_request(tmp_path), a_request(tmp_path, "s2")])
    assert isinstance(first, NotSubmitted | Unanswered)
    assert (type(first), reason in first.reason) == (expected, True)
    assert isinstance(second, NotSubmitted)
    assert second.was_tried is (expected is NotSubmitted)


@pytest.mark.parametrize(
    ("status", "state", "exit_code"),
    [
        ("echo 1 waiting", GlideinState.WAITING, None),
        ("echo 2 ended; echo 1 running", GlideinState.RUNNING, None),
        ("echo 1 ended 7", GlideinState.ENDED, 7),
        ("echo 1 ended", GlideinState.ENDED, None),
        ("echo 1 ended x", GlideinState.UNKNOWN, None),
        ("echo 1 unknown", GlideinState.UNKNOWN, None),
        ("echo 1 ended; exit 1", GlideinState.UNKNOWN, None),
        ("true", GlideinState.UNKNOWN, None),
    ],
)
async def test_only_a_clear_statement_of_a_successful_command_counts(
    status: str, state: GlideinState, exit_code: int | None
) -> None:
    found = (await a_system(status=status).poll_all(["1"]))["1"]
    assert (found.state, found.exit_code) == (state, exit_code)


async def test_find_command_is_optional() -> None:
    assert await a_system().find_by_stamp(["s1"]) == {}
    assert await a_system(find="echo s1 7; echo another 8; echo s1").find_by_stamp(["s1"]) == {"s1": "7"}


async def test_program_that_is_missing_submits_nothing(tmp_path: Path) -> None:
    settings = CommandBatchSystemSettings(
        type="command", submit_command=("/no/such",), status_command=("true",), remove_command=("true",)
    )
    (answer,) = await CommandBatchSystem("grid", settings).submit_many([a_request(tmp_path)])
    assert answer == NotSubmitted("grid: /no/such: /no/such: No such file or directory")
