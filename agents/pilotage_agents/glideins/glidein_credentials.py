"""Renews the tokens of pilots that wait long in their batch queues, so that none need hold for longer than its use."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby

import structlog

from pilotage.errors import PilotageError
from pilotage_agents.batch_systems.base import BatchSystem
from pilotage_agents.glideins.director_edges import DirectorEdges
from pilotage_agents.glideins.glidein_collection import by_batch_system
from pilotage_agents.glideins.glidein_folders import TOKEN_NAME, GlideinRecord

log = structlog.get_logger()

_MOST_AT_ONCE = 500


class GlideinCredentials:
    """Gives a waiting pilot a new token when half of the time is over that it may wait with the old one.

    `outlives` = how long tokens hold beyond the wall time: one that starts late has a token for all of its time.
    """

    def __init__(self, edges: DirectorEdges, outlives: timedelta) -> None:
        self._folders = edges.folders
        self._link = edges.link
        self._batch_systems = edges.batch_systems
        self._clock = edges.clock
        self._outlives = outlives

    async def renew(self, waiting: Sequence[GlideinRecord]) -> None:
        """Renew what is old of the tokens of glideins that wait; what fails is tried again at the next look."""
        for system, records in by_batch_system(self._batch_systems, waiting):
            stamps = [record.stamp for record in records]
            old = await asyncio.to_thread(self._folders.tokens_before, stamps, self._clock() - self._outlives / 2)
            for wall_time_s, some in groupby(sorted(old, key=lambda stamp: old[stamp]), key=lambda stamp: old[stamp]):
                try:
                    await self._renew_some(system, list(some)[:_MOST_AT_ONCE], wall_time_s)
                except PilotageError as error:
                    log.warning("tokens of waiting pilots could not be renewed", reason=str(error))

    async def _renew_some(self, system: BatchSystem, stamps: Sequence[str], wall_time_s: float) -> None:
        pilots = await self._link.renew_credentials(stamps, wall_time_s + self._outlives.total_seconds())
        for pilot in pilots:
            await asyncio.to_thread(self._folders.put_token, pilot.stamp, pilot.token)
        renewed = [pilot.stamp for pilot in pilots]
        await system.renew([self._folders.path_of(stamp) for stamp in renewed], TOKEN_NAME)
        # Pilots that get none rest as well: however many they are, they keep no other from its turn.
        await asyncio.to_thread(self._folders.brought, stamps, self._clock())
        log.info("tokens of waiting pilots renewed", pilots=len(renewed))
