"""The racer: at the tails of sets, and for urgent jobs, lets copies run on other sites, for the first one to win."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import structlog

from pilotage_agents.core.racing import JobSet, Load, NewRival, Plan, plan_races
from pilotage_agents.racer_settings import RacerSettings

log = structlog.get_logger()

_MOST_COPIES_IN_A_CALL = 1000


@dataclass(frozen=True, slots=True)
class StartedCopy:
    """What came of a copy that was asked for: its id, 0 = there is none, and why not."""

    job_id: int
    copy_id: int
    refusal: str = ""


class RaceLink(Protocol):
    """What the racer says to the server; every method raises a PilotageError when its call fails."""

    async def stragglers(self, after_jobs: Mapping[int, int]) -> tuple[Sequence[JobSet], Load]:
        """Return the sets of which something may be raced, and what races hold and have cost.

        In those that are too large for one look this one goes on after the jobs in `after_jobs`, by set.
        """

    async def start_copies(self, copies: Sequence[NewRival]) -> Sequence[StartedCopy]:
        """Have copies made of different jobs, at most 1,000; returns what came of each, in order."""


class Racer:
    """Starts copies; who wins, and what becomes of the others, is settled by the server, whether this runs or not."""

    name = "racer"

    def __init__(self, settings: RacerSettings, link: RaceLink) -> None:
        self._interval = timedelta(seconds=settings.interval_s)
        self._rules = settings.rules()
        self._link = link
        self._after_jobs: dict[int, int] = {}

    async def run_once(self) -> timedelta:
        """Start the copies that are wanted now; returns how long to wait until the next round."""
        sets, plan = await self._planned()
        for start in range(0, len(plan.copies), _MOST_COPIES_IN_A_CALL):
            await self._start(plan.copies[start : start + _MOST_COPIES_IN_A_CALL])
        self._after_jobs = {of.id: of.next_after_job for of in sets if of.next_after_job}
        return self._interval

    async def dry_run(self) -> tuple[str, ...]:
        """Return which jobs would be raced and why, and why the others would not; changes nothing."""
        _, plan = await self._planned()
        return (
            *(f"job {each.job_id}: a copy: {each.reason}" for each in plan.copies),
            *(f"job {each.job_id}: no copy: {each.reason}" for each in plan.left),
        )

    async def stop(self) -> None:
        """Return at once: races go on, and are settled without it."""

    async def _planned(self) -> tuple[Sequence[JobSet], Plan]:
        sets, load = await self._link.stragglers(self._after_jobs)
        return sets, plan_races(sets, load, self._rules)

    async def _start(self, copies: Sequence[NewRival]) -> None:
        started = await self._link.start_copies(copies)
        for asked, each in zip(copies, started, strict=True):
            if each.copy_id:
                log.info("copy started", job=each.job_id, copy=each.copy_id, reason=asked.reason)
            else:
                log.info("copy refused", job=each.job_id, reason=each.refusal)
