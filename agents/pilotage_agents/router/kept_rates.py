"""How fast the routes of a router fail, kept for the router that goes on: itself after a start, or one elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from pilotage.clock import Clock
from pilotage.errors import WorldError
from pilotage_agents.core.copies.held_copies import HeldCopies
from pilotage_agents.core.failure_rate import FailureRate
from pilotage_agents.router.router_folder import RouterFolder

log = structlog.get_logger()


class KeptRates:
    """Keeps the failure rates of `copies` in the folder that routers of one name share."""

    def __init__(self, copies: HeldCopies, folder: RouterFolder, clock: Clock) -> None:
        self._copies = copies
        self._folder = folder
        self._clock = clock
        self._kept: Mapping[str, FailureRate] | None = None

    def another_may_have_acted(self) -> None:
        """Let what was kept last be read before the next job is sent."""
        self._kept = None

    async def resume(self) -> None:
        """Go on with what was kept, where that was not done yet, as soon as the folder is there."""
        if self._kept is None and await asyncio.to_thread(self._folder.shared.parent.is_dir):
            self._kept = await asyncio.to_thread(self._folder.rates)
            self._copies.resume(self._kept, self._clock())

    async def keep(self) -> None:
        """Keep the rates if they have changed; where that cannot be, sending goes on."""
        rates = self._copies.rates
        if self._kept is None or rates == self._kept:
            return
        try:
            await asyncio.to_thread(self._folder.keep_rates, rates)
        except WorldError as error:
            log.warning("failure rates of routes could not be kept", reason=str(error))
        self._kept = rates
