"""A workshop in which one job meets what nobody has foreseen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pilotage.values.attempts import AttemptKey
from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.supervise.base import CollectedOutput
from support.fake_pilot_edges import FakeWorkshop


class OddWorkshop(FakeWorkshop):
    """One in which what is done for job 1 fails, in one way or another, as nobody has foreseen."""

    def __init__(self, breaks: str) -> None:
        super().__init__()
        self._breaks = breaks

    def _may_break(self, what: str, key: AttemptKey) -> None:
        if what == self._breaks and key.job_id == 1:
            raise RecursionError("a path without end")

    def prepare(self, order: PrepareJob) -> None:
        self._may_break("prepare", order.job.key)
        super().prepare(order)

    async def fetch(self, key: AttemptKey) -> None:
        self._may_break("fetch", key)

    def start(self, key: AttemptKey) -> None:
        self._may_break("start", key)
        super().start(key)

    async def collect(self, key: AttemptKey) -> CollectedOutput:
        self._may_break("collect", key)
        left = await super().collect(key)
        return replace(left, large={"core": Path("core")}) if self._breaks == "bring" else left

    async def upload_large(self, key: AttemptKey, left: CollectedOutput) -> CollectedOutput:
        self._may_break("bring", key)
        return replace(left, large={})
