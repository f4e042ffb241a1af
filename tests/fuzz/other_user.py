"""Another user, whose latency is measured in a process of its own while the inputs are sent."""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Sequence
from multiprocessing.connection import Connection

from pilotage.clock import boot_time_s
from pilotage.errors import PilotageError
from pilotage.rpc.channel import Endpoint, open_channel
from pilotage.v1 import job_service_pb2, job_service_pb2_grpc

_PAUSE_S = 0.01
_TIMEOUT_S = 30.0
"""The latency of a call that is refused or has no answer."""


class OtherUser:
    """Lists its jobs again and again until `close`."""

    def __init__(self, address: str, token: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._link, theirs = context.Pipe()
        self._process = context.Process(target=_use, args=(address, token, theirs), daemon=True)
        self._process.start()
        self._link.recv()

    def latencies_s(self, wait_s: float = 0.0) -> list[float]:
        """Wait, and return the latencies since the last call of this method."""
        self._link.poll(wait_s)
        self._link.send(None)
        latencies: list[float] = self._link.recv()
        return latencies

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()


def p99_ms(latencies_s: Sequence[float]) -> float:
    """Return the 99th percentile in ms; that of fewer than two latencies is 0."""
    return statistics.quantiles(latencies_s, n=100)[98] * 1000 if len(latencies_s) > 1 else 0.0


def _use(address: str, token: str, link: Connection) -> None:
    request = job_service_pb2.ListJobsRequest()
    with open_channel(Endpoint((address,), token), timeout_s=_TIMEOUT_S) as channel:
        jobs = job_service_pb2_grpc.JobServiceStub(channel)
        jobs.ListJobs(request)
        link.send(None)
        latencies: list[float] = []
        while True:
            if link.poll(_PAUSE_S):
                link.recv()
                link.send(latencies)
                latencies = []
            start_s = boot_time_s()
            try:
                jobs.ListJobs(request)
            except PilotageError:
                latencies.append(_TIMEOUT_S)
            else:
                latencies.append(boot_time_s() - start_s)
