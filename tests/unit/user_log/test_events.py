"""Transitions as events of HTCondor's user log, read by HTCondor's library."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pilotage_client.models import JobEvent, JobStatus, JobUsage
from pilotage_client.user_log.events import user_log_events
from pilotage_client.user_log.file import UserLogFile
from support.user_logs import read_events

NOW = datetime(2026, 11, 26, 12, 30, 15, 999_999, tzinfo=UTC)
JOB = JobStatus(
    *(14, "RUNNING", "", "alice", "vo", "", "SITE", "ce1", "long", "node1", "slot1", 2, None, NOW, NOW, None),
    cluster=12,
    process=2,
)


def event(before: str, after: str, cause: str = "", reason: str = "", **fields: Any) -> JobEvent:
    return replace(JobEvent(7, 14, NOW, before, after, cause, reason, 2, "pilot:a1"), **fields)


def written(folder: Path, happened: JobEvent, job: JobStatus = JOB) -> list[dict[str, Any]]:
    """Return the events that the transition writes."""
    log = UserLogFile(folder / "log")
    log.append(user_log_events(happened, job, "host:4711"))
    found = read_events(log.path)
    for each in found:
        assert (each["cluster"], each["process"]) == (12, 2)
        assert each["timestamp"] == int(NOW.timestamp())
    return found


EXITED = {"number": 5, "TerminatedNormally": True, "ReturnValue": 3}
EVICTED = {"number": 4, "TerminatedNormally": False}


@pytest.mark.parametrize(
    ("happened", "expected"),
    [
        (event("RECEIVED", "WAITING", "enqueued"), [{"number": 0, "SubmitHost": "<host:4711>"}]),
        (
            event("RECEIVED", "HELD", "held", "submitted on hold"),
            [{"number": 0}, {"number": 12, "HoldReason": "submitted on hold", "HoldReasonCode": 15}],
        ),
        (event("WAITING", "MATCHED"), []),
        (event("MATCHED", "RUNNING"), [{"number": 1, "ExecuteHost": "<node1>", "SlotName": "slot1@node1"}]),
        (event("MATCHED", "RUNNING", attempt=1), [{"number": 1, "ExecuteHost": "<pilot:a1>"}]),
        (event("WAITING", "RUNNING", "adopted"), [{"number": 1}]),
        (event("RUNNING", "RUNNING", "plugged"), []),
        (event("RUNNING", "SUSPENDED"), [{"number": 10, "NumberOfPIDs": 1}]),
        (event("SUSPENDED", "RUNNING", "continued"), [{"number": 11}]),
        (event("RUNNING", "COMPLETING"), []),
        (event("RUNNING", "WAITING", "evicted", "the\n...\nslot"), [{**EVICTED, "Reason": "the ... slot"}]),
        (event("RUNNING", "WAITING", "lease lost", "silent"), [{"number": 24, "Reason": "silent"}]),
        (event("MATCHED", "WAITING", "lease lost", "silent"), []),
        (event("MATCHED", "WAITING", "start failed", "no disk"), [{"number": 7, "Message": "no disk"}]),
        (event("COMPLETING", "WAITING", "start failed", "output lost"), [{"number": 7, "Message": "output lost"}]),
        (event("MATCHED", "WAITING", "declined"), []),
        (event("WAITING", "WAITING", "edited"), []),
        (event("HELD", "HELD", "edited"), []),
        (event("HELD", "WAITING", "released", "by alice"), [{"number": 13, "Reason": "by alice"}]),
        (event("RECEIVED", "BLOCKED", "blocked"), [{"number": 0}]),
        (event("HELD", "BLOCKED", "blocked", "by alice"), [{"number": 13, "Reason": "by alice"}]),
        (event("BLOCKED", "WAITING", "unblocked"), []),
        (event("WAITING", "REMOVED", "removed", "by alice"), [{"number": 9, "Reason": "by alice"}]),
        (event("RUNNING", "REMOVED", "removed", "by alice"), [EVICTED, {"number": 9, "Reason": "by alice"}]),
        (event("RUNNING", "RACING", "left to its copies"), []),
        (event("RACING", "DONE", "won by a copy"), [{"number": 5, "ReturnValue": 0}]),
        (
            event("RUNNING", "FAILED", "failed", "3 attempts were lost"),
            [{"number": 9, "Reason": "3 attempts were lost"}],
        ),
        (event("DONE", "WAITING", "rescheduled"), []),
    ],
)
def test_transition_writes_the_events_of_htcondor(
    happened: JobEvent, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    found = written(tmp_path, happened)
    assert [each["number"] for each in found] == [each["number"] for each in expected]
    for each, wanted in zip(found, expected, strict=True):
        assert wanted.items() <= each.items()


@pytest.mark.parametrize(
    ("state", "facts", "expected"),
    [
        ("DONE", {"exit_code": 0}, {"number": 5, "TerminatedNormally": True, "ReturnValue": 0}),
        ("FAILED", {"exit_code": 3}, {"number": 5, "TerminatedNormally": True, "ReturnValue": 3}),
        ("FAILED", {"signal": 9}, {"number": 5, "TerminatedNormally": False, "TerminatedBySignal": 9}),
        ("FAILED", {}, {"number": 9, "Reason": "because"}),
        ("FAILED", {"exit_code": 3, "attempt": 3}, {"number": 9, "Reason": "because"}),
    ],
)
def test_end_of_a_job_has_its_exit_code_or_signal(
    state: str, facts: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    used = JobUsage(2, 1, 0, 61.0, 0.0, 2.0, 1.0, None, None)
    job = replace(JOB, **{"state": state, "usage": used, **facts})
    (found,) = written(tmp_path, event("RUNNING", state, reason="because"), job)
    assert expected.items() <= found.items()
    assert found.get("TimeExecuteUsage") == (61 if found["number"] == 5 else None)


@pytest.mark.parametrize(
    ("job", "actor", "expected"),
    [
        (replace(JOB, state="HELD", reason="too big", hold_code=26, hold_subcode=7), "server", (26, 7)),
        (replace(JOB, state="WAITING"), "server", (3, 0)),
        (replace(JOB, state="HELD", reason="held again", hold_code=26), "alice", (1, 0)),
        (JOB, "pilot:a1", (21, 0)),
    ],
)
def test_hold_has_code_and_reason(job: JobStatus, actor: str, expected: tuple[int, int], tmp_path: Path) -> None:
    evicted, held = written(tmp_path, event("RUNNING", "HELD", "held", "too big", actor=actor), job)
    assert evicted["number"] == 4
    assert (held["HoldReason"], held["HoldReasonCode"], held["HoldReasonSubCode"]) == ("too big", *expected)


def test_known_figures_are_written(tmp_path: Path) -> None:
    used = JobUsage(2, 1, 0, 100_000.0, 0.0, 90_061.0, 2.0, 612, 3)
    size, ended = written(tmp_path, event("RUNNING", "DONE"), replace(JOB, exit_code=0, usage=used))
    assert (size["number"], size["MemoryUsage"], size["ResidentSetSize"]) == (6, 612, 612 * 1024)
    assert ended["RunRemoteUsage"] == ended["TotalRemoteUsage"] == "Usr 1 01:01:01, Sys 0 00:00:02"
    assert (ended["MemoryUsage"], ended["DiskUsage"], ended["CpusUsage"]) == (612, 3 * 1024, 0.9)
