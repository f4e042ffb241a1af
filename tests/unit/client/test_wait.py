"""Waiting for jobs, of which some can never run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage_client.api import JobCalls
from pilotage_client.models import JobStatus
from pilotage_client.retry import RetryBudget, wait_until_final

PARENT, CHILD, GRANDCHILD = 1, 2, 3
AFTER = job_service_pb2.DEPENDENCY_KIND_AFTER
AFTER_OK = job_service_pb2.DEPENDENCY_KIND_AFTER_OK
AFTER_ANY = job_service_pb2.DEPENDENCY_KIND_AFTER_ANY
UNKNOWN = 99
FAILED = AFTER_OK, PARENT, jobs_pb2.JOB_STATE_FAILED
Path = Sequence[tuple[int, int, int]]


class ScriptedServer:
    """Answers each poll with the next states of the jobs; `path` leads from the last blocked job to its root cause."""

    def __init__(self, *polls: tuple[str, str, str], path: Path = (), cluster: int = 0) -> None:
        self._polls = iter(polls)
        self._path = path
        self._cluster = cluster
        self.waits: list[float] = []
        self.explained: list[int] = []

    def wait(self, job_ids: Sequence[int], timeout_s: float) -> list[JobStatus]:
        self.waits.append(timeout_s)
        states = zip(job_ids, next(self._polls), strict=True)
        return [self._status(job_id, state) for job_id, state in states]

    def _status(self, job_id: int, state: str) -> JobStatus:
        fields = (job_id, state, "", "alice", "vo", "", "", "", "", "", "", 0, None, None, None, None)
        return JobStatus(*fields, cluster=self._cluster or job_id)

    def explain(self, job_id: int) -> job_service_pb2.ExplainJobResponse:
        self.explained.append(job_id)
        blockers = [
            job_service_pb2.Blocker(kind=kind, job=jobs_pb2.Job(id=parent, state=state))  # type: ignore[arg-type]
            for kind, parent, state in self._path
        ]
        return job_service_pb2.ExplainJobResponse(blockers=blockers)


def wait(server: ScriptedServer) -> list[str]:
    jobs = wait_until_final(cast(JobCalls, server), [PARENT, CHILD, GRANDCHILD], RetryBudget(10, print))
    return [job.state for job in jobs]


CHAIN = [(AFTER_ANY, CHILD, jobs_pb2.JOB_STATE_BLOCKED), FAILED]
BLOCKED = ("FAILED", "BLOCKED", "BLOCKED")
DONE = ("DONE", "DONE", "DONE")


def test_wait_ends_when_all_others_are_blocked_behind_a_failed_job() -> None:
    server = ScriptedServer(("RUNNING", "BLOCKED", "BLOCKED"), BLOCKED, path=CHAIN)
    assert wait(server) == [*BLOCKED]
    assert server.explained == [GRANDCHILD], "the path of the last job has the other one"
    assert server.waits == [0, 10]


@pytest.mark.parametrize(
    "path",
    [
        [],
        [(AFTER_OK, PARENT, jobs_pb2.JOB_STATE_DONE)],
        [(AFTER_ANY, PARENT, jobs_pb2.JOB_STATE_FAILED)],
        [(AFTER_OK, PARENT, jobs_pb2.JOB_STATE_HELD)],
        [(AFTER, CHILD, jobs_pb2.JOB_STATE_BLOCKED), (AFTER_OK, 7, jobs_pb2.JOB_STATE_RUNNING)],
        [(UNKNOWN, CHILD, jobs_pb2.JOB_STATE_BLOCKED), FAILED],
    ],
)
def test_wait_goes_on_for_blocked_jobs_that_may_run(path: Path) -> None:
    assert wait(ScriptedServer(BLOCKED, DONE, path=path)) == [*DONE]


@pytest.mark.parametrize("state", ["HELD", "WAITING"])
def test_wait_goes_on_while_another_job_may_run(state: str) -> None:
    server = ScriptedServer((state, "BLOCKED", "BLOCKED"), DONE, path=CHAIN)
    assert wait(server) == [*DONE]
    assert server.explained == []


def test_blocked_jobs_of_one_description_cost_one_call() -> None:
    server = ScriptedServer(
        ("BLOCKED", "BLOCKED", "BLOCKED"), path=[(AFTER_OK, 7, jobs_pb2.JOB_STATE_REMOVED)], cluster=1
    )
    wait(server)
    assert server.explained == [GRANDCHILD]
