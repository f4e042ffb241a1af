"""Options and scripts for sbatch, and the meaning of the output of Slurm's commands in all releases."""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import GlideinRequest, GlideinState, GlideinStatus, SelfContained
from pilotage_agents.batch_systems.shape import Shape
from pilotage_agents.batch_systems.slurm_text import (
    SlurmId,
    accounting_statuses,
    is_no_answer,
    is_not_reached,
    is_unknown_job,
    parse_queue,
    script,
    status_of,
    submission,
    submitted_job,
)

JOB = SlurmId("71", "ab12")
ANY_SIZE = Shape()
REMOTE_LOG = PurePosixPath("/work/ab12/pilot.log")


CREDENTIALS = '{"token": "$HOME `id` \\\\n", "pools": ["a", "b\'c"]}'


def a_request(shape: Shape = ANY_SIZE, wall_time_s: int | None = None) -> GlideinRequest:
    return GlideinRequest("ab12", "short", ("pilot",), Path("/here/ab12"), shape, wall_time_s)


def number(value: int | None, *, infinite: bool = False) -> dict[str, Any]:
    """Return a number as Slurm 23.02 and later write it."""
    return {"set": value is not None, "infinite": infinite, "number": value or 0}


def structured_exit_code(code: int | None, signal: int | None = None, name_of_id: str = "id") -> dict[str, Any]:
    """Return an exit code as Slurm 23.11 and later write it."""
    return {
        "status": ["SUCCESS" if code == 0 else "ERROR"],
        "return_code": number(code),
        "signal": {name_of_id: number(signal), "name": ""},
    }


def squeue_output(state: Any, exit_code: Any = 0, **fields: Any) -> str:
    """Return the output of squeue for one job of ours and one of another user."""
    ours = {"job_id": 71, "comment": "pilotage:ab12", "name": "pilotage-ab12", "state_reason": "None"}
    other = {"job_id": 72, "comment": "", "name": "analysis", "job_state": "RUNNING", "exit_code": 0}
    jobs = [other, {**ours, "job_state": state, "exit_code": exit_code, **fields}]
    return json.dumps({"meta": {}, "errors": [], "jobs": jobs})


def status(text: str) -> GlideinStatus:
    (found,) = parse_queue(text).items()
    assert found[0] == JOB
    return found[1]


def test_options_request_known_sizes() -> None:
    options = submission(
        a_request(Shape(cpus=8, memory_mib=16000, disk_mib=5, gpus=2), 3601), REMOTE_LOG, "atlas", ("--qos=grid",)
    )
    assert options == (
        "--parsable",
        "--partition=short",
        "--account=atlas",
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=8",
        "--mem=16000M",
        "--gres=gpu:2",
        "--time=61",
        "--qos=grid",
        "--comment=pilotage:ab12",
        "--job-name=pilotage-ab12",
        "--chdir=/work/ab12",
        "--output=/work/ab12/pilot.log",
        "--open-mode=append",
        "--no-requeue",
    )


def test_unknown_sizes_are_left_to_the_cluster() -> None:
    names = {
        option.partition("=")[0] for option in submission(a_request(Shape(memory_mib=0, gpus=0)), REMOTE_LOG, "", ())
    }
    assert names.isdisjoint({"--mem", "--gres", "--time", "--cpus-per-task", "--account"})


def test_percent_sign_in_folder_is_escaped_in_output_pattern() -> None:
    options = submission(a_request(), PurePosixPath("/work/100%j/pilot.log"), "", ())
    assert "--output=/work/100%%j/pilot.log" in options
    assert "--chdir=/work/100%j" in options


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["C"])), min_size=1))
def test_script_quotes_the_command(command: list[str]) -> None:
    first, second = script(replace(a_request(), command=tuple(command))).split("\n", maxsplit=1)
    assert first == "#!/bin/sh"
    assert shlex.split(second) == ["exec", *command]


def run_script(**fields: str) -> subprocess.CompletedProcess[str]:
    """Run a script whose pilot prints its standard input."""
    self_contained = SelfContained(("cat", "-"), CREDENTIALS, **fields)
    text = script(replace(a_request(), self_contained=self_contained))
    return subprocess.run(["sh"], input=text, capture_output=True, text=True, check=False)


def test_self_contained_script_passes_credentials_unchanged() -> None:
    assert run_script().stdout == CREDENTIALS + "\n"


def test_script_refuses_bundle_with_wrong_checksum(tmp_path: Path) -> None:
    bundle = tmp_path / "the pilot's.pyz"
    bundle.write_bytes(b"pilot")
    right = hashlib.sha256(b"pilot").hexdigest()
    assert run_script(program=str(bundle), sha256=right).stdout == CREDENTIALS + "\n"
    for program, sha256 in ((bundle, "0" * 64), (tmp_path / "none", right)):
        result = run_script(program=str(program), sha256=sha256)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.endswith(f"{program}: is not the pilot bundle that the site director has\n")


@pytest.mark.parametrize(
    ("output", "job"),
    [
        ("71\n", ("71", "")),
        ("71;big\n", ("71", "big")),
        ("Welcome to big\n71;big\n", ("71", "big")),
        ("", None),
        ("Submitted\n", None),
    ],
)
def test_reads_job_id_and_cluster_from_last_line_of_sbatch(output: str, job: tuple[str, str] | None) -> None:
    assert submitted_job(output) == job


@pytest.mark.parametrize(
    ("error", "is_missing"),
    [
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", True),
        ("sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received", True),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", False),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (receive failure)", True),
        ("sbatch: error: invalid partition specified: shortt", False),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", False),
    ],
)
def test_distinguishes_refusal_from_missing_answer(error: str, is_missing: bool) -> None:
    assert is_no_answer(error) is is_missing


@pytest.mark.parametrize(
    ("error", "is_surely_away"),
    [
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", True),
        ("ssh: connect to host login.lyon.example port 22: Connection refused", True),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (receive failure)", False),
        ("connect_to localhost port 8080: Connection refused Connection to login closed by remote host.", False),
    ],
)
def test_knows_requests_that_never_arrived(error: str, is_surely_away: bool) -> None:
    assert is_not_reached(error) is is_surely_away


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("PENDING", GlideinState.WAITING),
        ("RUNNING", GlideinState.RUNNING),
        ("COMPLETING", GlideinState.RUNNING),
        (["RUNNING"], GlideinState.RUNNING),
        (["RUNNING", "CONFIGURING"], GlideinState.WAITING),
        (["CANCELLED", "COMPLETING"], GlideinState.RUNNING),
        (["NODE_FAIL", "REQUEUED"], GlideinState.WAITING),
        (["CANCELLED"], GlideinState.ENDED),
        ("NODE_FAIL", GlideinState.ENDED),
        ("TELEPORTED", GlideinState.UNKNOWN),
        (["COMPLETED", "TELEPORTED"], GlideinState.UNKNOWN),
        ([], GlideinState.UNKNOWN),
        (None, GlideinState.UNKNOWN),
        (["RUNNING", 3], GlideinState.UNKNOWN),
    ],
)
def test_job_state_maps_to_glidein_state(state: object, expected: GlideinState) -> None:
    assert status(squeue_output(state)).state is expected


@pytest.mark.parametrize(
    ("state", "exit_code", "code"),
    [
        ("COMPLETED", 0, 0),
        ("FAILED", 3 * 256, 3),
        ("FAILED", 9, 137),
        ("FAILED", 0, None),
        ("COMPLETED", number(0), 0),
        ("FAILED", number(256), 1),
        ("FAILED", number(None), None),
        (["COMPLETED"], structured_exit_code(0), 0),
        (["FAILED"], structured_exit_code(7), 7),
        (["FAILED"], structured_exit_code(0, 15), 143),
        (["FAILED"], structured_exit_code(0, 15, "signal_id"), 143),
        (["OUT_OF_MEMORY"], structured_exit_code(125), 125),
        (["CANCELLED"], structured_exit_code(0, 15), None),
        ("NODE_FAIL", 256, None),
        ("FAILED", "seven", None),
        ("FAILED", 0x17F, None),
    ],
)
def test_reads_exit_codes_of_all_releases(state: object, exit_code: object, code: int | None) -> None:
    found = status(squeue_output(state, exit_code))
    assert (found.state, found.exit_code) == (GlideinState.ENDED, code)


@pytest.mark.parametrize(
    ("state", "failed"),
    [
        ("LAUNCH_FAILED", True),
        ("BOOT_FAIL", True),
        ("NODE_FAIL", True),
        ("FAILED", True),
        ("CANCELLED", False),
        ("PREEMPTED", False),
        ("TIMEOUT", False),
    ],
)
def test_lost_or_unstarted_job_fails_without_exit_code(state: str, failed: bool) -> None:
    found = status(squeue_output(state))
    assert (found.exit_code, found.has_failed) == (None, failed)


@pytest.mark.parametrize("user_id", [1001, number(1001)])
def test_ignores_job_of_another_user(user_id: object) -> None:
    answer = squeue_output("RUNNING", user_id=user_id)
    assert parse_queue(answer, 1000) == {}
    assert set(parse_queue(answer, 1001)) == {JOB}
    assert set(parse_queue(answer)) == {JOB}


def test_job_without_user_is_recognised_by_stamp() -> None:
    assert set(parse_queue(squeue_output("RUNNING"), 1000)) == {JOB}


def test_reason_and_node_names_may_contain_spaces() -> None:
    reason = "Nodes required for job are DOWN, DRAINED (disk on node 7 is bad, see ticket) or reserved"
    found = status(squeue_output("PENDING", state_reason=reason, nodes="node 7|node [8-9]"))
    assert found == GlideinStatus(GlideinState.WAITING, f"PENDING ({reason})")


def test_job_with_foreign_comment_is_recognised_by_name() -> None:
    assert status(squeue_output("RUNNING", comment="project 17")).state is GlideinState.RUNNING


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", "it is no JSON"),
        (squeue_output("RUNNING")[:-20], "it is no JSON"),
        ("[]", "it has no list of jobs"),
        ('{"jobs": null}', "it has no list of jobs"),
        ('{"jobs": [], "errors": [{"description": "no controller"}]}', "no controller"),
        ('{"jobs": ' + "[" * 100_000, "it is no JSON"),
    ],
)
def test_rejects_incomplete_answer(answer: str, why: str) -> None:
    with pytest.raises(WorldError, match=why):
        parse_queue(answer)


def test_unreadable_job_does_not_affect_others() -> None:
    answer = json.loads(squeue_output("RUNNING"))
    answer["jobs"] += [None, {"comment": "pilotage:cd34", "job_id": 80, "job_state": 5}]
    found = parse_queue(json.dumps(answer))
    assert found[JOB].state is GlideinState.RUNNING
    assert found[SlurmId("80", "cd34")] == GlideinStatus(GlideinState.UNKNOWN, "job 80: its job_state is 5")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional={"job_state": json_values, "exit_code": json_values, "job_id": json_values}))
def test_any_field_value_is_parsed_without_error(fields: dict[str, Any]) -> None:
    parse_queue(json.dumps({"jobs": [{"comment": "pilotage:ab12", **fields}]}))


def test_accounting_reads_ended_glideins_and_skips_other_lines() -> None:
    output = (
        "71|CANCELLED by 1000|0:15|pilotage-ab12\n72|FAILED|3:0|pilotage-cd34\n73|COMPLETED|0:0|analysis\nno record\n"
    )
    found = accounting_statuses(output)
    assert found == {
        JOB: GlideinStatus(GlideinState.ENDED, "CANCELLED"),
        SlurmId("72", "cd34"): GlideinStatus(GlideinState.ENDED, "FAILED, exit code 3", 3),
    }


def test_empty_state_is_unknown() -> None:
    unknown = GlideinStatus(GlideinState.UNKNOWN, "an empty one is no known state")
    assert accounting_statuses("71||0:0|pilotage-ab12\n72| |1:0|pilotage-cd34\n") == {
        JOB: unknown,
        SlurmId("72", "cd34"): unknown,
    }
    assert status_of([], 0) == unknown


def test_distinguishes_unknown_job_from_unreachable_controller() -> None:
    assert is_unknown_job("slurm_load_jobs error: Invalid job id specified")
    assert not is_unknown_job("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")


@pytest.mark.parametrize("text", ["no such glidein", "ab12.71.3.4", "71", "71.", ""])
def test_rejects_id_of_another_batch_system(text: str) -> None:
    assert SlurmId.of(text) is None


def test_id_round_trips_as_text() -> None:
    assert SlurmId.of(str(JOB)) == JOB
