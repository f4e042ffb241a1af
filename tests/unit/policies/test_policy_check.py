"""`pilotage-pilot check` evaluates a policy for a slot and a job, or prints one line with the error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilotage_pilot.command_line import run

NEEDS = {
    "glideinwms__condor_config.conf": "nothing defines GLIDECLIENT_Group_Rank",
    "glideinwms__condor_config.dedicated_starter.include.conf": "GLIDEIN_START_CONDITION",
    "glideinwms__condor_config.monitor.include.conf": "nothing defines GLIDEIN_HOLD_CONDITION",
    "htcondor__condor_config.reference.conf": "needs the file /etc/condor/condor_config.local",
    "prp-htcondor-portal__20-start-policy.conf": "nothing defines MATCHING_START, PROVISIONING_START",
}
"""The missing parts of files that belong to a larger configuration; all other files are complete."""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.conf"
    path.write_text("START = TARGET.Want =?= True && Load < 2\nSTARTD_ATTRS = Load\nLoad = LoadAvg * 2\n")
    return path


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.ad"
    path.write_text("Want = True\n")
    return path


def _checked(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert run(["check", *map(str, arguments), "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return dict(json.loads(output.out))


def _rejected(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run(["check", *map(str, arguments)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err


def test_shows_text_and_value_of_every_expression(capsys: pytest.CaptureFixture[str], policy: Path, job: Path) -> None:
    found = _checked(capsys, policy, "--job", job)
    assert found["START"] == {"text": "TARGET.Want =?= True && Load < 2", "value": True}
    assert found["IS_OWNER"] == {"text": "(START =?= False)", "value": False}
    assert found["CLAIM_WORKLIFE"] == {"text": "1200", "value": 1200}
    assert {"RANK", "SUSPEND", "CONTINUE", "PREEMPT", "WANT_SUSPEND", "WANT_VACATE", "KILL"} <= found.keys()
    assert {"MaxJobRetirementTime", "JOB_RENICE_INCREMENT", "PREEMPTION_REQUIREMENTS"} <= found.keys()


def test_set_option_overrides_slot_attribute(capsys: pytest.CaptureFixture[str], policy: Path, job: Path) -> None:
    assert _checked(capsys, policy, "--job", job, "--set", "loadavg=1.0")["START"]["value"] is False
    assert _checked(capsys, policy, "--job", job, "--set", "LoadAvg = 1 / 4.0")["START"]["value"] is True


def test_shows_undefined_and_error_values(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text('START = TARGET.X\nPREEMPT = 1 / 0\nRANK = "high"\nKILL = time() - EnteredCurrentState > 5\n')
    found = _checked(capsys, path, "--set", "EnteredCurrentState=time()-6")
    values = [found[name]["value"] for name in ("START", "PREEMPT", "RANK", "KILL")]
    assert values == ["undefined", "error", "high", True]


def test_prints_text_without_json_option(capsys: pytest.CaptureFixture[str], policy: Path) -> None:
    assert run(["check", str(policy)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["START", "false"]
    assert lines[1].strip() == "TARGET.Want =?= True && Load < 2"


def test_shared_policies_are_evaluated_without_error(capsys: pytest.CaptureFixture[str], shared_data: Path) -> None:
    paths = sorted((shared_data / "policies").glob("*.conf"))
    assert len(paths) >= 9
    for path in paths:
        values = {name: found["value"] for name, found in _checked(capsys, path, "--cpus", 8).items()}
        assert "error" not in values.values(), path
        assert isinstance(values["IS_OWNER"], bool), path


def test_real_configurations_load_or_report_missing_part(capsys: pytest.CaptureFixture[str], shared_data: Path) -> None:
    paths = sorted((shared_data / "data" / "policy_config").iterdir())
    assert len(paths) == 21
    assert NEEDS.keys() <= {path.name for path in paths}
    for path in paths:
        if path.name in NEEDS:
            error = _rejected(capsys, path)
            assert str(path) in error
            assert NEEDS[path.name] in error
        else:
            _checked(capsys, path)


def test_slot_option_selects_slot_of_layout(capsys: pytest.CaptureFixture[str], shared_data: Path) -> None:
    path = shared_data / "policies" / "whole_machine_suspend_wm.conf"
    assert _checked(capsys, path, "--slot", 9)["SlotWeight"]["value"] == 8
    claimed = _checked(capsys, path, "--slot", 9, "--set", 'State="Claimed"', "--set", 'Slot1_State="Claimed"')
    assert claimed["SUSPEND"]["value"] is True
    assert "there is no slot 10: this policy lays out 9 on this node" in _rejected(capsys, path, "--slot", 10)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("FOO BAR\n", ", line 1: "),
        ("START = (1 &&\n", ", line 1: START: "),
        ("START = False\nRANK = 1\nSTART = $(START) || (1 &&\n", ", line 3: START: "),
        ("SLOT2_START = 1\nNUM_SLOTS = 2\nSLOT2_START = (1 &&\n", ", line 3: START: "),
        ("START = True\nNUM_SLOTS = 2\nSLOT2_START = (1 &&\n", "policy.conf: START: "),
        ("\nSTART = ($(SITE_START))\n", ", line 2: START cannot be read: nothing defines SITE_START"),
        ("START = $(UNDEFINED)\n", ", line 1: START cannot be read: nothing defines UNDEFINED"),
        ("NUM_SLOTS = 2\nSLOT2_START = $(NO)\n", ", line 2: SLOT2_START cannot be read: nothing defines NO"),
        ("A =\nSUSPEND = $(A)\n", ", line 2: SUSPEND is empty: it must be an expression, such as False"),
        ("STARTD_ATTRS = Group\nGroup = $(NO)\n", ", line 2: Group cannot be read: nothing defines NO"),
        ("SLOT_TYPE_1 = cpus=$(NO_SUCH)\nNUM_SLOTS_TYPE_1 = 1\n", ", line 1: SLOT_TYPE_1 cannot be read: nothing def"),
        ("NUM_SLOTS_TYPE_1 = $(NO)\n", ", line 1: NUM_SLOTS_TYPE_1 cannot be read: nothing defines NO"),
        ("SLOT_TYPE_1 = cpus=x\nNUM_SLOTS_TYPE_1 = 1\n", ", line 1: SLOT_TYPE_1: x is not a size"),
        ("include command : date\n", "line 1: wants to run a command: date"),
        ("SLOT_TYPE_1 = cpus=400\nNUM_SLOTS_TYPE_1 = 1\n", "400 cores"),
        ("STARTD_ATTRS = Group\nGroup = “ALICE”\n", "Group: "),
    ],
)
def test_invalid_policy_is_rejected_in_one_line(
    capsys: pytest.CaptureFixture[str], policy: Path, text: str, why: str
) -> None:
    policy.write_text(text)
    error = _rejected(capsys, policy)
    assert str(policy) in error
    assert why in error


@pytest.mark.parametrize("change", ["LoadAvg", "=3", "Load Avg=3", "X=1;Y=2", "X=(", "X="])
def test_invalid_set_option_is_rejected(capsys: pytest.CaptureFixture[str], policy: Path, change: str) -> None:
    assert f"--set {change}: " in _rejected(capsys, policy, "--set", change)


def test_allow_commands_option_runs_commands(capsys: pytest.CaptureFixture[str], policy: Path) -> None:
    policy.write_text("include command : echo START = False\n")
    assert _checked(capsys, policy, "--allow-commands")["START"]["value"] is False


def test_template_without_argument_has_its_default(capsys: pytest.CaptureFixture[str], policy: Path) -> None:
    for use, limit in (("Limit_Job_Runtimes", "24*3600"), ("Limit_Job_Runtimes(60)", "60")):
        policy.write_text(f"use POLICY:{use}\n")
        assert _checked(capsys, policy)["PREEMPT"]["text"].endswith(f"(time() - EnteredCurrentActivity) > {limit})")


def test_missing_htcondor_library_names_package_to_install(tmp_path: Path, policy: Path) -> None:
    (tmp_path / "htcondor2.py").write_text("raise ImportError\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "pilotage_pilot.main", "check", str(policy)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert process.stderr.count("\n") == 1
    assert "pip install htcondor" in process.stderr


# Job files ------------------------------------------------------------------------------------------------------------

SAME_JOB = {
    "condor_q -long": 'Want = True\nSize = 3\nPath = "a\\b"\n\n',
    "a ClassAd": '[ Want = true; Size = 3; Path = "a\\\\b" ]',
    "JSON": '{"Want": true, "Size": 3, "Path": "a\\\\b"}',
    "condor_q -json": '[{"Want": "/Expr(1 == 1)/", "Size": 3, "Path": "a\\\\b"}]',
    "a submit file": 'executable = x\nN = 3\n+Want = True\nMY.Size = $(N)\n+Path = "a\\b"\nqueue 2\n',
}


@pytest.mark.parametrize("text", SAME_JOB.values(), ids=SAME_JOB.keys())
def test_reads_job_from_every_supported_format(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    start = "START = TARGET.Want && TARGET.JobUniverse == 5\n"
    (tmp_path / "p").write_text(f"{start}RANK = TARGET.Size\nPREEMPT = size(TARGET.Path) == 3\n")
    (tmp_path / "job").write_text(text)
    found = _checked(capsys, tmp_path / "p", "--job", tmp_path / "job")
    assert [found[name]["value"] for name in ("START", "RANK", "PREEMPT")] == [True, 3, True]


def test_reads_requests_of_submit_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "p").write_text("START = RequestCpus == 4 && JobUniverse == 9\nRANK = RequestMemory\n")
    (tmp_path / "job").write_text("universe = grid\nrequest_cpus = 4\nrequest_memory = 2 GB\nqueue\n")
    found = _checked(capsys, tmp_path / "p", "--job", tmp_path / "job")
    assert (found["START"]["value"], found["RANK"]["value"]) == (True, 2048)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "holds no job"),
        ("Want = True\nnonsense\n", "line 2: is not of the form Name = value: nonsense"),
        ("Want = (\n", "line 1: "),
        ("A = 1\n\nA = 2\n", "line 3: another job begins"),
        ("[1, 2]", "holds no job, or more than one"),
        ("A = $(B)\nB = $(A)\nqueue\n", "in a circle"),
    ],
)
def test_invalid_job_file_is_rejected_with_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, policy: Path, text: str, why: str
) -> None:
    (tmp_path / "job").write_text(text)
    error = _rejected(capsys, policy, "--job", tmp_path / "job")
    assert str(tmp_path / "job") in error
    assert why in error


@pytest.mark.parametrize("text", ["{}", "[ ]", "[{}]", "# no attributes\n"])
def test_empty_job_file_is_new_job(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    (tmp_path / "job").write_text(text)
    (tmp_path / "p").write_text("START = TARGET.Want == True\nRANK = JobUniverse\n")
    found = _checked(capsys, tmp_path / "p", "--job", tmp_path / "job")
    assert [found[name]["value"] for name in ("START", "RANK")] == ["undefined", 5]


def test_attribute_named_queue_makes_no_submit_file(
    capsys: pytest.CaptureFixture[str], policy: Path, tmp_path: Path
) -> None:
    job = tmp_path / "job.ad"
    job.write_text('queue = "long"\nWant = True\n')
    policy.write_text('START = TARGET.queue == "long" && TARGET.Want\n')
    assert _checked(capsys, policy, "--job", job)["START"]["value"] is True


def test_missing_job_file_is_rejected(capsys: pytest.CaptureFixture[str], tmp_path: Path, policy: Path) -> None:
    assert "nojob: cannot be read" in _rejected(capsys, policy, "--job", tmp_path / "nojob")
