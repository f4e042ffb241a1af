"""Submit descriptions of glideins, and the meaning of their job ads, as HTCondor's manual describes them."""

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
from support.fake_batch_systems import arguments_of, meets

JOB = HtcondorId(71, "ab12")
RUNNING = {"ClusterId": 71, "PilotageStamp": "ab12", "JobStatus": 2, "NumJobStarts": 1}


def a_submit_description(
    shape: Shape = Shape(cpus=1),  # noqa: B008 - it is frozen
    wall_time_s: int | None = None,
    command: tuple[str, ...] = ("pilot", "run"),
    folder: str = "/pilots/ab12",
    files: Collection[str] = ("pilot.json", "token"),
    **submit: str,
) -> dict[str, str]:
    request = GlideinRequest("ab12", "short", command, Path(folder), shape, wall_time_s)
    return submit_description(request, files, submit, 30)


def expand(description: dict[str, str], name: str) -> str:
    """Return a value as HTCondor's own library expands it."""
    return str(htcondor2.Submit(description).expand(name))


def test_description_requests_sizes_and_transfers_files() -> None:
    description = a_submit_description(Shape(cpus=8, memory_mib=16000, disk_mib=5, gpus=2), 3600)
    sizes = {name: description[name] for name in description if name.startswith(("request_", "allowed_"))}
    assert sizes == {
        "request_cpus": "8",
        "request_memory": "16000",
        "request_disk": "5120",
        "request_gpus": "2",
        "allowed_execute_duration": "3600",
    }
    assert (description["initialdir"], description["transfer_input_files"], description["output"]) == (
        "/pilots/ab12",
        "pilot.json,token",
        "pilot.log",
    )


def test_job_in_place_transfers_nothing() -> None:
    request = GlideinRequest("ab12", "short", ("./wrapper.sh",), Path("/shared/ab12"), Shape(), in_place=True)
    description = submit_description(request, ("job.sh",), {"should_transfer_files": "YES"}, 30)
    transfers = {name: value for name, value in description.items() if "transfer" in name}
    assert transfers == {"transfer_executable": "false", "should_transfer_files": "NO"}
    assert description["initialdir"] == "/shared/ab12"


def test_unknown_sizes_are_left_to_the_pool() -> None:
    assert not [name for name in a_submit_description(Shape()) if name.startswith(("request_", "allowed_"))]


def test_settings_override_sizes_but_not_reserved_commands() -> None:
    description = a_submit_description(Request_CPUs="4", accounting_group="grid", transfer_executable="true")
    assert (description["request_cpus"], description["accounting_group"], description["transfer_executable"]) == (
        "4",
        "grid",
        "false",
    )


def test_glidein_starts_only_once() -> None:
    requirements = a_submit_description(requirements='Arch == "X86_64" || Arch == "aarch64"')["requirements"]
    unstarted = {"Arch": "X86_64"}
    assert meets(unstarted, requirements)
    assert meets(unstarted | {"NumJobStarts": 0}, requirements)
    assert not meets(unstarted | {"NumJobStarts": 1}, requirements)
    assert not meets({"Arch": "ppc64le"}, requirements)


@pytest.mark.parametrize(
    ("ad", "is_removed"),
    [
        ({"JobStatus": 1}, False),
        ({"JobStatus": 1, "NumJobStarts": 0}, False),
        ({"JobStatus": 1, "NumJobStarts": 1}, True),
        ({"JobStatus": 2, "NumJobStarts": 1}, False),
        ({"JobStatus": 5}, True),
    ],
)
def test_held_or_evicted_glidein_is_removed(ad: dict[str, object], is_removed: bool) -> None:
    assert meets(ad, a_submit_description()["periodic_remove"]) is is_removed


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["C"]))))
def test_arguments_round_trip_through_new_syntax(command: list[str]) -> None:
    description = {"executable": "/bin/sh", "arguments": submit_arguments(command)}
    assert arguments_of(description) == command


def test_dollar_signs_are_not_expanded_as_macros() -> None:
    description = a_submit_description(folder="/pilots/$(HOME)")
    assert expand(description, "initialdir") == "/pilots/$(HOME)"


@pytest.mark.parametrize("name", ["pilot,2.pyz", "pilot$(Process).pyz", "two\nlines"])
def test_refuses_file_name_that_breaks_the_file_list(name: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(repr(name))):
        a_submit_description(files=["pilot.json", name])


def test_refuses_command_of_several_lines() -> None:
    with pytest.raises(InvalidInputError, match="more than one line"):
        a_submit_description(command=("sh", "-c", "true\nqueue 1000"))


def test_htcondor_library_accepts_the_description() -> None:
    assert expand(a_submit_description(), "MY.PilotageStamp") == '"ab12"'


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
def test_status_of_job_in_queue(ad: dict[str, object], expected: GlideinStatus) -> None:
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
def test_status_of_job_in_history(ad: dict[str, object], reason: str, code: int | None, failed: bool) -> None:
    assert status_in_history(ad) == GlideinStatus(GlideinState.ENDED, reason, code, failed)


def test_constraint_requires_both_cluster_id_and_stamp() -> None:
    constraint = constraint_of([JOB, HtcondorId(72, "cd34")])
    assert meets(RUNNING, constraint)
    assert not meets(RUNNING | {"PilotageStamp": "other"}, constraint)
    assert not meets({"ClusterId": 71}, constraint)


@pytest.mark.parametrize("text", ["no such glidein", "71.ab12", "71.1.ab12", "71.0.", "ab12.71.3.4", ""])
def test_rejects_id_of_another_batch_system(text: str) -> None:
    assert HtcondorId.of(text) is None


def test_id_round_trips_as_text_and_ad() -> None:
    assert HtcondorId.of(str(JOB)) == JOB
    assert HtcondorId.of_ad(RUNNING) == JOB
    assert HtcondorId.of_ad({"ClusterId": 71}) is None
