"""Following a job and its output to the end, across outages of the server and a restore of its database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from pilotage.errors import FeedPositionLostError, ServerUnreachableError
from pilotage.v1.job_service_pb2 import FollowOutputResponse
from pilotage_client.api import JobCalls
from pilotage_client.models import JobEvent
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

    def follow(self, _job_ids: Sequence[int], *, after: int = 0, **_: Any) -> Iterator[JobEvent]:
        self.asked.append(after)
        self._events = [event(1, "WAITING"), event(2, "MATCHED"), event(1001, "RUNNING"), event(1002, "DONE")]
        if after == 3:
            raise FeedPositionLostError(after, 2, "a backup was restored")
        yield from (each for each in self._events if each.position > after)


def test_follower_resumes_after_a_restore() -> None:
    server = RestoredServer()
    followed = follow_until_final(cast(JobCalls, server), 7, RetryBudget(10, print))
    assert [each.position for each in followed] == [1, 2, 3, 1001, 1002]
    assert server.asked == [3]


class InterruptedServer:
    """Answers with the next parts of a job's output, each time until the connection is lost an hour later."""

    def __init__(self, *answers: list[FollowOutputResponse]) -> None:
        self.now_s = 0.0
        self.asked: list[tuple[int, int]] = []
        self._answers = iter(answers)

    def follow_output(self, _job_id: int, *, error: bool, attempt: int, offset: int) -> Iterator[FollowOutputResponse]:
        assert not error
        self.asked.append((attempt, offset))
        yield from next(self._answers)
        self.now_s += 3600
        raise ServerUnreachableError("nobody answers")


def test_output_is_followed_across_outages_and_between_attempts() -> None:
    first, waiting = FollowOutputResponse(attempt=1, content=b"one"), FollowOutputResponse()
    second = FollowOutputResponse(attempt=2, content=b"two", over=True)
    server = InterruptedServer([first, waiting], [waiting], [second])
    retry = RetryBudget(10, print, clock=lambda: server.now_s, sleep=lambda _: None)
    assert list(follow_output_until_final(cast(JobCalls, server), 7, retry)) == [first, waiting, waiting, second]
    assert server.asked == [(0, 0), (1, 3), (1, 3)]
