"""Followers across restarts and restores of the server, and where jobs are run again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from pilotage.errors import FeedPositionLostError, InvalidInputError, ServerUnreachableError
from pilotage.job_description import JobDescription
from pilotage_client.job_calls import JobCalls
from pilotage_client.models import JobEvent, JobStatus
from pilotage_client.retry import RetryBudget
from pilotage_client.user_log.follower import find_user_logs, write_user_logs
from support.user_logs import numbers

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)


def event(position: int, before: str, after: str, attempt: int = 1) -> JobEvent:
    time = NOW + timedelta(seconds=position)
    return JobEvent(position, 7, time, before, after, "", "", attempt, "pilot:a")


def status(state: str, attempt: int = 1) -> JobStatus:
    return JobStatus(
        *(7, state, "", "alice", "vo", "", "SITE", "ce1", "long", "node1", "slot1", attempt, 0, NOW, NOW, NOW),
        cluster=7,
    )


SUBMITTED, STARTED, ENDED = event(1, "RECEIVED", "WAITING"), event(3, "MATCHED", "RUNNING"), event(4, "RUNNING", "DONE")


class ScriptedServer:
    """Answers each opening of the feed with the next script: events, one a page, and the error behind them."""

    server = "host:1,host:2"

    def __init__(
        self,
        *scripts: tuple[list[JobEvent], Exception | None],
        now: str = "DONE",
        attempt: int = 1,
        futile: bool = False,
    ) -> None:
        self._scripts = iter(scripts)
        self._now = replace(status(now, attempt), futile=futile)
        self.asked: list[int] = []

    def jobs(self, job_ids: Sequence[int]) -> list[JobStatus]:
        return [self._now for _ in job_ids]

    def events(self, _job_id: int) -> list[JobEvent]:
        return [SUBMITTED]

    def event_pages(self, _job_ids: Sequence[int], *, after: int) -> Iterator[list[JobEvent]]:
        self.asked.append(after)
        events, error = next(self._scripts, ([], ServerUnreachableError("nobody answers")))
        for each in events:
            yield [each]
        if error is not None:
            raise error


class Clock:
    """A clock that sleeping advances."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def follow(server: ScriptedServer, path: Path, clock: Clock | None = None) -> list[JobStatus]:
    clock = clock or Clock()
    retry = RetryBudget(10, lambda _: None, clock=clock, sleep=clock.sleep)
    return write_user_logs(cast(JobCalls, server), [status("WAITING", 0)], {7: path}, retry)


def test_follower_resumes_after_an_outage(tmp_path: Path) -> None:
    away = ServerUnreachableError("nobody answers")
    server = ScriptedServer(([SUBMITTED], away), ([], away), ([STARTED, ENDED], None))
    assert [job.state for job in follow(server, tmp_path / "log")] == ["DONE"]
    assert (numbers(tmp_path / "log"), server.asked) == ([0, 1, 5], [0, 1, 1])


def test_follower_resumes_after_a_restore(tmp_path: Path) -> None:
    lost = FeedPositionLostError(3, 1, "a backup was restored")
    later = [event(1003, "MATCHED", "RUNNING"), event(1004, "RUNNING", "DONE")]
    server = ScriptedServer(([SUBMITTED, STARTED], None), ([], lost), (later, None))
    follow(server, tmp_path / "log")
    assert (numbers(tmp_path / "log"), server.asked) == ([0, 1, 1, 5], [0, 3, 1])


def test_follower_gives_up_after_its_patience(tmp_path: Path) -> None:
    clock = Clock()
    with pytest.raises(ServerUnreachableError):
        follow(ScriptedServer(([SUBMITTED], None)), tmp_path / "log", clock)
    assert clock.now_s == pytest.approx(10)
    assert numbers(tmp_path / "log") == [0]


def test_rescheduled_job_is_followed_to_its_last_end(tmp_path: Path) -> None:
    again = [
        event(5, "DONE", "WAITING"),
        event(6, "WAITING", "MATCHED", 2),
        event(7, "MATCHED", "RUNNING", 2),
        event(8, "RUNNING", "DONE", 2),
    ]
    server = ScriptedServer(([SUBMITTED, STARTED, ENDED, *again], None), attempt=2)
    follow(server, tmp_path / "log")
    assert numbers(tmp_path / "log") == [0, 1, 5, 1, 5]


def test_futile_job_is_not_followed_further(tmp_path: Path) -> None:
    server = ScriptedServer(([event(1, "RECEIVED", "BLOCKED", 0)], None), now="BLOCKED", attempt=0, futile=True)
    assert [job.state for job in follow(server, tmp_path / "log")] == ["BLOCKED"]
    assert numbers(tmp_path / "log") == [0]


class Descriptions:
    """A server with one description, which it counts."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.asked = 0

    def description(self, _job_id: int) -> JobDescription:
        self.asked += 1
        return JobDescription("/bin/true", attributes={"userlog": self._path})


def test_jobs_of_one_description_cost_one_call() -> None:
    server = Descriptions("/logs/$(Cluster)/$(ProcId)")
    logs = find_user_logs(cast(JobCalls, server), [status("DONE")] * 100)
    assert (logs, server.asked) == ({7: Path("/logs/7/0")}, 1)


def test_relative_log_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="relative; give --log"):
        find_user_logs(cast(JobCalls, Descriptions("a.log")), [status("DONE")])
