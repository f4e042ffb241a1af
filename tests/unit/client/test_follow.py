"""Following a job and its output to the end, across outages of the server and a restore of its database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, cast

from pilotage.errors import FeedPositionLostError, ServerUnreachableError
from pilotage.v1 import jobs_pb2
from pilotage_client.job_calls import JobCalls
from pilotage_client.models import JobEvent, OutputPart
from pilotage_client.retry import RetryBudget, follow_output_until_final, follow_until_final


def event(position: int, after: str) -> JobEvent:
    return JobEvent(position, 7, None, "", after, "", "", 1, "")


class RestoredServer:
    """Answers as a server that loses what came after position 2 while a client follows the job."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self._events = [event(1, "WAITING"), event(2, "MATCHED"), event(3, "RUNNING")]

    def events(self, _job_id: int) -> list[JobEvent]:
        return list(self._events)

    def event_pages(self, _job_ids: Sequence[int], *, after: int = 0, **_: Any) -> Iterator[list[JobEvent]]:
        self.asked.append(after)
        self._events = [event(1, "WAITING"), event(2, "MATCHED"), event(1001, "RUNNING"), event(1002, "DONE")]
        if after == 3:
            raise FeedPositionLostError(after, 2, "a backup was restored")
        yield [each for each in self._events if each.position > after]


def test_follower_resumes_after_a_restore() -> None:
    server = RestoredServer()
    followed = follow_until_final(cast(JobCalls, server), 7, RetryBudget(10, print))
    assert [each.position for each in followed] == [1, 2, 3, 1001, 1002]
    assert server.asked == [3]


class FutileServer:
    """Answers as a server where the only job is futile from its second look on."""

    def __init__(self) -> None:
        self._looks = iter((False, True))

    def events(self, _job_id: int) -> list[JobEvent]:
        return [event(1, "BLOCKED")]

    def event_pages(self, _job_ids: Sequence[int], *, after: int) -> Iterator[list[JobEvent]]:
        assert after == 1
        yield from repeat([])

    def follow_output(self, _job_id: int, **_: Any) -> Iterator[OutputPart]:
        yield from repeat(OutputPart())

    def jobs(self, job_ids: Sequence[int]) -> list[jobs_pb2.Job]:
        futile = next(self._looks)
        return [jobs_pb2.Job(id=job_id, futile=futile) for job_id in job_ids]


def test_following_ends_when_the_job_is_futile() -> None:
    retry = RetryBudget(10, print)
    assert [each.after for each in follow_until_final(cast(JobCalls, FutileServer()), 7, retry)] == ["BLOCKED"]
    parts = follow_output_until_final(cast(JobCalls, FutileServer()), 7, retry)
    assert [part.over for part in parts] == [False, False]


class InterruptedServer:
    """Answers with the next parts of a job's output, each time until the connection is lost an hour later."""

    def __init__(self, *answers: list[OutputPart]) -> None:
        self.now_s = 0.0
        self.asked: list[tuple[int, int]] = []
        self._answers = iter(answers)

    def follow_output(self, _job_id: int, *, error: bool, attempt: int, offset: int) -> Iterator[OutputPart]:
        assert not error
        self.asked.append((attempt, offset))
        yield from next(self._answers)
        self.now_s += 3600
        raise ServerUnreachableError("nobody answers")

    def jobs(self, job_ids: Sequence[int]) -> list[jobs_pb2.Job]:
        return [jobs_pb2.Job(id=job_id) for job_id in job_ids]


def test_output_is_followed_across_outages_and_between_attempts() -> None:
    first, waiting = OutputPart(attempt=1, content=b"one"), OutputPart()
    second = OutputPart(attempt=2, content=b"two", over=True)
    server = InterruptedServer([first, waiting], [waiting], [second])
    retry = RetryBudget(10, print, clock=lambda: server.now_s, sleep=lambda _: None)
    assert list(follow_output_until_final(cast(JobCalls, server), 7, retry)) == [first, waiting, waiting, second]
    assert server.asked == [(0, 0), (1, 3), (1, 3)]
