"""Following a job to its end, across a restore of the server's database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from pilotage.errors import FeedPositionLostError
from pilotage_client.api import JobCalls
from pilotage_client.models import JobEvent
from pilotage_client.retry import RetryBudget, follow_until_final


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
