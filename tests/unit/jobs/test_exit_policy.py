"""What follows the end of a payload: HTCondor's rules for retries, and more memory after the memory limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pilotage.job_description import JobDescription, JobPolicy
from pilotage_server.core.classads.evaluation import FoldedAd
from pilotage_server.core.jobs.exit_policy import (
    ExitDecision,
    ExitPolicyEvaluator,
    after_memory_limit,
    exit_check,
    exit_remove_expression,
    retry_delay,
)
from pilotage_server.core.jobs.record import ExitCheck
from pilotage_server.core.jobs.states import HoldCode, JobCause, JobState
from pilotage_server.core.queueing.job_ads import full_job_ad
from support.jobs import a_job

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
POLICIES = frozenset({"on_exit_hold", "on_exit_hold_reason", "on_exit_hold_subcode", "on_exit_remove"})


def described(**fields: Any) -> JobDescription:
    policy = {name: fields.pop(name) for name in POLICIES & fields.keys()}
    return JobDescription("/bin/true", policy=JobPolicy(**policy), **fields)


def decide(
    description: JobDescription, exit_code: int | None = 0, signal: int | None = None, ends: int = 1, **fields: Any
) -> ExitDecision:
    """Return the decision about the exit of a running job whose payload has exited `ends` times."""
    job = a_job(
        **{"state": JobState.RUNNING, "exit_code": exit_code, "signal": signal, "completions": ends, "starts": ends}
        | {"started": NOW - timedelta(hours=1)}
        | fields
    )
    reason = f"signal {signal}" if signal else f"exit code {exit_code}" if exit_code else ""
    ad = FoldedAd(full_job_ad(job, description, NOW))
    return ExitPolicyEvaluator().decision(job, description, ad, reason, NOW)


@pytest.mark.parametrize(
    ("fields", "expression"),
    [
        ({}, None),
        ({"success_exit_code": 3}, None),
        ({"on_exit_remove": "ExitCode == 0"}, "ExitCode == 0"),
        ({"retries": 3}, "NumJobCompletions > JobMaxRetries || ExitCode =?= 0"),
        ({"retries": 3, "success_exit_code": 0}, "NumJobCompletions > JobMaxRetries || ExitCode =?= 0"),
        (
            {"retries": 3, "success_exit_code": 5, "retry_until": "7"},
            "NumJobCompletions > JobMaxRetries || ExitCode =?= JobSuccessExitCode || ExitCode =?= 7",
        ),
        (
            {"retries": 1, "retry_until": "ExitCode > 3", "on_exit_remove": "ExitBySignal"},
            "NumJobCompletions > JobMaxRetries || ExitCode =?= 0 || (ExitCode > 3) || (ExitBySignal)",
        ),
        (
            {"retries": 1, "on_exit_remove": "ExitBySignal // or so"},
            "NumJobCompletions > JobMaxRetries || ExitCode =?= 0 || (ExitBySignal // or so\n)",
        ),
        (
            {"retries": 1, "retry_exit_codes": (3, 4)},
            "NumJobCompletions > JobMaxRetries || ExitCode =?= 0 || (ExitCode =!= 3 && ExitCode =!= 4)",
        ),
    ],
)
def test_on_exit_remove_is_htcondors_expression(fields: dict[str, Any], expression: str | None) -> None:
    assert exit_remove_expression(described(**fields)) == expression


@pytest.mark.parametrize(
    ("fields", "check"),
    [
        ({}, ExitCheck.NONE),
        ({"max_starts": 3}, ExitCheck.NONE),
        ({"success_exit_code": 0}, ExitCheck.NONE),
        ({"retries": 3}, ExitCheck.FAILURES),
        ({"retries": 3, "retry_until": "ExitCode == 0"}, ExitCheck.FAILURES),
        ({"retry_memory": 2.0}, ExitCheck.FAILURES),
        ({"retries": 3, "success_exit_code": 1}, ExitCheck.ALL),
        ({"on_exit_hold": "ExitCode == 3"}, ExitCheck.ALL),
        ({"on_exit_remove": "false"}, ExitCheck.ALL),
    ],
)
def test_only_possible_repetitions_are_checked(fields: dict[str, Any], check: ExitCheck) -> None:
    assert exit_check(described(**fields)) is check


@pytest.mark.parametrize(
    ("fields", "end", "cause", "reason"),
    [
        ({"retries": 2}, {"exit_code": 0}, JobCause.DONE, ""),
        ({"retries": 2}, {"exit_code": 3}, JobCause.RETRIED, "retry 1 of 2 after exit code 3"),
        ({"retries": 2}, {"exit_code": None, "signal": 9}, JobCause.RETRIED, "retry 1 of 2 after signal 9"),
        ({"retries": 2}, {"exit_code": 3, "ends": 2}, JobCause.RETRIED, "retry 2 of 2 after exit code 3"),
        ({"retries": 2}, {"exit_code": 3, "ends": 3}, JobCause.FAILED, "exit code 3, after 2 of 2 retries"),
        ({"retries": 2}, {"exit_code": 0, "ends": 3}, JobCause.DONE, ""),
        ({"retries": 0}, {"exit_code": 3}, JobCause.FAILED, "exit code 3"),
        ({"success_exit_code": 3}, {"exit_code": 3}, JobCause.DONE, ""),
        ({"success_exit_code": 3}, {"exit_code": 0}, JobCause.FAILED, "exit code 0"),
        ({"success_exit_code": 3, "retries": 1}, {"exit_code": 0}, JobCause.RETRIED, "retry 1 of 1 after exit code 0"),
        ({"retries": 2, "retry_until": "7"}, {"exit_code": 7}, JobCause.FAILED, "exit code 7"),
        ({"retries": 2, "retry_until": "7"}, {"exit_code": 8}, JobCause.RETRIED, "retry 1 of 2 after exit code 8"),
        ({"retries": 9, "retry_until": "NumJobStarts >= 2"}, {"exit_code": 8, "ends": 2}, JobCause.FAILED, None),
        ({"retries": 2, "retry_exit_codes": (3,)}, {"exit_code": 3}, JobCause.RETRIED, None),
        ({"retries": 2, "retry_exit_codes": (3,)}, {"exit_code": 4}, JobCause.FAILED, "exit code 4"),
        ({"retries": 2, "retry_exit_codes": (3,)}, {"exit_code": None, "signal": 11}, JobCause.FAILED, "signal 11"),
        ({"on_exit_remove": "ExitCode == 0"}, {"exit_code": 0}, JobCause.DONE, ""),
        ({"on_exit_remove": "true"}, {"exit_code": 3}, JobCause.FAILED, "exit code 3"),
        ({"on_exit_remove": "1"}, {"exit_code": 3}, JobCause.FAILED, "exit code 3"),
        (
            {"on_exit_remove": "ExitCode == 0"},
            {"exit_code": 3},
            JobCause.RETRIED,
            "run 2 after exit code 3, as its on_exit_remove is false",
        ),
        (
            {"on_exit_remove": "false"},
            {"exit_code": 0, "ends": 4},
            JobCause.RETRIED,
            "run 5 after exit code 0, as its on_exit_remove is false",
        ),
        ({"on_exit_remove": "NumJobCompletions >= 3"}, {"exit_code": 0, "ends": 3}, JobCause.DONE, ""),
        ({"retries": 3, "on_exit_remove": "ExitBySignal"}, {"exit_code": None, "signal": 9}, JobCause.FAILED, None),
        (
            {"retries": 2},
            {"exit_code": 3, "max_starts": 1},
            JobCause.FAILED,
            "exit code 3; its max_starts = 1 permits no retry",
        ),
    ],
)
def test_decides_as_htcondor(fields: dict[str, Any], end: dict[str, Any], cause: JobCause, reason: str | None) -> None:
    decision = decide(described(**fields), **end)
    assert decision.cause is cause
    assert reason is None or decision.reason == reason


@pytest.mark.parametrize(
    ("fields", "exit_code", "reason", "shown"),
    [
        ({"retries": 1}, 0, "a is not there", "a is not there"),
        ({"success_exit_code": 3}, 3, "exit code 3; a is not there", "a is not there"),
        ({"success_exit_code": 3}, 0, "a is not there", "exit code 0; a is not there"),
        ({"retries": 1}, 3, "exit code 3; a is not there", "retry 1 of 1 after exit code 3; a is not there"),
    ],
)
def test_notes_on_the_output_stay_in_the_reason(
    fields: dict[str, Any], exit_code: int, reason: str, shown: str
) -> None:
    job = a_job(state=JobState.RUNNING, exit_code=exit_code, completions=1)
    description = described(**fields)
    ad = FoldedAd(full_job_ad(job, description, NOW))
    assert ExitPolicyEvaluator().decision(job, description, ad, reason, NOW).reason == shown


@pytest.mark.parametrize(
    ("fields", "exit_code", "reason", "subcode"),
    [
        ({}, 3, "The job attribute OnExitHold expression 'ExitCode > 2' evaluated to TRUE", 0),
        ({"on_exit_hold_reason": 'strcat("code ", ExitCode)', "on_exit_hold_subcode": "ExitCode"}, 4, "code 4", 4),
        ({"on_exit_hold_reason": '"why"', "on_exit_hold_subcode": "true"}, 4, "why", 0),
        ({"retries": 5, "on_exit_hold_reason": '"before any retry"'}, 3, "before any retry", 0),
    ],
)
def test_on_exit_hold_comes_first(fields: dict[str, Any], exit_code: int, reason: str, subcode: int) -> None:
    decision = decide(described(on_exit_hold="ExitCode > 2", **fields), exit_code)
    assert (decision.cause, decision.reason) == (JobCause.HELD, reason)
    assert decision.changes == {"hold_code": HoldCode.JOB_POLICY, "hold_subcode": subcode, "lease_until": None}


@pytest.mark.parametrize(
    ("fields", "end", "name"),
    [
        ({"on_exit_hold": "NoSuch == 3"}, {"exit_code": 0}, "OnExitHold"),
        ({"on_exit_remove": '"text"'}, {"exit_code": 0}, "OnExitRemove"),
        ({"on_exit_remove": "ExitCode == 0"}, {"exit_code": None, "signal": 9}, "OnExitRemove"),
    ],
)
def test_expression_that_is_neither_true_nor_false_holds(
    fields: dict[str, Any], end: dict[str, Any], name: str
) -> None:
    decision = decide(described(**fields), **end)
    assert (decision.cause, decision.changes["hold_code"]) == (JobCause.HELD, HoldCode.JOB_POLICY_UNDEFINED)
    assert decision.reason.startswith(f"The job attribute {name} expression ")
    assert decision.reason.endswith(" evaluated to UNDEFINED")


@pytest.mark.parametrize(
    ("delay_s", "retry", "delayed_s"),
    [(0, 1, 0), (10, 1, 10), (10, 2, 20), (10, 4, 80), (10, 40, 3600), (7200, 1, 7200), (7200, 9, 7200)],
)
def test_delay_doubles_up_to_an_hour(delay_s: int, retry: int, delayed_s: int) -> None:
    description = described(retries=100, retry_delay=timedelta(seconds=delay_s))
    assert retry_delay(description, retry) == timedelta(seconds=delayed_s)


def test_delayed_retry_has_a_due_time_in_its_reason() -> None:
    decision = decide(described(retries=5, retry_delay=timedelta(seconds=30)), 3, ends=2)
    due = NOW + timedelta(seconds=60)
    assert decision.changes == {"fenced_until": due, "lease_until": due}
    assert decision.reason == "retry 2 of 5 after exit code 3, not before 2026-11-20 12:01:00 UTC"


def test_job_that_ends_at_once_is_repeated_at_most_once_a_minute() -> None:
    description = described(on_exit_remove="false")
    began = NOW - timedelta(seconds=1)
    assert decide(description, ends=10, started=began).changes == {}
    assert decide(description, ends=11, started=began).changes["lease_until"] == began + timedelta(minutes=1)
    assert decide(description, ends=11, started=NOW - timedelta(hours=1)).changes == {}


@pytest.mark.parametrize(
    ("factor", "limit_mib", "largest_mib", "next_mib"),
    [(2.0, 100, 1000, 200), (1.5, 101, 1000, 152), (4.0, 100, 300, 300), (2.0, 150, 1000, 300)],
)
def test_memory_grows_from_the_limit_that_was_reached(
    factor: float, limit_mib: int, largest_mib: int, next_mib: int
) -> None:
    description = described(request_memory_mib=100, retry_memory=factor)
    job = a_job(state=JobState.RUNNING)
    decision, larger = after_memory_limit(job, description, "limit exceeded", limit_mib, largest_mib)
    assert (decision.cause, larger.request_memory_mib) == (JobCause.RETRIED, next_mib)
    assert decision.reason == f"retry with {next_mib} MiB of memory after limit exceeded"


@pytest.mark.parametrize("largest_mib", [100, 50, 0])
def test_job_with_the_largest_memory_fails(largest_mib: int) -> None:
    description = described(request_memory_mib=100, retry_memory=2.0)
    decision, same = after_memory_limit(a_job(state=JobState.RUNNING), description, "limit exceeded", 100, largest_mib)
    assert (decision.cause, same) == (JobCause.FAILED, description)
    assert decision.reason == ("limit exceeded; no queue offers more than 100 MiB of memory, so it is not retried")
