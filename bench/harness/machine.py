"""The machine of a bench: processor, cores, memory, disk, releases."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pilotage_server.app import build_name

_SYNCS = 200
_BLOCK = b"x" * 4096


def facts() -> Iterator[tuple[str, str]]:
    """Yield name and value of each property of the machine."""
    yield "processor", _processor()
    yield "cores", str(len(os.sched_getaffinity(0)))
    yield "memory", f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    yield "disk", f"4 KiB appended and synchronised in {1000 * _sync_s():.2f} ms (median)"
    yield "system", f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}"
    yield "Python", platform.python_version()
    yield "server", build_name()


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _sync_s() -> float:
    """Return the median time to append and sync a block on the disk of the benches."""
    with tempfile.TemporaryFile() as file:
        times = [_one_sync_s(file.fileno()) for _ in range(_SYNCS)]
    return statistics.median(times)


def _one_sync_s(descriptor: int) -> float:
    os.write(descriptor, _BLOCK)
    began_s = time.perf_counter()
    os.fdatasync(descriptor)
    return time.perf_counter() - began_s
