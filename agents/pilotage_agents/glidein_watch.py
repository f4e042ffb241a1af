"""Watches the glideins that a director has sent: adopts them after a restart and tells the server which ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby

import structlog

from pilotage.clock import Clock
from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import BatchSystem, GlideinState, GlideinStatus
from pilotage_agents.core.queue_failures import QueueFailures
from pilotage_agents.glidein_folders import GlideinFolders, GlideinRecord
from pilotage_agents.link import DirectorLink, GlideinReport

log = structlog.get_logger()

_NEVER_SUBMITTED = GlideinStatus(GlideinState.ENDED, "it was never submitted")


class GlideinWatch:
    """Keeps the records of living glideins; a batch system that gives no answer changes none of them."""

    def __init__(
        self,
        folders: GlideinFolders,
        link: DirectorLink,
        batch_systems: Mapping[str, BatchSystem],
        clock: Clock,
        *,
        keep_ended: int,
    ) -> None:
        self._folders = folders
        self._link = link
        self._batch_systems = batch_systems
        self._clock = clock
        self._keep_ended = keep_ended
        self._records: dict[str, GlideinRecord] | None = None

    def sent(self, record: GlideinRecord) -> None:
        """Watch a glidein from now on."""
        self._living()[record.stamp] = record

    async def look(self, failures: QueueFailures) -> QueueFailures:
        """Ask the batch systems, tell the server who ended; returns `failures` with what was learned."""
        ended: list[tuple[GlideinRecord, GlideinStatus]] = []
        adopted: list[GlideinRecord] = []
        for name, records in self._by_batch_system():
            system = self._batch_systems.get(name)
            if system is None:
                log.warning("glideins of a batch system that is not configured", name=name, glideins=len(records))
                continue
            ended += await self._find_again(system, [each for each in records if not each.glidein_id], adopted)
            ended += await _poll(system, [each for each in records if each.glidein_id])
        await self._tell(ended, adopted)
        for record, status in ended:
            failures = self._judged(failures, record, status)
        return failures

    async def cancel_all(self) -> None:
        """Ask every glidein to end."""
        for name, records in self._by_batch_system():
            system = self._batch_systems.get(name)
            if system is not None:
                await system.cancel_many([each.glidein_id for each in records if each.glidein_id])

    def _living(self) -> dict[str, GlideinRecord]:
        if self._records is None:
            self._records = {record.stamp: record for record in self._folders.records()}
        return self._records

    def _by_batch_system(self) -> list[tuple[str, list[GlideinRecord]]]:
        records = sorted(self._living().values(), key=lambda record: record.batch_system)
        return [(name, list(each)) for name, each in groupby(records, key=lambda record: record.batch_system)]

    async def _find_again(
        self, system: BatchSystem, records: list[GlideinRecord], adopted: list[GlideinRecord]
    ) -> list[tuple[GlideinRecord, GlideinStatus]]:
        """Adopt glideins whose submission was not answered; returns those that never were submitted."""
        if not records:
            return []
        try:
            found = await system.find_again([record.stamp for record in records])
        except WorldError as error:
            log.warning("glideins could not be looked for", glideins=len(records), reason=str(error))
            return []
        adopted += [replace(record, glidein_id=found[record.stamp]) for record in records if record.stamp in found]
        return [(record, _NEVER_SUBMITTED) for record in records if record.stamp not in found]

    async def _tell(
        self, ended: Iterable[tuple[GlideinRecord, GlideinStatus]], adopted: Iterable[GlideinRecord]
    ) -> None:
        """Tell the server; only what it has heard is forgotten here."""
        reports = [GlideinReport(each.stamp, each.glidein_id, ended=False) for each in adopted]
        reports += [
            GlideinReport(each.stamp, each.glidein_id, ended=True, reason=status.reason) for each, status in ended
        ]
        if not reports:
            return
        await self._link.report_glideins(reports)
        for record in adopted:
            self._folders.keep(record)
            self._living()[record.stamp] = record
        for record, status in ended:
            log.info("glidein ended", stamp=record.stamp, queue=str(record.queue), reason=status.reason)
            self._folders.ended(record.stamp)
            self._living().pop(record.stamp, None)
        self._folders.prune(self._keep_ended)

    def _judged(self, failures: QueueFailures, record: GlideinRecord, status: GlideinStatus) -> QueueFailures:
        if status.exit_code is None:
            return failures
        if status.exit_code == 0:
            return failures.went_well(record.queue)
        log.warning(
            "pilot ended in error",
            stamp=record.stamp,
            queue=str(record.queue),
            exit_code=status.exit_code,
            output=str(self._folders.path_of(record.stamp)),
        )
        return failures.failed(record.queue, f"a pilot ended with {status.reason}", self._clock())


async def _poll(system: BatchSystem, records: list[GlideinRecord]) -> list[tuple[GlideinRecord, GlideinStatus]]:
    """Return the glideins that the batch system says have ended."""
    if not records:
        return []
    statuses = await system.poll_all([record.glidein_id for record in records])
    found = ((record, statuses.get(record.glidein_id)) for record in records)
    return [(record, status) for record, status in found if status and status.state is GlideinState.ENDED]
