"""The pool cleanup agent: keeps the pools' mappings fresh and has pools removed that nobody needs."""

from __future__ import annotations

from datetime import timedelta

import structlog

from pilotage.clock import Clock
from pilotage_agents.link import CleanupLink, PoolOutline
from pilotage_agents.settings import PoolCleanupSettings

log = structlog.get_logger()


class PoolCleanup:
    """Asks the server to refresh old mappings and to remove idle pools; the server decides on each."""

    name = "pool cleanup"

    def __init__(self, settings: PoolCleanupSettings, link: CleanupLink, clock: Clock) -> None:
        self._settings = settings
        self._link = link
        self._clock = clock

    async def run_once(self) -> timedelta:
        """Refresh, then clean; returns how long to wait until the next round."""
        refreshed = await self._link.refresh_pools(self._settings.refresh_older_than_s)
        removed = await self._link.clean_pools(self._settings.grace_s)
        if refreshed or removed:
            log.info("pools cleaned up", refreshed=len(refreshed), removed=len(removed))
        return timedelta(seconds=self._settings.interval_s)

    async def dry_run(self) -> tuple[str, ...]:
        """Return what a round would do and why, one line a deed; changes nothing."""
        return tuple(line for pool in await self._link.pools() for line in self._would_do(pool))

    async def stop(self) -> None:
        """Return at once: the agent keeps nothing up between its rounds."""

    def _would_do(self, pool: PoolOutline) -> list[str]:
        lines = []
        age_s = (self._clock() - pool.mapped).total_seconds() if pool.mapped else float("inf")
        if age_s > self._settings.refresh_older_than_s:
            lines.append(f"refresh {pool.id}: its mapping is {age_s:.0f} s old")
        if pool.live_jobs == 0:
            grace_s = self._settings.grace_s
            lines.append(f"remove {pool.id}, once no job, held ones included, has needed it for {grace_s:g} s")
        return lines
