"""What a schedd is told of a glidein, and what its job ads mean, as HTCondor's manual describes them."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import htcondor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.errors import InvalidInputError
from pilotage_agents.batch_systems.base import GlideinRequest, GlideinState, GlideinStatus
from pilotage_agents.batch_systems.htcondor import (
    HtcondorId,
    constraint_of,
    status_in_history,
    status_in_queue,
    submit_arguments,
    submit_description,
)
from pilotage_agents.batch_systems.shape import Shape
from support.fake_batch_systems import meets

JOB = HtcondorId(71, "ab12")
RUNNING = {"ClusterId": 71, "PilotageStamp": "ab12", "JobStatus": 2, "NumJobStarts": 1}


def told(
    shape: Shape = Shape(cpus=1),  # noqa: B008 - it is frozen
    wall_time_s: int | None = None,
    command: tuple[str, ...] = ("pilot", "run"),
    folder: str = "/pilots/ab12",
    files: Collection[str] = ("pilot.json", "token"),
    **submit: str,
) -> dict[str, str]:
    request = GlideinRequest("ab12", "short", command, Path(folder), shape, wall_time_s)
    return submit_description(request, files, submit, 30)


def as_expanded(said: dict[str, str], name: str) -> str:
    """Return a value as HTCondor's own library expands it."""
    return str(htcondor2.Submit(said).expand(name))


def words_of(arguments: str) -> list[str]:
    """Return the words of arguments in HTCondor's new syntax, taken apart by the rules of its manual."""
    assert arguments[0] == arguments[-1] == '"'
    inner = arguments[1:-1].replace('""', '"')
    quoted = re.findall(r"'((?:[^']|'')*)'(?: |$)", inner)
    return [word.replace("''", "'") for word in quoted]


def test_a_glidein_asks_for_its_sizes_and_brings_its_files() -> None:
    said = told(Shape(cpus=8, memory_mib=16000, disk_mib=5, gpus=2), 3600)
    sizes = {name: said[name] for name in said if name.startswith(("request_", "allowed_"))}
    assert sizes == {
        "request_cpus": "8",
        "request_memory": "16000",
        "request_disk": "5120",
        "request_gpus": "2",
        "allowed_execute_duration": "3600",
    }
    assert (said["initialdir"], said["transfer_input_files"], said["output"]) == (
        "/pilots/ab12",
        "pilot.json,token",
        "pilot.log",
    )


def test_what_is_not_known_of_a_pilot_is_left_to_the_pool() -> None:
    assert not [name for name in told(Shape()) if name.startswith(("request_", "allowed_"))]


def test_what_the_settings_say_wins_over_sizes_and_not_over_what_finds_the_glidein_again() -> None:
    said = told(Request_CPUs="4", accounting_group="grid", transfer_executable="true")
    assert (said["request_cpus"], said["accounting_group"], said["transfer_executable"]) == ("4", "grid", "false")


def test_a_glidein_starts_once_whatever_the_settings_require() -> None:
    requirements = told(requirements='Arch == "X86_64" || Arch == "aarch64"')["requirements"]
    fresh = {"Arch": "X86_64"}
    assert meets(fresh, requirements)
    assert meets(fresh | {"NumJobStarts": 0}, requirements)
    assert not meets(fresh | {"NumJobStarts": 1}, requirements)
    assert not meets({"Arch": "ppc64le"}, requirements)


@pytest.mark.parametrize(
    ("ad", "removes_itself"),
    [
        ({"JobStatus": 1}, False),
        ({"JobStatus": 1, "NumJobStarts": 0}, False),
        ({"JobStatus": 1, "NumJobStarts": 1}, True),
        ({"JobStatus": 2, "NumJobStarts": 1}, False),
        ({"JobStatus": 5}, True),
    ],
)
def test_a_glidein_that_is_held_or_evicted_removes_itself(ad: dict[str, object], removes_itself: bool) -> None:
    assert meets(ad, told()["periodic_remove"]) is removes_itself


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["C"]))))
def test_a_command_gets_its_words_as_they_are(command: list[str]) -> None:
    said = {"executable": "/bin/sh", "arguments": submit_arguments(command)}
    assert words_of(as_expanded(said, "arguments")) == command


def test_names_with_quotes_and_dollar_signs_are_no_macros() -> None:
    said = told(folder="/pilots/$(HOME)")
    assert as_expanded(said, "initialdir") == "/pilots/$(HOME)"


@pytest.mark.parametrize("name", ["pilot,2.pyz", "pilot$(Process).pyz", "two\nlines"])
def test_a_file_that_the_list_of_files_would_take_apart_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(repr(name))):
        told(files=["pilot.json", name])


def test_a_command_of_several_lines_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="more than one line"):
        told(command=("sh", "-c", "true\nqueue 1000"))


def test_htcondors_library_takes_the_description() -> None:
    assert as_expanded(told(), "MY.PilotageStamp") == '"ab12"'


@pytest.mark.parametrize(
    ("ad", "expected"),
    [
        ({"JobStatus": 1, "NumJobStarts": 0}, GlideinStatus(GlideinState.WAITING, "idle")),
        ({"JobStatus": 1}, GlideinStatus(GlideinState.WAITING, "idle")),
        ({"JobStatus": 1, "NumJobStarts": 1}, GlideinStatus(GlideinState.WAITING, "idle, evicted")),
        (RUNNING, GlideinStatus(GlideinState.RUNNING, "running")),
        ({"JobStatus": 3}, GlideinStatus(GlideinState.RUNNING, "being removed")),
        ({"JobStatus": 6}, GlideinStatus(GlideinState.RUNNING, "output on its way")),
        ({"JobStatus": 7}, GlideinStatus(GlideinState.RUNNING, "suspended")),
        (
            {"JobStatus": 5, "HoldReason": "Transfer input files failure", "HoldReasonCode": 13},
            GlideinStatus(GlideinState.WAITING, "held: Transfer input files failure"),
        ),
        (
            {"JobStatus": 4, "ExitBySignal": False, "ExitCode": 3},
            GlideinStatus(GlideinState.ENDED, "completed, exit code 3", 3),
        ),
        ({"JobStatus": 8}, GlideinStatus(GlideinState.UNKNOWN, "its JobStatus is 8")),
        ({}, GlideinStatus(GlideinState.UNKNOWN, "its JobStatus is None")),
        ({"JobStatus": "2"}, GlideinStatus(GlideinState.UNKNOWN, "its JobStatus is '2'")),
    ],
)
def test_a_job_in_the_queue_has_ended_only_when_it_is_completed(ad: dict[str, object], expected: GlideinStatus) -> None:
    assert status_in_queue(ad) == expected


@pytest.mark.parametrize(
    ("ad", "reason", "code", "failed"),
    [
        ({"JobStatus": 4, "ExitBySignal": False, "ExitCode": 0}, "completed, exit code 0", 0, False),
        ({"JobStatus": 4, "ExitBySignal": True, "ExitSignal": 9}, "completed, exit code 137", 137, False),
        ({"JobStatus": 4}, "completed", None, False),
        (
            {"JobStatus": 3, "RemoveReason": "via condor_rm (by user grid)"},
            "removed: via condor_rm (by user grid)",
            None,
            False,
        ),
        ({"JobStatus": 3}, "removed: no reason given", None, False),
        (
            {"JobStatus": 3, "HoldReason": "memory usage exceeded"},
            "held and removed: memory usage exceeded",
            None,
            True,
        ),
        ({"JobStatus": 3, "LastHoldReason": "no such file"}, "held and removed: no such file", None, True),
    ],
)
def test_the_history_says_how_a_job_ended(ad: dict[str, object], reason: str, code: int | None, failed: bool) -> None:
    assert status_in_history(ad) == GlideinStatus(GlideinState.ENDED, reason, code, failed)


def test_a_constraint_means_these_glideins_and_no_job_that_has_got_an_id_of_theirs() -> None:
    constraint = constraint_of([JOB, HtcondorId(72, "cd34")])
    assert meets(RUNNING, constraint)
    assert not meets(RUNNING | {"PilotageStamp": "other"}, constraint)
    assert not meets({"ClusterId": 71}, constraint)


@pytest.mark.parametrize("text", ["no such glidein", "71.ab12", "71.1.ab12", "71.0.", "ab12.71.3.4", ""])
def test_an_id_of_another_batch_system_is_none_of_htcondors(text: str) -> None:
    assert HtcondorId.of(text) is None


def test_an_id_says_the_job_and_the_stamp() -> None:
    assert HtcondorId.of(str(JOB)) == JOB
    assert HtcondorId.of_ad(RUNNING) == JOB
    assert HtcondorId.of_ad({"ClusterId": 71}) is None
