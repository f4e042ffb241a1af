"""Cooperative work: long work in short pieces, so that it does not delay matching.

In one interpreter only one thread runs at a time, and a thread that needs the interpreter requests it after 5 ms only.
A match needs it several times. So long work sleeps by itself, as long as it runs. With pieces of 1 ms and pauses of
2 ms it took up to twice as long, and matches were not faster: each piece begins with a wait for the interpreter.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from pilotage.clock import boot_time_s

Item = TypeVar("Item")

WORK_S = 0.003
REST_S = 0.003


def cooperative(items: Iterable[Item], /) -> Iterator[Item]:
    """Yield the items and sleep REST_S after each WORK_S of work."""
    began_s = boot_time_s()
    for item in items:
        yield item
        if boot_time_s() - began_s >= WORK_S:
            time.sleep(REST_S)
            began_s = boot_time_s()
