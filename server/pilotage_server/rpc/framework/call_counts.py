"""Counts of the calls of a method, for the metrics. Plain numbers: every call on the wire is counted."""

from __future__ import annotations

from pilotage.metrics.table import CALL_SECONDS
from pilotage.metrics.values import Observations


class CallCounts:
    """The ended calls of one method: `name` as Service/Method, behind `transport` if it is not gRPC.

    Only the serving thread counts; any thread may read.
    """

    __slots__ = ("by_code", "durations_s", "name")

    def __init__(self, method: str, transport: str = "") -> None:
        self.name = f"{transport} {method.rpartition('.')[2]}".lstrip()
        self.by_code: dict[str, int] = {}
        self.durations_s = Observations(CALL_SECONDS.bounds)

    def add(self, code: str, took_s: float) -> None:
        """Count a call that was admitted and has ended."""
        self.add_refused(code)
        self.durations_s.observe(took_s)

    def add_refused(self, code: str) -> None:
        """Count a call that was refused on arrival."""
        self.by_code[code] = self.by_code.get(code, 0) + 1
