"""The rate of empty unary calls that a threaded Python gRPC server answers on this machine.

Budgets in units of time are for a machine with the rate `REFERENCE_PER_S`, and scale with the measured rate.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import repeat
from pathlib import Path

from harness.load import Line, Request, Run, closed_loop, median_rate, steady_load
from harness.processes import LOAD_CORE, SERVER_CORE, cpu_s, on_core

REFERENCE_PER_S = 6_700.0
"""The rate on the machine of the budgets."""

OUTSTANDING = 64
_METHOD = "/bench.Empty/Call"
_REQUEST = Request(b"x" * 193)
_WARM_UP = 2_000
_MEASURED = 2_000


class EmptyServer:
    """The server process."""

    def __init__(self, process: subprocess.Popen[str], line: Line) -> None:
        self._process = process
        self._method = line.method(_METHOD)

    def run(self, calls: int) -> Run:
        """Make calls in a closed loop."""
        before_s = cpu_s(self._process.pid)
        run = closed_loop(self._method, repeat(_REQUEST, calls), OUTSTANDING)
        run.server_cpu_s = cpu_s(self._process.pid) - before_s
        return run

    def steady(self, calls: int, calls_per_s: float) -> Run:
        """Make calls at a steady rate, which shows the latency of the machine itself."""
        return steady_load(self._method, repeat(_REQUEST, calls), calls_per_s)


@contextmanager
def empty_server() -> Iterator[EmptyServer]:
    """Run the server on the servers' core until the end of the block."""
    with on_core(SERVER_CORE):
        command = [sys.executable, str(Path(__file__).with_name("empty_server.py"))]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = Line(process.stdout.readline().strip())
    try:
        server = EmptyServer(process, line)
        server.run(_WARM_UP)
        yield server
    finally:
        line.close()
        process.kill()
        process.communicate()


@cache
def machine_speed() -> float:
    """Return the rate of empty calls as a part of `REFERENCE_PER_S`; it is measured once, so call it before a load."""
    with empty_server() as server, on_core(LOAD_CORE):
        return median_rate(server.run(_MEASURED) for _ in range(3)) / REFERENCE_PER_S
