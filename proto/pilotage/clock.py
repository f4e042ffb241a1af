"""The only module that reads the clocks of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]
"""Returns the present time, aware, in UTC."""

BootClock = Callable[[], float]
"""Returns seconds since boot, suspended time included; it never jumps."""

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS has only the latter, and counts sleep in it


def now() -> datetime:
    """Return the present time, aware, in UTC."""
    return datetime.now(UTC)


def utc_offset_s() -> int:
    """Return how many seconds the local time of this machine is ahead of UTC now."""
    return time.localtime().tm_gmtoff


def thread_cpu_s() -> float:
    """Return the processor seconds that this thread has used."""
    return time.thread_time()


def boot_time_s() -> float:
    """Return seconds since this machine's boot, suspended time included."""
    return time.clock_gettime(_BOOT_CLOCK)
