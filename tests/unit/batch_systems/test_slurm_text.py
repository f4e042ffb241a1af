"""What sbatch is told, and what the answers of Slurm's commands mean, release by release."""

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
    is_no_answer,
    parse_queue,
    script,
    submission,
    submitted_job,
)

JOB = SlurmId("71", "ab12")
OF_ANY_SIZE = Shape()
THERE = PurePosixPath("/work/ab12/pilot.log")


GIVEN = '{"token": "$HOME `id` \\\\n", "pools": ["a", "b\'c"]}'


def a_request(shape: Shape = OF_ANY_SIZE, wall_time_s: int | None = None) -> GlideinRequest:
    return GlideinRequest("ab12", "short", ("pilot",), Path("/here/ab12"), shape, wall_time_s)


def number(value: int | None, *, infinite: bool = False) -> dict[str, Any]:
    """Return a number as Slurm 23.02 and later write it."""
    return {"set": value is not None, "infinite": infinite, "number": value or 0}


def told_in_parts(code: int | None, signal: int | None = None, name_of_id: str = "id") -> dict[str, Any]:
    """Return an exit code as Slurm 23.11 and later write it."""
    return {
        "status": ["SUCCESS" if code == 0 else "ERROR"],
        "return_code": number(code),
        "signal": {name_of_id: number(signal), "name": ""},
    }


def an_answer(state: Any, exit_code: Any = 0, **fields: Any) -> str:
    """Return what squeue prints of one job of ours, beside one of somebody else."""
    ours = {"job_id": 71, "comment": "pilotage:ab12", "name": "pilotage-ab12", "state_reason": "None"}
    other = {"job_id": 72, "comment": "", "name": "analysis", "job_state": "RUNNING", "exit_code": 0}
    jobs = [other, {**ours, "job_state": state, "exit_code": exit_code, **fields}]
    return json.dumps({"meta": {}, "errors": [], "jobs": jobs})


def status(text: str) -> GlideinStatus:
    (found,) = parse_queue(text).items()
    assert found[0] == JOB
    return found[1]


def test_a_pilot_of_known_sizes_asks_for_them() -> None:
    told = submission(
        a_request(Shape(cpus=8, memory_mib=16000, disk_mib=5, gpus=2), 3601), THERE, "atlas", ("--qos=grid",)
    )
    assert told == (
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


def test_what_is_not_known_of_a_pilot_is_left_to_the_cluster() -> None:
    names = {option.partition("=")[0] for option in submission(a_request(Shape(memory_mib=0, gpus=0)), THERE, "", ())}
    assert names.isdisjoint({"--mem", "--gres", "--time", "--cpus-per-task", "--account"})


def test_a_folder_with_a_percent_sign_is_no_pattern_of_the_output_file() -> None:
    told = submission(a_request(), PurePosixPath("/work/100%j/pilot.log"), "", ())
    assert "--output=/work/100%%j/pilot.log" in told
    assert "--chdir=/work/100%j" in told


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["C"])), min_size=1))
def test_a_script_runs_the_command_as_it_is(command: list[str]) -> None:
    first, second = script(replace(a_request(), command=tuple(command))).split("\n", maxsplit=1)
    assert first == "#!/bin/sh"
    assert shlex.split(second) == ["exec", *command]


def started_alone(**fields: str) -> subprocess.CompletedProcess[str]:
    """Return what became of a script whose pilot shows what it is given."""
    alone = SelfContained(("cat", "-"), GIVEN, **fields)
    text = script(replace(a_request(), self_contained=alone))
    return subprocess.run(["sh"], input=text, capture_output=True, text=True, check=False)


def test_a_pilot_that_sees_no_folder_reads_all_that_it_is_given_as_it_is() -> None:
    assert started_alone().stdout == GIVEN + "\n"


def test_a_bundle_that_is_not_the_directors_is_not_started(tmp_path: Path) -> None:
    bundle = tmp_path / "the pilot's.pyz"
    bundle.write_bytes(b"pilot")
    right = hashlib.sha256(b"pilot").hexdigest()
    assert started_alone(program=str(bundle), sha256=right).stdout == GIVEN + "\n"
    for program, sha256 in ((bundle, "0" * 64), (tmp_path / "none", right)):
        done = started_alone(program=str(program), sha256=sha256)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.endswith(f"{program}: is not the pilot bundle that the site director has\n")


@pytest.mark.parametrize(
    ("said", "job"),
    [
        ("71\n", ("71", "")),
        ("71;big\n", ("71", "big")),
        ("Welcome to big\n71;big\n", ("71", "big")),
        ("", None),
        ("Submitted\n", None),
    ],
)
def test_the_job_id_and_its_cluster_are_the_last_word_of_sbatch(said: str, job: tuple[str, str] | None) -> None:
    assert submitted_job(said) == job


@pytest.mark.parametrize(
    ("complaint", "nothing"),
    [
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", True),
        ("sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received", True),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", True),
        ("sbatch: error: invalid partition specified: shortt", False),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", False),
    ],
)
def test_a_refusal_is_told_apart_from_an_answer_that_did_not_come(complaint: str, nothing: bool) -> None:
    assert is_no_answer(complaint) is nothing


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
def test_only_an_end_that_slurm_tells_of_is_an_end(state: object, expected: GlideinState) -> None:
    assert status(an_answer(state)).state is expected


@pytest.mark.parametrize(
    ("state", "said", "code"),
    [
        ("COMPLETED", 0, 0),
        ("FAILED", 3 * 256, 3),
        ("FAILED", 9, 137),
        ("FAILED", 0, None),
        ("COMPLETED", number(0), 0),
        ("FAILED", number(256), 1),
        ("FAILED", number(None), None),
        (["COMPLETED"], told_in_parts(0), 0),
        (["FAILED"], told_in_parts(7), 7),
        (["FAILED"], told_in_parts(0, 15), 143),
        (["FAILED"], told_in_parts(0, 15, "signal_id"), 143),
        (["OUT_OF_MEMORY"], told_in_parts(125), 125),
        (["CANCELLED"], told_in_parts(0, 15), None),
        ("NODE_FAIL", 256, None),
        ("FAILED", "odd", None),
        ("FAILED", 0x17F, None),
    ],
)
def test_exit_codes_of_all_releases_are_read_and_those_of_others_doing_are_not(
    state: object, said: object, code: int | None
) -> None:
    found = status(an_answer(state, said))
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
def test_what_could_not_be_started_or_was_lost_has_failed_without_an_exit_code(state: str, failed: bool) -> None:
    found = status(an_answer(state))
    assert (found.exit_code, found.has_failed) == (None, failed)


@pytest.mark.parametrize("user_id", [1001, number(1001)])
def test_a_job_of_another_user_is_none_of_ours_though_it_says_so(user_id: object) -> None:
    answer = an_answer("RUNNING", user_id=user_id)
    assert parse_queue(answer, 1000) == {}
    assert set(parse_queue(answer, 1001)) == {JOB}
    assert set(parse_queue(answer)) == {JOB}


def test_a_job_whose_user_is_not_told_is_known_by_its_stamp() -> None:
    assert set(parse_queue(an_answer("RUNNING"), 1000)) == {JOB}


def test_a_drain_reason_and_node_names_with_spaces_are_only_words() -> None:
    reason = "Nodes required for job are DOWN, DRAINED (disk on node 7 is bad, see ticket) or reserved"
    found = status(an_answer("PENDING", state_reason=reason, nodes="node 7|node [8-9]"))
    assert found == GlideinStatus(GlideinState.WAITING, f"PENDING ({reason})")


def test_a_job_is_known_by_its_name_where_a_site_writes_comments_of_its_own() -> None:
    assert status(an_answer("RUNNING", comment="project 17")).state is GlideinState.RUNNING


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("", "it is no JSON"),
        (an_answer("RUNNING")[:-20], "it is no JSON"),
        ("[]", "it has no list of jobs"),
        ('{"jobs": null}', "it has no list of jobs"),
        ('{"jobs": [], "errors": [{"description": "no controller"}]}', "no controller"),
        ('{"jobs": ' + "[" * 100_000, "it is no JSON"),
    ],
)
def test_an_answer_that_is_not_whole_says_nothing_of_any_job(answer: str, why: str) -> None:
    with pytest.raises(WorldError, match=why):
        parse_queue(answer)


def test_a_job_that_cannot_be_read_disturbs_no_other() -> None:
    answer = json.loads(an_answer("RUNNING"))
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
def test_no_answer_breaks_the_reading(fields: dict[str, Any]) -> None:
    parse_queue(json.dumps({"jobs": [{"comment": "pilotage:ab12", **fields}]}))
