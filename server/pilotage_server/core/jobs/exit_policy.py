"""Exit policies: what follows when the payload of a job has ended by itself, or by its memory limit.

Rules
-----
As HTCondor's schedd decides (manual: condor_submit, max_retries, retry_until, success_exit_code, on_exit_hold,
on_exit_remove):

- `on_exit_hold` comes first: true holds the job. Then `on_exit_remove`: false runs it again, true ends it.
- With `retries` the expression of `on_exit_remove` is: the retries are used, or the exit code means success, or
  `retry_until`, or the owner's own expression.
- An expression that is neither true nor false holds the job.

Beyond HTCondor:

- A job that ends is DONE with the exit code that means success, else FAILED.
- After the memory limit has ended an attempt, a job with `retry_memory` asks for more memory. Such a retry is none of
  the `retries`: the memory grows each time, and the largest queue bounds it.
- Attempts that the infrastructure loses are not decided here and use no retry.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

from pilotage.classads.evaluation import Result
from pilotage.classads.tokens import bracketed
from pilotage.job_description import JobDescription
from pilotage_server.core.classads.evaluation import AdEvaluator, FoldedAd
from pilotage_server.core.jobs.record import ExitCheck, JobRecord, may_start_again
from pilotage_server.core.jobs.states import HoldCode, JobCause

LONGEST_DELAY = timedelta(hours=1)
"""The doubled delay of a retry is at most this, or the owner's delay if that is longer."""
FREE_RETRIES = 10
"""After so many retries a job starts at most once a minute, so that one that ends at once harms nobody."""
_LEAST_INTERVAL = timedelta(minutes=1)
_MOST_DOUBLINGS = 32
_LARGEST_SUBCODE = 2**31 - 1
_CODE = re.compile(r"[+-]?\d{1,10}", re.ASCII)


class ExitDecision(NamedTuple):
    """What follows the end of a payload: DONE, FAILED, RETRIED or HELD, with the reason for people.

    `changes` are fields of the record that change with it.
    """

    cause: JobCause
    reason: str
    changes: Mapping[str, Any] = MappingProxyType({})


def exit_check(description: JobDescription) -> ExitCheck:
    """Return which ends the exit policy of such a job decides about."""
    policy = description.policy
    if policy.on_exit_hold is not None or policy.on_exit_remove is not None or description.success_exit_code:
        return ExitCheck.ALL
    may_retry = description.retries is not None or description.retry_memory is not None
    return ExitCheck.FAILURES if may_retry else ExitCheck.NONE


def exit_remove_expression(description: JobDescription) -> str | None:
    """Return the expression whose falsehood runs the job again, in HTCondor's form; None = it always ends."""
    own = description.policy.on_exit_remove
    if description.retries is None:
        return own
    success = "JobSuccessExitCode" if description.success_exit_code else "0"
    clauses = ["NumJobCompletions > JobMaxRetries", f"ExitCode =?= {success}"]
    if description.retry_until is not None:
        until = description.retry_until.strip()
        clauses.append(f"ExitCode =?= {int(until)}" if _CODE.fullmatch(until) else bracketed(until))
    if description.retry_exit_codes:
        codes = " && ".join(f"ExitCode =!= {code}" for code in description.retry_exit_codes)
        clauses.append(f"({codes})")
    if own is not None:
        clauses.append(bracketed(own))
    return " || ".join(clauses)


class ExitPolicyEvaluator:
    """Evaluates exit policies; equal values of the attributes that an expression reads are evaluated once."""

    def __init__(self) -> None:
        self._evaluator = AdEvaluator()

    def decision(
        self, job: JobRecord, description: JobDescription, ad: FoldedAd, reason: str, now: datetime
    ) -> ExitDecision:
        """Return what follows the exit of the job's payload.

        `job` is the record with this exit, which `completions` counts already, and `ad` its ad; it still has its
        lease. `reason` tells how the payload ended unless with exit code 0, and has notes on its output.
        """
        hold = description.policy.on_exit_hold
        if hold is not None:
            holds = _truth(self._evaluator.value(hold, ad))
            if holds is None:
                return _undefined("OnExitHold", hold)
            if holds:
                return self._hold(description, hold, ad)
        expression = exit_remove_expression(description)
        ends = True if expression is None else _truth(self._evaluator.value(expression, ad))
        if ends is None:
            return _undefined("OnExitRemove", expression or "")
        return _end(job, description, reason) if ends else _retry(job, description, reason, now)

    def _hold(self, description: JobDescription, text: str, ad: FoldedAd) -> ExitDecision:
        policy = description.policy
        own = self._evaluator.value(policy.on_exit_hold_reason, ad) if policy.on_exit_hold_reason else None
        reason = own if isinstance(own, str) and own else _evaluated_to("OnExitHold", text, "TRUE")
        subcode = self._evaluator.value(policy.on_exit_hold_subcode, ad) if policy.on_exit_hold_subcode else None
        if isinstance(subcode, bool) or not isinstance(subcode, int) or abs(subcode) > _LARGEST_SUBCODE:
            subcode = 0
        return _held(HoldCode.JOB_POLICY, reason, subcode)


def after_memory_limit(
    job: JobRecord, description: JobDescription, reason: str, limit_mib: int, largest_mib: int
) -> tuple[ExitDecision, JobDescription]:
    """Return what follows an attempt that its memory limit ended, and the description of the next one.

    `largest_mib` is the most memory that a queue offers the job; `reason` tells how the attempt ended.
    """
    asked = max(description.request_memory_mib or 0, limit_mib)
    wanted = min(math.ceil(asked * (description.retry_memory or 1.0)), largest_mib)
    if wanted <= asked:
        why = f"{reason}; no queue offers more than {asked} MiB of memory, so it is not retried"
        return ExitDecision(JobCause.FAILED, why), description
    if not may_start_again(job, JobCause.RETRIED):
        return _no_start_left(job, reason), description
    retried = ExitDecision(JobCause.RETRIED, f"retry with {wanted} MiB of memory after {reason}")
    return retried, replace(description, request_memory_mib=wanted)


def retry_delay(description: JobDescription, retry: int) -> timedelta:
    """Return the delay before the retry with this number, from 1."""
    first = description.retry_delay
    if not first:
        return timedelta(0)
    doubled = first * (1 << min(retry - 1, _MOST_DOUBLINGS))
    return min(doubled, max(first, LONGEST_DELAY))


def _truth(value: Result) -> bool | None:
    """Return the value as HTCondor takes it for a truth; None = it is none. Numbers other than 0 are true."""
    return bool(value) if isinstance(value, bool | int | float) else None


def _undefined(name: str, text: str) -> ExitDecision:
    return _held(HoldCode.JOB_POLICY_UNDEFINED, _evaluated_to(name, text, "UNDEFINED"), 0)


def _held(code: HoldCode, reason: str, subcode: int) -> ExitDecision:
    # The attempt has ended, so no fence is needed.
    return ExitDecision(JobCause.HELD, reason, {"hold_code": int(code), "hold_subcode": subcode, "lease_until": None})


def _evaluated_to(name: str, text: str, value: str) -> str:
    return f"The job attribute {name} expression '{' '.join(text.split())}' evaluated to {value}"


def _end(job: JobRecord, description: JobDescription, reason: str) -> ExitDecision:
    if job.exit_code == (description.success_exit_code or 0) and not job.signal:
        return ExitDecision(JobCause.DONE, reason.removeprefix(f"exit code {job.exit_code}").lstrip(";: "))
    how = _how(job, reason)
    used = job.completions - 1
    if description.retries and used:
        how = f"{how}, after {used} of {description.retries} retries"
    return ExitDecision(JobCause.FAILED, how)


def _retry(job: JobRecord, description: JobDescription, reason: str, now: datetime) -> ExitDecision:
    how = _how(job, reason)
    if not may_start_again(job, JobCause.RETRIED):
        return _no_start_left(job, how)
    number = job.completions
    if description.retries is None:
        text = f"run {number + 1} after {how}, as its on_exit_remove is false"
    else:
        text = f"retry {number} of {description.retries} after {how}"
    due = now + retry_delay(description, number)
    if number > FREE_RETRIES and job.started is not None:
        due = max(due, job.started + _LEAST_INTERVAL)
    if due <= now:
        return ExitDecision(JobCause.RETRIED, text)
    due = max(due, job.fenced_until or due)
    changes = {"fenced_until": due, "lease_until": due}
    return ExitDecision(JobCause.RETRIED, f"{text}, not before {due:%Y-%m-%d %H:%M:%S} UTC", changes)


def _how(job: JobRecord, reason: str) -> str:
    """Return how the payload ended: the reason, which leaves out exit code 0."""
    return "; ".join(filter(None, ("exit code 0" if job.exit_code == 0 and not job.signal else "", reason)))


def _no_start_left(job: JobRecord, how: str) -> ExitDecision:
    return ExitDecision(JobCause.FAILED, f"{how}; its max_starts = {job.max_starts} permits no retry")
