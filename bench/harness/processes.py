"""Binding of processes to cores, and their CPU time and memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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


def threads_profile(pid: int) -> Callable[[], str]:
    """Start to measure; the result returns how much of a core the threads of a server have used since.

    On SQLite the busiest thread is the writer, and the next is the event loop.
    """
    before, began_s = _threads_cpu_s(pid), time.perf_counter()

    def text() -> str:
        seconds = time.perf_counter() - began_s
        used_s = (spent_s - before.get(thread, 0.0) for thread, spent_s in _threads_cpu_s(pid).items())
        busiest, second, *others = sorted((100 * each / seconds for each in used_s), reverse=True)
        return f"threads of the server, of a core: {busiest:.0f} %, {second:.0f} %, all others {sum(others):.0f} %"

    return text


def _threads_cpu_s(pid: int) -> dict[int, float]:
    """Return the CPU time of each thread of a process, in seconds."""
    found = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            found[int(thread.name)] = int((thread / "schedstat").read_text().split()[0]) / 1e9
    return found


def ended_children_cpu_s(pid: int) -> float:
    """Return the CPU time of the processes that a process has waited for, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Return the processes that the main thread of a process has started and not waited for."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def resident_mb(pid: int) -> float:
    """Return the memory that a process has in RAM, in MB (10^6 bytes)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
