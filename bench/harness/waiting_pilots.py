"""Idle pilots: each waits for a job in a long poll, and asks again when that is over.

The first polls of all are of different lengths, so that the later ones end one after the other, as they do where
pilots have come over a day.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any

import grpc

from harness.grid import REQUEST_JOBS, LoadPilot, an_offer, fresh, matches_in
from harness.load import DEADLINE_S, Answer, Line, Request
from pilotage_pilot.core.rules import PLAIN_WAIT_S

LINES = 8
"""So many connections carry the calls of all of them."""

CALLS_PER_TURN, TURN_S = 20, 0.01
"""So many of them ask in a turn of so many seconds: a crowd that comes at once would be turned away."""

_SLOT_LEFT_S = 600.0
"""The slots have ten minutes left, in which no job of the day fits."""

Hear = Callable[[Answer], None]


class _WaitingPilots:
    def __init__(self, address: str, pilots: Sequence[LoadPilot], hear: Hear) -> None:
        self._lines = [Line(address) for _ in range(LINES)]
        self._methods = [line.method(REQUEST_JOBS) for line in self._lines]
        self._hear = hear
        self._next: SimpleQueue[LoadPilot | None] = SimpleQueue()
        """Who asks next; None = nobody any more."""
        self._pilots = len(pilots)
        self.all_have_asked = threading.Event()
        for pilot in pilots:
            self._next.put(pilot)
        self._caller = threading.Thread(target=self._call)
        self._caller.start()

    def _call(self) -> None:
        number = 0
        while (pilot := self._next.get()) is not None:
            self._ask(pilot, number % LINES, PLAIN_WAIT_S * min(1.0, (number + 1) / self._pilots))
            number += 1
            if number == self._pilots:
                self.all_have_asked.set()
            if number % CALLS_PER_TURN == 0:
                time.sleep(TURN_S)

    def _ask(self, pilot: LoadPilot, line: int, wait_s: float) -> None:
        request = Request(fresh(an_offer(wait_s=wait_s, time_left_s=_SLOT_LEFT_S)), pilot.metadata)
        call = self._methods[line].future(request.body, timeout=PLAIN_WAIT_S + DEADLINE_S, metadata=request.metadata)
        call.add_done_callback(partial(self._answered, pilot, request))

    def _answered(self, pilot: LoadPilot, request: Request, call: Any) -> None:
        if call.code() is grpc.StatusCode.OK and matches_in(answer := Answer(request, call.result(), 0.0)):
            self._hear(answer)  # it is busy now, and asks no more
        else:
            self._next.put(pilot)

    def end(self) -> None:
        self._next.put(None)
        self._caller.join()
        for line in self._lines:
            line.close()


@contextmanager
def waiting_pilots(address: str, pilots: Sequence[LoadPilot], hear: Hear = lambda _: None) -> Iterator[None]:
    """Let the pilots wait until the end of the block, which begins when all have asked; what brings a job is heard."""
    waiting = _WaitingPilots(address, pilots, hear)
    waiting.all_have_asked.wait(DEADLINE_S + len(pilots) * TURN_S / CALLS_PER_TURN)
    try:
        yield
    finally:
        waiting.end()
