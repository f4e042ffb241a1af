"""Long work beside the matching: in short pieces, for in one interpreter only one thread works at a time.

A thread that wants the interpreter asks for it after 5 ms only, and a match wants it several times. So who works for
long rests by himself: twice as long as he works, as if he were the third of three.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pilotage.clock import boot_time_s

Item = TypeVar("Item")

WORK_S = 0.001
REST_S = 0.002


def unhurried(items: Iterable[Item], /) -> Iterator[Item]:
    """Yield the items, and rest whenever those since the last rest have taken their time."""
    began_s = boot_time_s()
    for item in items:
        yield item
        if boot_time_s() - began_s >= WORK_S:
            time.sleep(REST_S)
            began_s = boot_time_s()


@contextmanager
def left_lying() -> Iterator[None]:
    """Let nobody look for garbage meanwhile, nor ever among what there is at the end.

    Who makes tens of thousands of things that stay has the collector come again and again, each time for 10 ms.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
