"""Idle pilots: each waits for a job in a long poll, and repeats it when it ends.

The first long polls have different lengths, so that later ones end one after the other, as with pilots that have
started over a day.
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
"""The number of connections for all pilots."""

CALLS_PER_PAUSE, PAUSE_S = 20, 0.01
"""The largest rate of new calls; overload protection would reject all pilots at once."""

_SLOT_LEFT_S = 600.0
"""The time left of the slots: no job of the day is so short."""

MatchListener = Callable[[Answer], None]


class _WaitingPilots:
    def __init__(self, address: str, pilots: Sequence[LoadPilot], on_match: MatchListener) -> None:
        self._lines = [Line(address) for _ in range(LINES)]
        self._methods = [line.method(REQUEST_JOBS) for line in self._lines]
        self._on_match = on_match
        self._next: SimpleQueue[LoadPilot | None] = SimpleQueue()
        """The pilots with the next calls; None = stop."""
        self._pilots = len(pilots)
        self.all_wait = threading.Event()
        for pilot in pilots:
            self._next.put(pilot)
        self._caller = threading.Thread(target=self._call)
        self._caller.start()

    def _call(self) -> None:
        number = 0
        while (pilot := self._next.get()) is not None:
            self._poll(pilot, number % LINES, PLAIN_WAIT_S * min(1.0, (number + 1) / self._pilots))
            number += 1
            if number == self._pilots:
                self.all_wait.set()
            if number % CALLS_PER_PAUSE == 0:
                time.sleep(PAUSE_S)

    def _poll(self, pilot: LoadPilot, line: int, wait_s: float) -> None:
        request = Request(fresh(an_offer(wait_s=wait_s, time_left_s=_SLOT_LEFT_S)), pilot.metadata)
        call = self._methods[line].future(request, PLAIN_WAIT_S + DEADLINE_S)
        call.add_done_callback(partial(self._answered, pilot, request))

    def _answered(self, pilot: LoadPilot, request: Request, call: Any) -> None:
        if call.code() is grpc.StatusCode.OK and matches_in(answer := Answer(request, call.result(), 0.0, 0.0)):
            self._on_match(answer)  # the pilot is busy and stops polling
        else:
            self._next.put(pilot)

    def end(self) -> None:
        self._next.put(None)
        self._caller.join()
        for line in self._lines:
            line.close()


@contextmanager
def waiting_pilots(
    address: str, pilots: Sequence[LoadPilot], on_match: MatchListener = lambda _: None
) -> Iterator[None]:
    """Keep the pilots in long polls until the end of the block; `on_match` receives every answer with a job."""
    waiting = _WaitingPilots(address, pilots, on_match)
    waiting.all_wait.wait(DEADLINE_S + len(pilots) * PAUSE_S / CALLS_PER_PAUSE)
    try:
        yield
    finally:
        waiting.end()
