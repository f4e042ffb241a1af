"""Waiting for jobs, of which some can never run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from pilotage_client.job_calls import JobCalls
from pilotage_client.models import JobStatus
from pilotage_client.retry import RetryBudget, wait_until_final

FUTILE = "BLOCKED and futile"
DONE = ("DONE", "DONE", "DONE")


class ScriptedServer:
    """Answers each poll with the next states of the jobs; it has no other call."""

    def __init__(self, *polls: tuple[str, str, str]) -> None:
        self._polls = iter(polls)
        self.waits: list[float] = []

    def wait(self, job_ids: Sequence[int], timeout_s: float) -> list[JobStatus]:
        self.waits.append(timeout_s)
        return [self._status(job_id, state) for job_id, state in zip(job_ids, next(self._polls), strict=True)]

    def _status(self, job_id: int, state: str) -> JobStatus:
        fields = (job_id, state.split()[0], "", "alice", "vo", "", "", "", "", "", "", 0, None, None, None, None)
        return JobStatus(*fields, futile=state == FUTILE)


def wait(server: ScriptedServer) -> list[str]:
    jobs = wait_until_final(cast(JobCalls, server), [1, 2, 3], RetryBudget(10, print))
    return [job.state for job in jobs]


def test_wait_ends_when_all_others_are_futile() -> None:
    server = ScriptedServer(("RUNNING", "BLOCKED", "BLOCKED"), ("FAILED", FUTILE, FUTILE))
    assert wait(server) == ["FAILED", "BLOCKED", "BLOCKED"]
    assert server.waits == [0, 10]


@pytest.mark.parametrize("state", ["BLOCKED", "HELD", "WAITING"])
def test_wait_goes_on_while_another_job_may_run(state: str) -> None:
    assert wait(ScriptedServer((state, FUTILE, FUTILE), DONE)) == [*DONE]
