"""Job policies in each of the job languages."""

from __future__ import annotations

import pytest

from pilotage.job_description import NO_POLICY, JobPolicy
from support.job_texts import jdl_error, jdl_job, submit_error, submit_job, toml_error, toml_jobs

POLICY = JobPolicy(
    periodic_hold="NumJobStarts > 3",
    periodic_hold_reason='"tried too often"',
    periodic_hold_subcode="40 + 2",
    periodic_release="time() - EnteredCurrentStatus > 60",
    periodic_remove="JobStatus == 5",
)

SUBMIT = """
limit = 3
periodic_hold = NumJobStarts > $(limit)
PeriodicHoldReason = "tried too often"
periodic_hold_subcode = 40 + 2
+PeriodicRelease = time() - EnteredCurrentStatus > 60
MY.PeriodicRemove = JobStatus == 5
"""

JDL = """
Executable = "run";
PeriodicHold = NumJobStarts > 3;
PeriodicHoldReason = "tried too often";
PeriodicHoldSubCode = 40 + 2;
PeriodicRelease = time() - EnteredCurrentStatus > 60;
PeriodicRemove = JobStatus == 5;
"""

TOML = """
executable = "run"
[policy]
periodic_hold = "NumJobStarts > 3"
periodic_hold_reason = '"tried too often"'
periodic_hold_subcode = "40 + 2"
periodic_release = "time() - EnteredCurrentStatus > 60"
periodic_remove = "JobStatus == 5"
"""


def test_each_language_expresses_whole_policy() -> None:
    (from_toml,) = toml_jobs(TOML)
    assert submit_job(SUBMIT).policy == POLICY
    assert jdl_job(JDL).policy == POLICY
    assert from_toml.policy == POLICY


def test_policy_stays_an_attribute_without_warning() -> None:
    job = submit_job('periodic_remove = JobStatus == 5\ntransfer_output_files = ""')
    assert job.attributes["periodic_remove"] == "JobStatus == 5"
    assert job.warnings == ()


def test_empty_policy_is_ignored() -> None:
    assert submit_job("periodic_remove =").policy == NO_POLICY


def test_backslashes_of_submit_files_are_literal() -> None:
    assert submit_job(r'periodic_hold = regexp("a\.b", Cmd)').policy.periodic_hold == r'regexp("a\\.b", Cmd)'


@pytest.mark.parametrize(
    ("expression", "cause"),
    [("random() > 0.5", "random functions"), ("1 +", "not a ClassAd expression"), ("x||" * 2000 + "x", "at most 4096")],
)
def test_error_names_line_of_invalid_policy(expression: str, cause: str) -> None:
    in_submit = submit_error(f"executable = run\nperiodic_hold = {expression}\nqueue\n")
    assert in_submit.startswith("job.sub:2: periodic_hold: ")
    assert cause in in_submit
    in_jdl = jdl_error(f'Executable = "run";\nPeriodicHold = {expression};\n')
    assert in_jdl.startswith("job.jdl:2: PeriodicHold: ")
    assert cause in in_jdl
    in_toml = toml_error(f'executable = "run"\n[policy]\nperiodic_hold = "{expression}"\n')
    assert in_toml.startswith("job.toml:2: policy ")
    assert cause in in_toml


def test_error_for_unknown_policy_lists_known_ones() -> None:
    error = toml_error('executable = "run"\n[policy]\nperiodic_vacate = "true"\n')
    assert "has periodic_vacate, which is none of periodic_hold, " in error


@pytest.mark.parametrize(
    ("command", "attribute"),
    [
        ("allowed_job_duration", "AllowedJobDuration"),
        ("max_job_retirement_time", "MaxJobRetirementTime"),
        ("job_max_vacate_time", "JobMaxVacateTime"),
    ],
)
def test_commands_set_attributes_under_condor_names(command: str, attribute: str) -> None:
    assert submit_job(f"{command} = 2 * 60").attributes == {attribute: 120}
    jdl = jdl_job(f'Executable = "run"; {attribute} = 2 * 60;')
    assert (jdl.attributes, jdl.warnings) == ({attribute: 120}, ())
