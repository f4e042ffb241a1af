"""Where the time of the slowest calls goes, from what the client and `watched_server` have recorded."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from harness.load import Caller, Metadata, Request, Run
from harness.watched_server import CALL_HEADER, PERIODS
from pilotage.clock import boot_time_s

STAGES = (
    "the load is late",
    "wire, gRPC and access check",
    "waits for the writer",
    "statements of its group",
    "commit",
    "answers of its group",
    "wire back",
)
"""The stages of a call, in their order: between the moments of `CallMoments`."""

SLOWEST = 0.01
"""The part of the calls that a table looks at."""


class CallMoments(NamedTuple):
    """The moments of a call in s of the boot clock."""

    due_s: float
    sent_s: float
    arrived_s: float
    group_began_s: float
    commit_began_s: float
    commit_ended_s: float
    answered_s: float
    received_s: float

    @property
    def latency_s(self) -> float:
        """The time from when the call was due until its answer has been received."""
        return self.received_s - self.due_s

    def stages_ms(self) -> list[float]:
        """Return the duration of each of `STAGES` in ms."""
        return [1000 * (end_s - begin_s) for begin_s, end_s in pairwise(self)]


class _Numbered:
    """Makes the metadata of a call with a number, and knows when it was sent."""

    def __init__(self, number: int, metadata: Metadata | Caller) -> None:
        self.number = number
        self.sent_s = 0.0
        self._metadata = metadata

    def __call__(self, path: str) -> Metadata:
        self.sent_s = boot_time_s()
        metadata = self._metadata(path) if callable(self._metadata) else self._metadata
        return (*metadata, (CALL_HEADER, str(self.number)))


def numbered(requests: Iterable[Request]) -> Iterator[Request]:
    """Yield the requests with numbers, by which a watched server records them."""
    return (Request(each.body, _Numbered(number, each.metadata)) for number, each in enumerate(requests))


class Stages:
    """The moments of the calls of a run, and the periods of the server meanwhile."""

    def __init__(self, run: Run, records: Path) -> None:
        """Join the answers to `numbered` requests with the records of the server, which has ended."""
        found = json.loads(records.read_text())
        self._periods: dict[str, list[tuple[float, float]]] = found["periods"]
        self.calls: list[CallMoments] = []
        for answer in run.answers:
            call = answer.request.metadata
            assert isinstance(call, _Numbered)
            moments = found["calls"][str(call.number)]
            assert min(moments) > 0, f"the server has not recorded a moment of a call: {moments}"
            self.calls.append(CallMoments(*(answer.due_s, call.sent_s, *moments, answer.received_s)))

    def slowest(self) -> list[CallMoments]:
        """Return the slowest calls."""
        ordered = sorted(self.calls, key=lambda call: call.latency_s, reverse=True)
        return ordered[: max(1, round(SLOWEST * len(ordered)))]

    def rows(self) -> Iterator[tuple[str, float, float]]:
        """Yield each stage with the median over all calls and the mean over the slowest, in ms.

        Then yield the periods of the server with the mean time that such a period overlaps a call.
        """
        slowest = self.slowest()
        all_stages = list(zip(*(call.stages_ms() for call in self.calls), strict=True))
        slow_stages = list(zip(*(call.stages_ms() for call in slowest), strict=True))
        for name, of_all, of_slow in zip(STAGES, all_stages, slow_stages, strict=True):
            yield name, statistics.median(of_all), statistics.fmean(of_slow)
        for name in PERIODS:
            periods = self._periods[name]
            yield f"during {name}", _overlap_ms(self.calls, periods), _overlap_ms(slowest, periods)

    def table(self) -> str:
        """Return the rows as text."""
        slowest = self.slowest()
        head = f"{'ms':32} {'all calls':>10} {'slowest 1 %':>12}\n"
        of_all = statistics.median(call.latency_s for call in self.calls)
        of_slow = statistics.fmean(call.latency_s for call in slowest)
        rows = [("latency", 1000 * of_all, 1000 * of_slow), *self.rows()]
        return head + "".join(f"{name:32} {median:10.2f} {mean:12.2f}\n" for name, median, mean in rows)


def _overlap_ms(calls: Sequence[CallMoments], periods: Sequence[tuple[float, float]]) -> float:
    """Return the mean time in ms that the periods overlap a call."""
    return 1000 * statistics.fmean(
        sum(max(0.0, min(end_s, call.received_s) - max(begin_s, call.sent_s)) for begin_s, end_s in periods)
        for call in calls
    )
