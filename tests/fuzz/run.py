"""One run: the server and its broker, another user who is measured alone and meanwhile, and all surfaces."""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from fuzz.broker_surface import RandomMessages
from fuzz.reader_surface import READERS, read_random
from fuzz.server_surface import RandomAds, RandomCalls, Tally
from pilotage.clock import boot_time_s
from pilotage.errors import PilotageError
from pilotage.rpc.channel import Endpoint, open_channel
from pilotage.v1 import job_service_pb2, job_service_pb2_grpc
from support.mosquitto import MosquittoServer, running_broker
from support.server import RunningServer, running_server
from support.wire_grid import WireGrid

SHARES = {"calls": 0.4, "messages": 0.2, "slot ads": 0.1, "job languages": 0.15, "trees": 0.1, "wake-ups": 0.05}
MAX_GROWTH_MB = 20.0
MAX_SLOWDOWN = 5.0
ROUNDS = 20
WARM_UP_ROUNDS = 5
"""The first rounds fill caches and pools, which are bounded."""

QUIET_S = 5.0
PAUSE_S = 0.01


@dataclass
class Outcome:
    """What a run has found; latencies are those of the other user."""

    inputs: dict[str, int] = field(default_factory=dict)
    unhandled: list[str] = field(default_factory=list)
    crashes: int = 0
    growth_mb: float = 0.0
    quiet_p99_ms: float = 0.0
    p99_ms: float = 0.0

    @property
    def slowdown(self) -> float:
        return self.p99_ms / self.quiet_p99_ms

    def broken(self) -> dict[str, bool]:
        """Return the bounds, and whether each is broken."""
        return {
            "crashes": self.crashes > 0,
            "unhandled exceptions": bool(self.unhandled),
            "growth of the server's memory": self.growth_mb >= MAX_GROWTH_MB,
            "slowdown of another user": self.slowdown > MAX_SLOWDOWN,
        }


def run(inputs: int, seed: int, say: Callable[[str], None]) -> Outcome:
    """Send the inputs to all surfaces and return the outcome."""
    counts = {name: max(1, int(share * inputs)) for name, share in SHARES.items()}
    outcome = Outcome()
    _attack_server(counts, seed, outcome, say)
    for reader in READERS:
        say(f"{reader}: {counts[reader]} inputs")
        tally, crashes = read_random(reader, counts[reader], seed)
        outcome.inputs[reader] = tally.inputs
        outcome.unhandled += tally.unhandled
        outcome.crashes += crashes
    return outcome


def _attack_server(counts: dict[str, int], seed: int, outcome: Outcome, say: Callable[[str], None]) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pilotage-fuzz-")))
        broker = stack.enter_context(running_broker(MosquittoServer))
        server = stack.enter_context(running_server(folder, broker=broker.url, long_poll_s=1))
        assert server.process is not None
        grid = WireGrid(server)
        stack.callback(grid.close)
        grid.put_tree()
        messages = RandomMessages(grid, broker, seed)
        stack.callback(messages.close)
        surfaces = {"calls": RandomCalls(grid, seed), "messages": messages, "slot ads": RandomAds(grid, seed)}
        tallies = {name: Tally() for name in surfaces}
        with _another_user(server) as measured:
            outcome.quiet_p99_ms = measured(QUIET_S)
        before_mb = 0.0
        with _another_user(server) as measured:
            for step in range(ROUNDS):
                if step == WARM_UP_ROUNDS:
                    before_mb = _memory_mb(server)
                for name, surface in surfaces.items():
                    first, last = (counts[name] * each // ROUNDS for each in (step, step + 1))
                    surface.run(last - first, first, tallies[name])
                say(f"round {step + 1} of {ROUNDS}: {_memory_mb(server):.0f} MB")
                if server.process.poll() is not None:
                    break
            outcome.growth_mb = _memory_mb(server) - before_mb
            outcome.p99_ms = measured(0.0)
        outcome.crashes += server.process.poll() is not None
        outcome.inputs |= {name: tally.inputs for name, tally in tallies.items()}
        outcome.unhandled += [each for tally in tallies.values() for each in tally.unhandled]
        outcome.unhandled += _errors_of(server)
        say(f"answers: {dict(tallies['calls'].codes)}, to slot ads {dict(tallies['slot ads'].codes)}")


def _errors_of(server: RunningServer) -> list[str]:
    return [line[:2000] for line in server.log().splitlines() if _level_of(line) not in ("info", "warning")]


def _level_of(line: str) -> str:
    try:
        return str(json.loads(line)["level"])
    except (ValueError, TypeError, KeyError):
        return "no line of ours"


def _memory_mb(server: RunningServer) -> float:
    """Return the resident memory of the server; 0 = it has ended."""
    assert server.process is not None
    try:
        status = Path(f"/proc/{server.process.pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0.0)


@contextmanager
def _another_user(server: RunningServer) -> Iterator[Callable[[float], float]]:
    """Measure a user in a process of its own; the given function waits and returns the p99 of its latencies in ms."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    token = server.token(owner="bob", vo="quiet")
    user = context.Process(target=_use, args=(server.address, token, theirs), daemon=True)
    user.start()

    def p99_ms(wait_s: float) -> float:
        ours.poll(wait_s)
        ours.send(None)
        latencies: list[float] = ours.recv()
        return statistics.quantiles(latencies, n=100)[98] * 1000

    ours.recv()
    try:
        yield p99_ms
    finally:
        user.kill()
        user.join()


def _use(address: str, token: str, stop: Connection) -> None:
    request = job_service_pb2.ListJobsRequest()
    latencies: list[float] = []
    with open_channel(Endpoint((address,), token), timeout_s=30.0) as channel:
        jobs = job_service_pb2_grpc.JobServiceStub(channel)
        jobs.ListJobs(request)
        stop.send(None)
        while not stop.poll(PAUSE_S):
            start_s = boot_time_s()
            try:
                jobs.ListJobs(request)
            except PilotageError:
                latencies.append(30.0)
            else:
                latencies.append(boot_time_s() - start_s)
    stop.send(latencies)
