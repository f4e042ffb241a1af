"""Several real servers on one PostgreSQL, killed and started at will, and pilots that go on with whoever answers."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc

from pilotage import clock
from pilotage.errors import ServerUnreachableError
from pilotage.rpc.channel import Endpoint, open_channel
from pilotage.v1 import jobs_pb2, matcher_service_pb2, matcher_service_pb2_grpc, values_pb2
from support.server import RunningServer, request_id

Answer = TypeVar("Answer")

PATIENCE_S = 120.0
"""So long a pilot tries to be answered, and so long the next part of the jobs may take."""


class ServerFleet:
    """Servers on one database, each with an address that it keeps."""

    def __init__(self, folder: Path, database_url: str, count: int, **settings: object) -> None:
        shared: dict[str, Any] = {"database": database_url, "signing_key": str(folder / "key.pem"), **settings}
        shared["files"] = (folder / "files").as_uri()
        self.servers = [RunningServer(folder / f"server{number}", **shared) for number in range(count)]

    def start(self) -> None:
        """Start all servers."""
        for server in self.servers:
            server.start()

    def kill(self) -> None:
        """End all servers as a crash would."""
        for server in self.servers:
            server.kill()

    def channel(self, token: str) -> grpc.Channel:
        """Return a channel to all servers; it uses one of them, and another one when that does not answer."""
        return open_channel(Endpoint(tuple(server.address for server in self.servers), token))


@contextmanager
def server_fleet(folder: Path, database_url: str, count: int, **settings: object) -> Iterator[ServerFleet]:
    """Run servers until the end of the block."""
    fleet = ServerFleet(folder, database_url, count, **settings)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.kill()


class Progress:
    """What a fleet's pilots have done together; `failures` are what ended one of them early."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._finished = 0
        self._is_stopped = False
        self._changed = threading.Condition()
        self.given: list[tuple[int, int]] = []
        self.failures: list[BaseException] = []

    @property
    def is_over(self) -> bool:
        """Whether the pilots are to work no more."""
        with self._changed:
            return self._finished >= self._jobs or self._is_stopped or bool(self.failures)

    def note(self, given: Sequence[tuple[int, int]], finished: int) -> None:
        """Take note of attempts that were given to a pilot, and of how many it has seen recorded as finished."""
        with self._changed:
            self.given += given
            self._finished += finished
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Take note that a pilot could not go on."""
        with self._changed:
            self.failures.append(error)
            self._changed.notify_all()

    def stop(self) -> None:
        """Let the pilots work no more."""
        with self._changed:
            self._is_stopped = True

    def wait_for(self, part: float) -> None:
        """Return when so large a part of the jobs is finished."""
        with self._changed:
            reached = self._changed.wait_for(
                lambda: self._finished >= part * self._jobs or bool(self.failures), PATIENCE_S
            )
        assert reached, f"only {self._finished} of {self._jobs} jobs were finished in time"
        assert not self.failures, self.failures


class HastyPilot(threading.Thread):
    """A pilot whose jobs end as it likes: it asks, and brings what has ended with its next question."""

    def __init__(self, channel: grpc.Channel, slots: int, progress: Progress, seed: int) -> None:
        super().__init__(name=f"pilot-{seed}")
        self._matcher = matcher_service_pb2_grpc.MatcherServiceStub(channel)
        self._slots = [f"slot{number}" for number in range(slots)]
        self._progress = progress
        self._random = random.Random(seed)
        self._running: dict[str, tuple[int, int]] = {}

    def run(self) -> None:
        """Work until all jobs of all pilots are finished."""
        try:
            while not self._progress.is_over:
                self._work()
        except BaseException as error:
            self._progress.fail(error)
            raise

    def _work(self) -> None:
        """End some of the jobs, and ask for others in their place."""
        over = [slot for slot in self._running if self._random.random() < 0.7]
        reports = [_exited(*self._running.pop(slot)) for slot in over]
        free = [slot for slot in self._slots if slot not in self._running]
        request = matcher_service_pb2.RequestJobsRequest(
            request_id=request_id(), slots=[_an_offer(slot) for slot in free], reports=reports
        )
        answer = self._insist(lambda: self._matcher.RequestJobs(request, timeout=20))
        refusals = [result.refusal for result in answer.results if not result.accepted]
        assert not refusals, refusals
        self._running |= {match.slot: (match.job_id, match.attempt) for match in answer.matches}
        self._progress.note([(match.job_id, match.attempt) for match in answer.matches], len(reports))

    def _insist(self, call: Callable[[], Answer]) -> Answer:
        """Repeat a call, with the same request id, until a server has answered it."""
        give_up = clock.boot_time_s() + PATIENCE_S
        while True:
            try:
                return call()
            except ServerUnreachableError:
                if clock.boot_time_s() > give_up:
                    raise


def _an_offer(slot: str) -> matcher_service_pb2.SlotOffer:
    free = values_pb2.Amounts(cpus=1, memory_mib=4000, disk_mib=10_000)
    return matcher_service_pb2.SlotOffer(name=slot, free=free)


def _exited(job_id: int, attempt: int) -> jobs_pb2.JobReport:
    return jobs_pb2.JobReport(
        job_id=job_id, attempt=attempt, state=jobs_pb2.JOB_STATE_DONE, outcome=jobs_pb2.OUTCOME_EXITED, exit_code=0
    )
