"""Has what ended glideins printed brought into their folders, and nothing of theirs left elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

import structlog

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import BatchSystem
from pilotage_agents.core.backoff import backoff
from pilotage_agents.glideins.director_edges import DirectorEdges
from pilotage_agents.glideins.glidein_folders import GlideinRecord

log = structlog.get_logger()

_PORTION = 20
_MOST_PORTIONS = 5
_MOST_ALONE = 10
_FIRST_REST, _LONGEST_REST = timedelta(minutes=1), timedelta(hours=1)


def by_batch_system(
    batch_systems: Mapping[str, BatchSystem], records: Iterable[GlideinRecord]
) -> list[tuple[BatchSystem, list[GlideinRecord]]]:
    """Return the records of each batch system; those of one that is not configured are logged and left out."""
    found = []
    ordered = sorted(records, key=lambda record: record.batch_system)
    for name, those in groupby(ordered, key=lambda record: record.batch_system):
        system, its = batch_systems.get(name), list(those)
        if system is None:
            log.warning("glideins of a batch system that is not configured", name=name, glideins=len(its))
        else:
            found.append((system, its))
    return found


@dataclass(frozen=True, slots=True)
class _Miss:
    """A glidein's output was asked for in vain `times` times, and rests until `until`."""

    times: int
    until: datetime


class GlideinCollection:
    """Collects in portions; what did not come is asked for again, each glidein for itself and ever more seldom.

    So a folder that nobody can bring or remove holds up none but itself.
    """

    def __init__(self, edges: DirectorEdges, *, keep_ended: int) -> None:
        self._folders = edges.folders
        self._batch_systems = edges.batch_systems
        self._clock = edges.clock
        self._keep_ended = keep_ended
        self._missed: dict[str, _Miss] = {}

    async def collect(self) -> None:
        """Ask each batch system for some of what is left, until it does not give it; then remove old folders."""
        records = await asyncio.to_thread(self._folders.to_collect)
        known = {record.stamp for record in records}
        self._missed = {stamp: miss for stamp, miss in self._missed.items() if stamp in known}
        async with asyncio.TaskGroup() as group:
            for system, its in by_batch_system(self._batch_systems, records):
                group.create_task(self._collect_from(system, its))
        await asyncio.to_thread(self._folders.prune, self._keep_ended, self._clock())

    async def _collect_from(self, system: BatchSystem, records: Sequence[GlideinRecord]) -> None:
        for portion in self._portions(records):
            if not await self._bring(system, portion):
                return

    def _portions(self, records: Sequence[GlideinRecord]) -> Iterator[Sequence[GlideinRecord]]:
        """Yield what is to be asked for together: first what never was, then, one at a time, what rested longest."""
        new = [record for record in records if record.stamp not in self._missed]
        for start in range(0, min(len(new), _PORTION * _MOST_PORTIONS), _PORTION):
            yield new[start : start + _PORTION]
        now = self._clock()
        rested = [each for each in records if each.stamp in self._missed and self._missed[each.stamp].until <= now]
        for record in sorted(rested, key=lambda record: self._missed[record.stamp].until)[:_MOST_ALONE]:
            yield [record]

    async def _bring(self, system: BatchSystem, records: Sequence[GlideinRecord]) -> bool:
        """Have the output of these glideins; returns whether it came."""
        try:
            await system.collect([self._folders.path_of(record.stamp) for record in records])
        except WorldError as error:
            log.warning("output could not be collected", glideins=len(records), reason=str(error))
            self._miss(records)
            return False
        await asyncio.to_thread(self._folders.collected, [record.stamp for record in records])
        return True

    def _miss(self, records: Sequence[GlideinRecord]) -> None:
        for record in records:
            times = self._missed[record.stamp].times + 1 if record.stamp in self._missed else 1
            # In a portion it may be another's fault: for itself it is asked for at the next look.
            rest = backoff(times - 1, _FIRST_REST, _LONGEST_REST)
            self._missed[record.stamp] = _Miss(times, self._clock() + rest)
