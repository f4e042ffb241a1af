"""What a pilot's report of an attempt does to the job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pilotage.resources.tree import QueueId
from pilotage.v1 import jobs_pb2, matcher_service_pb2
from pilotage.values.accounts import Account
from pilotage.values.attempts import JobHold, Outcome
from pilotage_server.core.attempts.leases import (
    Accept,
    AttemptRecord,
    Refuse,
    Repeat,
    ReportVerdict,
    attempts_text,
    is_last,
    judge_report,
)
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.rpc.matching.wire import heartbeat_from_wire
from support.jobs import a_job
from support.virtual_clock import START

LOST = {"ended": START, "outcome": JobCause.LEASE_LOST.value}


def a_leased_job(state: JobState = JobState.RUNNING, **fields: Any) -> JobRecord:
    """Return a job in its first attempt, which runs on pilot p1."""
    return a_job(**({"state": state, "attempt": 1, "pilot_stamp": "p1"} | fields))


def an_attempt(**fields: Any) -> AttemptRecord:
    """Return the first attempt of the job, which runs on pilot p1."""
    defaults: dict[str, Any] = {"job_id": 1, "attempt": 1, "pilot_stamp": "p1", "queue": QueueId("A", "ce", "q")}
    defaults |= {"node": "n1", "slot": "s1", "cpus": 1, "weight": 1.0}
    defaults |= {"account": Account("lhcb", "users", "alice"), "matched": START}
    return AttemptRecord(**(defaults | fields))


def judge(job: JobRecord, attempt: AttemptRecord, stamp: str = "p1", **report: Any) -> ReportVerdict:
    """Judge a report of the attempt."""
    return judge_report(job, attempt, JobReport(1, attempt.attempt, **report), stamp)


@pytest.mark.parametrize(
    ("report", "causes", "reason"),
    [
        ({"outcome": Outcome.EXITED, "exit_code": 0}, (JobCause.DONE,), ""),
        ({"outcome": Outcome.EXITED, "exit_code": 3}, (JobCause.FAILED,), "exit code 3"),
        ({"outcome": Outcome.EXITED, "signal": 9}, (JobCause.FAILED,), "signal 9"),
        ({"outcome": Outcome.EXITED}, (JobCause.FAILED,), "no exit code"),
        (
            {"outcome": Outcome.LIMIT_EXCEEDED, "reason": "memory"},
            (JobCause.FAILED,),
            "limit exceeded: memory",
        ),
        ({"outcome": Outcome.REFUSED_BY_JOB}, (JobCause.FAILED,), "refused by job"),
        ({"outcome": Outcome.START_FAILED}, (JobCause.START_FAILED,), "start failed"),
        ({"outcome": Outcome.EVICTED}, (JobCause.EVICTED,), "evicted"),
        ({"outcome": Outcome.DECLINED}, (JobCause.DECLINED,), "declined"),
        ({"outcome": Outcome.KILLED}, (JobCause.LEASE_LOST,), "killed"),
        (
            {"outcome": Outcome.OUTPUT_LOST, "reason": "it could not be stored"},
            (JobCause.START_FAILED,),
            "output lost: it could not be stored",
        ),
    ],
)
def test_outcome_leads_to_its_transition(report: dict[str, Any], causes: tuple[JobCause, ...], reason: str) -> None:
    verdict = judge(a_leased_job(), an_attempt(), **report)
    assert isinstance(verdict, Accept)
    assert (verdict.causes, verdict.reason) == (causes, reason)


@pytest.mark.parametrize(
    ("state", "causes"),
    [
        (JobState.MATCHED, (JobCause.STARTED, JobCause.PLUGGED)),
        (JobState.RUNNING, (JobCause.PLUGGED,)),
        (JobState.SUSPENDED, (JobCause.CONTINUED, JobCause.PLUGGED)),
    ],
)
def test_plugged_failure_keeps_the_attempt_running(state: JobState, causes: tuple[JobCause, ...]) -> None:
    failed: dict[str, Any] = {"state": JobState.RUNNING, "plugged": True, "exit_code": 7, "wall_s": 3.04}
    reason = "exit code 7 after 3.04 s: its slot is kept for a while"
    assert judge(a_leased_job(state), an_attempt(), **failed) == Accept(causes, reason=reason)
    assert judge(a_leased_job(state), an_attempt(plugged=True), **failed) == Repeat()
    readopted = judge(a_leased_job(JobState.WAITING), an_attempt(**LOST), **failed)
    assert readopted == Accept((JobCause.PLUGGED,), reason=reason, adopts=True)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_failed_starts_lost_outputs_and_lost_leases_are_spent(outcome: Outcome) -> None:
    verdict = judge(a_leased_job(), an_attempt(), outcome=outcome)
    assert isinstance(verdict, Accept)
    assert verdict.spends is (outcome in {Outcome.START_FAILED, Outcome.KILLED, Outcome.OUTPUT_LOST})


def test_outcome_of_unreported_start_implies_the_start() -> None:
    verdict = judge(a_leased_job(JobState.MATCHED), an_attempt(), outcome=Outcome.EXITED, exit_code=0, started=START)
    assert verdict == Accept((JobCause.STARTED, JobCause.DONE))


@pytest.mark.parametrize(
    ("state", "reported", "causes"),
    [
        (JobState.MATCHED, JobState.RUNNING, (JobCause.STARTED,)),
        (JobState.MATCHED, JobState.COMPLETING, (JobCause.STARTED, JobCause.COMPLETING)),
        (JobState.RUNNING, JobState.SUSPENDED, (JobCause.SUSPENDED,)),
        (JobState.SUSPENDED, JobState.RUNNING, (JobCause.CONTINUED,)),
    ],
)
def test_progress_moves_the_job(state: JobState, reported: JobState, causes: tuple[JobCause, ...]) -> None:
    assert judge(a_leased_job(state), an_attempt(), state=reported) == Accept(causes)


@pytest.mark.parametrize("reported", [JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING])
def test_outdated_report_changes_nothing(reported: JobState) -> None:
    assert judge(a_leased_job(JobState.COMPLETING), an_attempt(), state=reported) == Repeat()


def test_foreign_and_unknown_attempts_are_refused_alike() -> None:
    foreign = judge(a_leased_job(), an_attempt(), stamp="p2", state=JobState.RUNNING)
    unknown = judge_report(None, None, JobReport(1, 1, JobState.RUNNING), "p2")
    assert foreign == unknown
    assert isinstance(foreign, Refuse)


def test_late_report_readopts_a_lost_attempt() -> None:
    waiting = a_leased_job(JobState.WAITING)
    assert judge(waiting, an_attempt(**LOST), state=JobState.RUNNING) == Accept((), adopts=True)
    done = judge(waiting, an_attempt(**LOST), outcome=Outcome.EXITED, exit_code=0)
    assert done == Accept((JobCause.DONE,), adopts=True)


@pytest.mark.parametrize(
    "job",
    [
        a_leased_job(JobState.MATCHED, attempt=2),
        a_leased_job(JobState.WAITING, attempt=2),
        a_leased_job(JobState.FAILED),
        a_leased_job(JobState.HELD),
    ],
)
def test_late_report_is_refused_once_the_job_has_moved_on(job: JobRecord) -> None:
    assert isinstance(judge(job, an_attempt(**LOST), outcome=Outcome.EXITED, exit_code=0), Refuse)


@pytest.mark.parametrize("cause", [JobCause.REMOVED, JobCause.HELD, JobCause.RESCHEDULED])
def test_outcome_of_a_withdrawn_attempt_is_kept_without_effect(cause: JobCause) -> None:
    verdict = judge(
        a_leased_job(JobState.WAITING), an_attempt(ended=START, outcome=cause.value), outcome=Outcome.EXITED
    )
    assert isinstance(verdict, Accept)
    assert (verdict.causes, verdict.adopts) == ((), False)


def test_repeated_outcome_is_confirmed_and_a_different_one_refused() -> None:
    ended = an_attempt(ended=START, outcome=Outcome.EXITED.value, reported=True)
    assert judge(a_leased_job(JobState.DONE), ended, outcome=Outcome.EXITED, exit_code=0) == Repeat()
    assert isinstance(judge(a_leased_job(JobState.DONE), ended, outcome=Outcome.EVICTED), Refuse)


def test_last_attempt_is_decided_by_spent_attempts() -> None:
    assert [is_last(spent, 3) for spent in range(4)] == [False, False, True, True]


def test_history_names_location_and_end_of_each_attempt() -> None:
    text = attempts_text(
        [
            an_attempt(outcome="lease lost", reason="silence", ended=START + timedelta(hours=1)),
            an_attempt(attempt=2, outcome="start failed"),
        ]
    )
    assert text == "attempt 1 on A/ce/q n1: lease lost, silence; attempt 2 on A/ce/q n1: start failed"


def test_history_of_many_evictions_is_shortened() -> None:
    text = attempts_text([an_attempt(attempt=number, outcome="evicted") for number in range(1, 501)])
    assert text.startswith("480 attempts before; attempt 481 on ")
    assert text.count(";") == 20


@pytest.mark.parametrize(
    ("hold", "reported", "reason"),
    [
        (JobHold("too hot", 3), "", "too hot"),
        (JobHold(""), "PREEMPT was true", "PREEMPT was true"),
        (JobHold(""), "", "the policy of its slot wants it held"),
    ],
)
def test_hold_request_holds_an_evicted_job(hold: JobHold, reported: str, reason: str) -> None:
    verdict = judge(a_leased_job(), an_attempt(), outcome=Outcome.EVICTED, hold=hold, reason=reported)
    assert verdict == Accept((JobCause.HELD,), reason=reason)


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - {Outcome.EVICTED}))
def test_hold_request_without_eviction_is_ignored(outcome: Outcome) -> None:
    with_hold = judge(a_leased_job(), an_attempt(), outcome=outcome, exit_code=0, hold=JobHold("too hot"))
    assert with_hold == judge(a_leased_job(), an_attempt(), outcome=outcome, exit_code=0)


def test_hold_request_is_read_from_the_wire() -> None:
    report = jobs_pb2.JobReport(job_id=1, attempt=1, outcome=jobs_pb2.OUTCOME_EVICTED)
    report.hold.reason, report.hold.subcode = "too hot", -3
    heartbeat = heartbeat_from_wire(matcher_service_pb2.ReportStateRequest(reports=[report]))
    assert heartbeat.reports[0].hold == JobHold("too hot", -3)
