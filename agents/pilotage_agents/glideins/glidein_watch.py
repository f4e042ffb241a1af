"""Watches the glideins that a director has sent: adopts them after a restart and tells the server which ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from pilotage.clock import Clock
from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import BatchSystem, GlideinState, GlideinStatus
from pilotage_agents.core.queue_failures import QueueFailures
from pilotage_agents.glideins.glidein_collection import GlideinCollection, by_batch_system
from pilotage_agents.glideins.glidein_folders import GlideinFolders, GlideinRecord
from pilotage_agents.link import DirectorLink, GlideinReport

log = structlog.get_logger()

_NEVER_SUBMITTED = GlideinStatus(GlideinState.ENDED, "it was never submitted")


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look at a batch system has found."""

    ended: tuple[tuple[GlideinRecord, GlideinStatus], ...] = ()
    adopted: tuple[GlideinRecord, ...] = ()


class GlideinWatch:
    """Keeps the records of living glideins; a batch system that gives no answer changes none of them.

    A glidein whose submission was not answered, and that is not found for `lost_after`, was never submitted: until
    then it may still lie among what its batch system has not come to, and the server is told to wait for it.
    """

    def __init__(
        self,
        folders: GlideinFolders,
        link: DirectorLink,
        batch_systems: Mapping[str, BatchSystem],
        clock: Clock,
        *,
        keep_ended: int,
        lost_after: timedelta,
    ) -> None:
        self._folders = folders
        self._link = link
        self._batch_systems = batch_systems
        self._clock = clock
        self._collection = GlideinCollection(folders, batch_systems, clock, keep_ended=keep_ended)
        self._lost_after = lost_after
        self._records: dict[str, GlideinRecord] | None = None
        self._told_unanswered: set[str] = set()
        self._called_back: set[str] = set()

    def expect(self, records: Iterable[GlideinRecord]) -> None:
        """Watch glideins that are about to be submitted; until more is known their submission was not answered."""
        self._living().update((record.stamp, record) for record in records)

    async def sent(self, record: GlideinRecord) -> None:
        """Keep what is new of a glidein that is watched."""
        self._living()[record.stamp] = record
        await self._keep(record)

    async def ended(self, record: GlideinRecord) -> None:
        """Watch a glidein no longer, as the server has heard that it has ended."""
        self._living().pop(record.stamp, None)
        self._told_unanswered.discard(record.stamp)
        await asyncio.to_thread(self._folders.ended, record.stamp)

    async def look(self, failures: QueueFailures) -> QueueFailures:
        """Ask the batch systems, tell the server who ended; returns `failures` with what was learned."""
        await self._tell_unanswered()
        async with asyncio.TaskGroup() as group:
            looks = [group.create_task(self._look_at(*each)) for each in self._living_by_system()]
        ended = [each for look in looks for each in look.result().ended]
        await self._tell(ended, [each for look in looks for each in look.result().adopted])
        await self._collection.collect()
        return self._judged(failures, ended)

    async def cancel_all(self) -> None:
        """Ask every glidein to end."""
        self._called_back.update(self._living())
        async with asyncio.TaskGroup() as group:
            for system, records in self._living_by_system():
                group.create_task(system.cancel_many([each.glidein_id for each in records if each.glidein_id]))

    def _living(self) -> dict[str, GlideinRecord]:
        if self._records is None:
            self._records = {record.stamp: record for record in self._folders.records()}
        return self._records

    def _living_by_system(self) -> list[tuple[BatchSystem, list[GlideinRecord]]]:
        return by_batch_system(self._batch_systems, self._living().values())

    async def _look_at(self, system: BatchSystem, records: Sequence[GlideinRecord]) -> _Look:
        unanswered = await self._find_again(system, [each for each in records if not each.glidein_id])
        ended = await _poll(system, [each for each in records if each.glidein_id])
        return _Look((*unanswered.ended, *ended), unanswered.adopted)

    async def _find_again(self, system: BatchSystem, records: Sequence[GlideinRecord]) -> _Look:
        """Look for glideins whose submission was not answered; those that are not found for long never were."""
        if not records:
            return _Look()
        try:
            found = await system.find_again([record.stamp for record in records])
        except WorldError as error:
            log.warning("glideins could not be looked for", glideins=len(records), reason=str(error))
            return _Look()
        adopted = tuple(
            replace(record, glidein_id=found[record.stamp], missed_since=None)
            for record in records
            if record.stamp in found
        )
        lost = [record for record in records if record.stamp not in found and await self._is_lost(record)]
        return _Look(tuple((record, _NEVER_SUBMITTED) for record in lost), adopted)

    async def _is_lost(self, record: GlideinRecord) -> bool:
        """Return whether a glidein that is not found has been missed for long enough; from now on it is missed."""
        if record.missed_since is None:
            record = replace(record, missed_since=self._clock())
            await self.sent(record)
        assert record.missed_since is not None, "it is missed from now on"
        return self._clock() - record.missed_since >= self._lost_after

    async def _keep(self, record: GlideinRecord) -> None:
        """Write the record of a living glidein; without it the next director looks for the glidein by its stamp."""
        try:
            await asyncio.to_thread(self._folders.keep, record)
        except WorldError as error:
            log.warning("record of a glidein could not be written", stamp=record.stamp, reason=str(error))

    async def _tell_unanswered(self) -> None:
        """Tell the server once of each glidein that may be in its batch system, lest it give up the pilot before us."""
        new = [each.stamp for each in self._living().values() if not each.glidein_id]
        if new := [stamp for stamp in new if stamp not in self._told_unanswered]:
            await self._link.report_glideins([GlideinReport(stamp, "", ended=False) for stamp in new])
            self._told_unanswered.update(new)

    async def _tell(
        self, ended: Iterable[tuple[GlideinRecord, GlideinStatus]], adopted: Iterable[GlideinRecord]
    ) -> None:
        """Tell the server; only what it has heard is forgotten here."""
        reports = [GlideinReport(each.stamp, each.glidein_id, ended=False) for each in adopted]
        reports += [
            GlideinReport(each.stamp, each.glidein_id, True, status.reason, each.stamp in self._called_back)
            for each, status in ended
        ]
        if not reports:
            return
        await self._link.report_glideins(reports)
        for record in adopted:
            await self.sent(record)
        for record, status in ended:
            log.info("glidein ended", stamp=record.stamp, queue=str(record.queue), reason=status.reason)
            await self.ended(record)

    def _judged(self, failures: QueueFailures, ended: Sequence[tuple[GlideinRecord, GlideinStatus]]) -> QueueFailures:
        """Return the failures after these ends; a queue where one ended in error is not well for another's sake."""
        in_error = [(record, status) for record, status in ended if status.has_failed or status.exit_code]
        for queue in {record.queue for record, status in ended if status.exit_code == 0}:
            if queue not in {record.queue for record, _ in in_error}:
                failures = failures.went_well(queue)
        for record, status in in_error:
            log.warning(
                "pilot ended in error",
                stamp=record.stamp,
                queue=str(record.queue),
                reason=status.reason,
                output=str(self._folders.path_of(record.stamp)),
            )
            failures = failures.failed(record.queue, f"a pilot ended with {status.reason}", self._clock())
        return failures


async def _poll(system: BatchSystem, records: Sequence[GlideinRecord]) -> list[tuple[GlideinRecord, GlideinStatus]]:
    """Return the glideins that the batch system says have ended."""
    if not records:
        return []
    statuses = await system.poll_all([record.glidein_id for record in records])
    found = ((record, statuses.get(record.glidein_id)) for record in records)
    return [(record, status) for record, status in found if status and status.state is GlideinState.ENDED]
