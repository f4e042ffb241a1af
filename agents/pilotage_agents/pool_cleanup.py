"""The pool cleanup agent: has the server refresh the pools' mappings and remove unused pools."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import structlog
from pydantic import Field

from pilotage.clock import Clock
from pilotage_agents.runtime.settings import AgentSection, Interval, Seconds


class PoolCleanupSettings(AgentSection):
    """The settings of the pool cleanup."""

    interval_s: Interval = Field(60, description="The time between two cycles.")
    refresh_older_than_s: Seconds = Field(15 * 60, description="Mappings older than this are refreshed.")
    grace_s: Seconds = Field(3600, description="A pool without jobs for this time is removed.")


@dataclass(frozen=True, slots=True)
class PoolOutline:
    """A pool as the cleanup agent sees it; `mapped` None = it has no mapping yet."""

    id: str
    mapped: datetime | None
    live_jobs: int


class CleanupLink(Protocol):
    """The calls of the pool cleanup; every method raises a PilotageError when its call fails."""

    async def refresh_pools(self, older_than_s: float) -> tuple[str, ...]:
        """Refresh mappings that are older than `older_than_s`; returns the ids of their pools."""

    async def clean_pools(self, grace_s: float) -> tuple[str, ...]:
        """Remove pools that had no live job for `grace_s`; returns their ids."""

    async def pools(self) -> tuple[PoolOutline, ...]:
        """Return all pools."""


log = structlog.get_logger()


class PoolCleanup:
    """Asks the server to refresh old mappings and remove idle pools; the server decides on each."""

    name = "pool cleanup"

    def __init__(self, settings: PoolCleanupSettings, link: CleanupLink, clock: Clock) -> None:
        self._settings = settings
        self._link = link
        self._clock = clock

    async def run_once(self) -> timedelta:
        """Refresh, then clean; returns how long to wait until the next cycle."""
        refreshed = await self._link.refresh_pools(self._settings.refresh_older_than_s)
        removed = await self._link.clean_pools(self._settings.grace_s)
        if refreshed or removed:
            log.info("pools cleaned up", refreshed=len(refreshed), removed=len(removed))
        return timedelta(seconds=self._settings.interval_s)

    async def dry_run(self) -> tuple[str, ...]:
        """Return what a cycle would do and why, one line per action; changes nothing."""
        return tuple(line for pool in await self._link.pools() for line in self._would_do(pool))

    async def stop(self) -> None:
        """Return at once: nothing runs between the cycles."""

    def _would_do(self, pool: PoolOutline) -> list[str]:
        lines = []
        age_s = (self._clock() - pool.mapped).total_seconds() if pool.mapped else float("inf")
        if age_s > self._settings.refresh_older_than_s:
            lines.append(f"refresh {pool.id}: its mapping is {age_s:.0f} s old")
        if pool.live_jobs == 0:
            grace_s = self._settings.grace_s
            lines.append(f"remove {pool.id}, once no job, held ones included, has needed it for {grace_s:g} s")
        return lines
