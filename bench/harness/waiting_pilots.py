"""Idle pilots: each waits for a job that never comes in a long poll, and asks again when that is over."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from harness.grid import REQUEST_JOBS, LoadPilot, an_offer, fresh
from harness.load import Line

LINES = 8
"""So many connections carry the calls of all of them."""

_WAIT_S = 50.0
_BODY = an_offer(wait_s=_WAIT_S, time_left_s=60.0)
"""A slot with a minute left, in which no job of the day fits."""


class _WaitingPilots:
    def __init__(self, address: str, pilots: Sequence[LoadPilot]) -> None:
        self._lines = [Line(address) for _ in range(LINES)]
        self._ended = threading.Event()
        for number, pilot in enumerate(pilots):
            self._ask(self._lines[number % LINES].method(REQUEST_JOBS), pilot)

    def _ask(self, method: Any, pilot: LoadPilot) -> None:
        call = method.future(fresh(_BODY), timeout=2 * _WAIT_S, metadata=pilot.metadata)
        call.add_done_callback(partial(self._again, method, pilot))

    def _again(self, method: Any, pilot: LoadPilot, _call: Any) -> None:
        if not self._ended.is_set():
            self._ask(method, pilot)

    def end(self) -> None:
        self._ended.set()
        for line in self._lines:
            line.close()


@contextmanager
def waiting_pilots(address: str, pilots: Sequence[LoadPilot]) -> Iterator[None]:
    """Let the pilots wait until the end of the block."""
    waiting = _WaitingPilots(address, pilots)
    try:
        yield
    finally:
        waiting.end()
