"""Retries and holds at the exit of the payload, in the job languages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pilotage.job_description import JobDescription
from pilotage_client.readers.draft import ReadError
from pilotage_client.readers.jdl import read_jdl
from pilotage_client.readers.submit import read_submit
from pilotage_client.readers.toml import read_toml

RETRYING = ("retries", "success_exit_code", "retry_until", "retry_exit_codes", "retry_delay", "retry_memory")
ON_EXIT = ("on_exit_hold", "on_exit_hold_reason", "on_exit_hold_subcode", "on_exit_remove")
NOTHING = JobDescription("run.sh")


def submit_job(commands: str) -> JobDescription:
    text = f"executable = run.sh\n{commands}\nqueue\n"
    (job,) = read_submit(text, "job.sub", Path(), datetime(2026, 11, 20, tzinfo=UTC))
    return job


def toml_job(keys: str) -> JobDescription:
    (job,) = read_toml(f'executable = "run.sh"\n{keys}\n', "job.toml")
    return job


def retrying(job: JobDescription) -> dict[str, Any]:
    """Return the fields that differ from those of a job without retries."""
    fields = {name: (getattr(job, name), getattr(NOTHING, name)) for name in RETRYING}
    fields |= {name: (getattr(job.policy, name), None) for name in ON_EXIT}
    return {name: value for name, (value, default) in fields.items() if value != default}


@pytest.mark.parametrize(
    ("commands", "fields"),
    [
        ("max_retries = 3", {"retries": 3}),
        ("max_retries = 2 + 1", {"retries": 3}),
        ("max_retries = 0", {"retries": 0}),
        ("max_retries =", {}),
        ("success_exit_code = 3", {"retries": 2, "success_exit_code": 3}),
        ("retry_until = 7", {"retries": 2, "retry_until": "7"}),
        ("max_retries = 1\nretry_until = ExitCode > 3", {"retries": 1, "retry_until": "ExitCode > 3"}),
        (
            'on_exit_hold = ExitCode == 3\non_exit_hold_reason = "bad"\non_exit_hold_subcode = 4',
            {"on_exit_hold": "ExitCode == 3", "on_exit_hold_reason": '"bad"', "on_exit_hold_subcode": "4"},
        ),
        ("on_exit_remove = ExitCode == 0", {"on_exit_remove": "ExitCode == 0"}),
        ("+OnExitRemove = ExitCode == 0", {"on_exit_remove": "ExitCode == 0"}),
    ],
)
def test_submit_file_has_htcondors_retries(commands: str, fields: dict[str, Any]) -> None:
    job = submit_job(commands)
    assert (retrying(job), job.warnings) == (fields, ())


@pytest.mark.parametrize(
    ("keys", "fields"),
    [
        ("retries = 5", {"retries": 5}),
        ("retries = 1\nretry_until = 7", {"retries": 1, "retry_until": "7"}),
        ('retries = 1\nretry_until = "ExitCode > 3"', {"retries": 1, "retry_until": "ExitCode > 3"}),
        ("retries = 1\nretry_exit_codes = [3, 4]", {"retries": 1, "retry_exit_codes": (3, 4)}),
        ("retries = 1\nretry_exit_codes = 3", {"retries": 1, "retry_exit_codes": (3,)}),
        ("retries = 1\nretry_delay_s = 1.5", {"retries": 1, "retry_delay": timedelta(seconds=1.5)}),
        ('retry_memory = "2x"', {"retry_memory": 2.0}),
        ('retry_memory = "1.5x"', {"retry_memory": 1.5}),
        ("success_exit_code = 3", {"success_exit_code": 3}),
        ('[policy]\non_exit_hold = "ExitCode == 3"', {"on_exit_hold": "ExitCode == 3"}),
    ],
)
def test_toml_has_retries(keys: str, fields: dict[str, Any]) -> None:
    assert retrying(toml_job(keys)) == fields


@pytest.mark.parametrize(
    "commands",
    ["max_retries = -1", "max_retries = many", "success_exit_code = a", "retry_until = ExitCode >", "on_exit_hold = ("],
)
def test_invalid_command_is_an_error_with_its_line(commands: str) -> None:
    with pytest.raises(ReadError, match=rf"job.sub:2: .*{commands.partition(' ')[0]}"):
        submit_job(commands)


@pytest.mark.parametrize(
    "keys",
    [
        "retries = -1",
        "retries = true",
        'retry_until = "ExitCode >"',
        "retry_until = true",
        'retry_exit_codes = ["3"]',
        'retry_delay_s = "5 min"',
        "retry_delay_s = -1",
        "retry_memory = 2",
        'retry_memory = "2"',
        'retry_memory = "twice"',
    ],
)
def test_invalid_key_is_an_error_with_its_line(keys: str) -> None:
    with pytest.raises(ReadError, match=rf"job.toml:2: {keys.partition(' ')[0]}"):
        toml_job(keys)


@pytest.mark.parametrize(
    ("attributes", "max_starts"),
    [("RetryCount = 0;", 1), ("RetryCount = 3;", 4), ("RetryCount = -1;", 1), ("RetryCount = 3; MaxStarts = 2;", 2)],
)
def test_retry_count_of_glite_bounds_the_starts(attributes: str, max_starts: int) -> None:
    (job,) = read_jdl(f'Executable = "run.sh"; {attributes}', "job.jdl")
    assert (job.max_starts, job.retries, job.warnings) == (max_starts, None, ())


def test_jdl_has_policies_at_the_exit() -> None:
    policies = 'OnExitHold = Flag; OnExitHoldReason = "no data"; OnExitHoldSubCode = 4; OnExitRemove = ExitCode == 0;'
    (job,) = read_jdl(f'Executable = "run.sh"; {policies}', "job.jdl")
    assert retrying(job) == {
        "on_exit_hold": "Flag",
        "on_exit_hold_reason": '"no data"',
        "on_exit_hold_subcode": "4",
        "on_exit_remove": "ExitCode == 0",
    }
    assert job.warnings == ()
