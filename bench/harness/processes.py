"""Binding of processes to cores, and their CPU time and memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CORES = sorted(os.sched_getaffinity(0))

SERVER_CORE = _CORES[0]
"""The core of servers."""

LOAD_CORE = _CORES[-1]
"""The core of the load generator; on a machine with one core also that of the servers."""


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Bind this thread, and the processes that it starts in the block, to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpu_s(*pids: int) -> float:
    """Return the CPU time that processes have used with all their threads, in seconds."""
    return sum(time.clock_gettime(_cpu_clock(pid)) for pid in pids)


def _cpu_clock(pid: int) -> int:
    """Return the number of a process's CPU clock, as clock_getcpuclockid(3) gives it on Linux."""
    return (~pid << 3) | 2


def resident_mb(pid: int) -> float:
    """Return the memory that a process has in RAM, in MB (10^6 bytes)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
