"""Idle pilots: each waits for a job in a long poll, and asks again when that is over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from harness.grid import REQUEST_JOBS, LoadPilot, an_offer, fresh, matches_in
from harness.load import DEADLINE_S, Answer, Line, Request
from pilotage_pilot.core.rules import Rules

LINES = 8
"""So many connections carry the calls of all of them."""

_WAIT_S = Rules().wait_s
_BODY = an_offer(wait_s=_WAIT_S, time_left_s=60.0)
"""A slot with a minute left, in which no job of the day fits."""


Hear = Callable[[Answer], None]


class _WaitingPilots:
    def __init__(self, address: str, pilots: Sequence[LoadPilot], hear: Hear) -> None:
        self._lines = [Line(address) for _ in range(LINES)]
        self._hear = hear
        self._ended = threading.Event()
        for number, pilot in enumerate(pilots):
            self._ask(self._lines[number % LINES].method(REQUEST_JOBS), pilot)

    def _ask(self, method: Any, pilot: LoadPilot) -> None:
        request = Request(fresh(_BODY), pilot.metadata)
        call = method.future(request.body, timeout=_WAIT_S + DEADLINE_S, metadata=request.metadata)
        call.add_done_callback(partial(self._answered, method, pilot, request))

    def _answered(self, method: Any, pilot: LoadPilot, request: Request, call: Any) -> None:
        if self._ended.is_set():
            return
        answer = Answer(request, call.result(), 0.0)
        if matches_in(answer):
            self._hear(answer)  # it is busy now, and asks no more
        else:
            self._ask(method, pilot)

    def end(self) -> None:
        self._ended.set()
        for line in self._lines:
            line.close()


@contextmanager
def waiting_pilots(address: str, pilots: Sequence[LoadPilot], hear: Hear = lambda _: None) -> Iterator[None]:
    """Let the pilots wait until the end of the block; what brings one a job is heard."""
    waiting = _WaitingPilots(address, pilots, hear)
    try:
        yield
    finally:
        waiting.end()
