"""What TLS, tokens and their proofs cost: the match rate of pilots that call one server in three ways, in turns.

The ways are: plain connections without a token, plain connections with bound tokens and proofs, and both with TLS. Each
pilot has a connection of its own, which stays open, with one call in flight. Prints JSON lines; exits 1 if a budget is
exceeded.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import grpc

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.figures import Figure, at_most, measured, progress
from harness.grid import REQUEST_JOBS, BenchGrid, LoadPilot, an_offer, fresh, matches_in
from harness.load import Answer, Caller, Line, Metadata, Method, Request, Run, run_conversations
from harness.processes import cpu_s
from harness.setting import SHARING, Setting, bench, database_url, scratch, server_on_its_core, the_day
from harness.three_way_server import PILOT_HEADER, TLS_ADDRESS
from support.processes import free_address
from support.server import self_signed_certificate

JOBS, LEAST_JOBS = 600_000, 120_000
PILOTS = 64
ROUNDS = 20
CALLS_EACH, CALLS_EACH_OF_MANY = 12, 2
"""Calls of each pilot in a round: for one slot, and for many."""

SLOTS = 50
BUDGET_PERCENT = 25.0


class Way:
    """One way to call the server: connections of all pilots, and the metadata of their calls."""

    def __init__(
        self,
        address: str,
        pilots: Sequence[LoadPilot],
        metadata: Callable[[LoadPilot, str], Metadata],
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._lines = [Line(address, credentials) for _ in pilots]
        callers: list[Caller] = [partial(metadata, pilot) for pilot in pilots]
        self._methods: Mapping[Any, Method] = {
            caller: line.method(REQUEST_JOBS) for caller, line in zip(callers, self._lines, strict=True)
        }

    def future(self, request: Request, timeout_s: float) -> Any:
        """Make a call over the connection of its caller."""
        return self._methods[request.metadata].future(request, timeout_s)

    def load(self, server_pid: int, body: bytes, calls_each: int) -> Run:
        """Let each pilot make its calls, one after the other."""
        left = dict.fromkeys(self._methods, calls_each - 1)

        def follow(answer: Answer) -> Request | None:
            caller = answer.request.metadata
            if not left[caller]:
                return None
            left[caller] -= 1
            return Request(fresh(body), caller)

        before_s = cpu_s(server_pid)
        run = run_conversations(self, [Request(fresh(body), caller) for caller in self._methods], follow)
        run.server_cpu_s = cpu_s(server_pid) - before_s
        return run

    def close(self) -> None:
        """Close the connections."""
        for line in self._lines:
            line.close()


def _name(pilot: LoadPilot, _method: str) -> Metadata:
    return ((PILOT_HEADER, pilot.stamp),)


def _introduction(pilot: LoadPilot, method: str) -> Metadata:
    return (*_name(pilot, method), *pilot.metadata(method))


class Ways:
    """The three ways, on one server."""

    def __init__(self, grid: BenchGrid, pilots: Sequence[LoadPilot], tls_address: str, root_ca: bytes) -> None:
        self._pid = grid.server_pid
        plain, encrypted = grid.server.address, grpc.ssl_channel_credentials(root_ca)
        self._introduction = Way(plain, pilots, _introduction)
        self._open = Way(plain, pilots, _name)
        self._proven = Way(plain, pilots, LoadPilot.metadata)
        self._encrypted = Way(tls_address, pilots, LoadPilot.metadata, encrypted)

    def figures(self, name: str, slots: int, calls_each: int, rounds: int) -> Iterator[Figure]:
        """Measure the cost of calls for `slots` slots; `name` is that of the calls.

        A server with a busy core makes as many matches as fit in its time, so the lost part of the rate is that of the
        CPU time. `by_rate` is the lost part of the measured rate, which other work on the machine disturbs more.
        """
        ways = (self._open, self._proven, self._encrypted)
        body = an_offer(slots)
        for way in (self._introduction, *ways):  # opens the connections and warms up
            way.load(self._pid, body, 1)
        runs: list[dict[Way, Run]] = []
        for number in range(rounds):
            order = ways[number % len(ways) :] + ways[: number % len(ways)]  # no way profits from its place
            runs.append({way: _full(way.load(self._pid, body, calls_each), slots) for way in order})
        open_us = statistics.median(run[self._open].cpu_us for run in runs)
        yield measured(f"tls: {name}, plain and without a token", open_us / slots, "µs")
        for way, more in ((self._proven, "tokens and proofs"), (self._encrypted, "tokens, proofs and TLS")):
            kept = statistics.median(run[self._open].cpu_us / run[way].cpu_us for run in runs)
            kept_rate = statistics.median(run[way].calls_per_s / run[self._open].calls_per_s for run in runs)
            by_rate = round(_lost_percent(kept_rate), 1)
            yield at_most(f"tls: {name}, cost of {more}", _lost_percent(kept), "%", BUDGET_PERCENT, by_rate=by_rate)

    def close(self) -> None:
        """Close all connections."""
        for way in (self._introduction, self._open, self._proven, self._encrypted):
            way.close()


def _lost_percent(kept: float) -> float:
    return 100 * (1 - kept)


def _full(run: Run, slots: int) -> Run:
    for answer in run.answers:
        assert len(matches_in(answer)) == slots, "a slot has no job"
    return run


def figures(setting: Setting) -> Iterator[Figure]:
    """Start the server and measure."""
    day = the_day()
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        url = stack.enter_context(database_url(setting.database))
        certificate, key = self_signed_certificate(folder)
        tls_address = free_address()
        server = stack.enter_context(
            server_on_its_core(
                folder / "server",
                url,
                module="harness.three_way_server",
                environment={"PYTHONPATH": str(Path(__file__).parent), TLS_ADDRESS: tls_address},
                tls_cert=str(certificate),
                tls_key=str(key),
                **SHARING,
            )
        )
        grid = stack.enter_context(closing(BenchGrid(server, day)))
        grid.put_tree(day.tree())
        jobs = grid.submit_day(setting.size(JOBS, LEAST_JOBS))
        progress(f"{jobs:,} jobs wait on {setting.database}")
        pilots = grid.pilots(PILOTS)
        ways = stack.enter_context(closing(Ways(grid, pilots, tls_address, certificate.read_bytes())))
        rounds = setting.size(ROUNDS, 2)
        yield from ways.figures("one job a call", 1, CALLS_EACH, rounds)
        yield from ways.figures(f"{SLOTS} slots a call", SLOTS, CALLS_EACH_OF_MANY, rounds)


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
