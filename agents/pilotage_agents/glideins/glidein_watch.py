"""Watches the glideins that a director has sent: adopts them after a restart, tells the server what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

import structlog

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import BatchSystem, GlideinState, GlideinStatus
from pilotage_agents.core.queue_failures import QueueFailures
from pilotage_agents.glideins.director_edges import DirectorEdges
from pilotage_agents.glideins.glidein_collection import GlideinCollection, by_batch_system
from pilotage_agents.glideins.glidein_credentials import GlideinCredentials
from pilotage_agents.glideins.glidein_folders import GlideinRecord
from pilotage_agents.link import GlideinReport

log = structlog.get_logger()

_NEVER_SUBMITTED = GlideinStatus(GlideinState.ENDED, "it was never submitted")
_MOST_IN_A_REPORT = 1000
_TELL_AGAIN = timedelta(hours=1)
"""So often the server hears that a glidein is there; after days without a word it waits for the pilot no more."""

_Thing = TypeVar("_Thing")


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look at a batch system has found: of those that are `there` some are `waiting`.

    `adopted` were sent without an answer, and are there.
    """

    ended: tuple[tuple[GlideinRecord, GlideinStatus], ...] = ()
    there: tuple[GlideinRecord, ...] = ()
    waiting: tuple[GlideinRecord, ...] = ()
    adopted: tuple[GlideinRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Terms:
    """How long things last: the folders of so many ended glideins, a submission in doubt, a token beyond the wall time.

    A glidein that is in doubt for `lost_after` was never submitted.
    """

    keep_ended: int
    lost_after: timedelta
    credential: timedelta


class GlideinWatch:
    """Keeps the records of living glideins; a batch system that gives no answer changes none of them.

    A glidein whose submission was not answered, and that is not found for long, was never submitted: until
    then it may still lie among what its batch system has not come to, and the server is told to wait for it. Of what a
    batch system has the server hears now and then.
    """

    def __init__(self, edges: DirectorEdges, terms: Terms) -> None:
        self._folders = edges.folders
        self._link = edges.link
        self._batch_systems = edges.batch_systems
        self._clock = edges.clock
        self._collection = GlideinCollection(edges, keep_ended=terms.keep_ended)
        self._credentials = GlideinCredentials(edges, terms.credential)
        self._lost_after = terms.lost_after
        self._records: dict[str, GlideinRecord] | None = None
        self._unheard: set[str] = set()
        self._heard: dict[str, datetime] = {}
        self._called_back: set[str] = set()

    async def expect(self, records: Sequence[GlideinRecord]) -> None:
        """Watch glideins that are about to be submitted; until more is known their submission was not answered."""
        (await self._living()).update((record.stamp, record) for record in records)
        self._unheard.update(record.stamp for record in records)

    async def sent(self, record: GlideinRecord) -> None:
        """Keep the id of a glidein that is watched; the server is still to hear it."""
        await self._keep(record)
        self._unheard.add(record.stamp)

    async def tell_there(self, records: Sequence[GlideinRecord]) -> None:
        """Tell the server of glideins that are in their batch systems, or may be; a later look does what fails."""
        for some in _portions(records):
            await self._link.report_glideins([GlideinReport(each.stamp, each.glidein_id, ended=False) for each in some])
            self._heard.update((each.stamp, self._clock()) for each in some)
            self._unheard.difference_update(each.stamp for each in some)

    async def ended(self, record: GlideinRecord) -> None:
        """Watch a glidein no longer, as the server has heard that it has ended."""
        (await self._living()).pop(record.stamp, None)
        self._unheard.discard(record.stamp)
        self._heard.pop(record.stamp, None)
        await asyncio.to_thread(self._folders.ended, record.stamp)

    async def look(self, failures: QueueFailures) -> QueueFailures:
        """Ask the batch systems, tell the server what they say; returns `failures` with what was learned."""
        living = await self._living()
        # The server hears first what may be there, lest it gives up a pilot before us.
        await self.tell_there([living[stamp] for stamp in sorted(self._unheard)])
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._look_at(*each)) for each in await self._living_by_system()]
        looks = [task.result() for task in tasks]
        adopted = [each for look in looks for each in look.adopted]
        for record in adopted:
            await self.sent(record)
        await self.tell_there([*adopted, *(each for look in looks for each in look.there if self._is_old_news(each))])
        ended = [each for look in looks for each in look.ended]
        worked = await self._tell_ended(ended)
        await self._collection.collect()
        await self._credentials.renew([each for look in looks for each in look.waiting])
        return self._judged(failures, ended, worked)

    async def cancel_all(self) -> None:
        """Ask every glidein to end."""
        self._called_back.update(await self._living())
        async with asyncio.TaskGroup() as group:
            for system, records in await self._living_by_system():
                group.create_task(system.cancel_many([each.glidein_id for each in records if each.glidein_id]))

    async def _living(self) -> dict[str, GlideinRecord]:
        if self._records is None:
            found = await asyncio.to_thread(self._folders.records)
            self._records = {record.stamp: record for record in found}
            self._unheard = {record.stamp for record in found if not record.glidein_id}
        return self._records

    async def _living_by_system(self) -> list[tuple[BatchSystem, list[GlideinRecord]]]:
        return by_batch_system(self._batch_systems, (await self._living()).values())

    def _is_old_news(self, record: GlideinRecord) -> bool:
        """Whether the server has not heard for long that a glidein is there."""
        heard = self._heard.get(record.stamp)
        return heard is None or self._clock() - heard >= _TELL_AGAIN

    async def _look_at(self, system: BatchSystem, records: Sequence[GlideinRecord]) -> _Look:
        unanswered = await self._find_again(system, [each for each in records if not each.glidein_id])
        polled = await _poll(system, [each for each in records if each.glidein_id])
        return replace(polled, ended=(*unanswered.ended, *polled.ended), adopted=unanswered.adopted)

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
        return _Look(tuple((record, _NEVER_SUBMITTED) for record in lost), adopted=adopted)

    async def _is_lost(self, record: GlideinRecord) -> bool:
        """Return whether a glidein that is not found has been missed for long enough; from now on it is missed."""
        if record.missed_since is None:
            record = replace(record, missed_since=self._clock())
            await self._keep(record)
        assert record.missed_since is not None, "it is missed from now on"
        return self._clock() - record.missed_since >= self._lost_after

    async def _keep(self, record: GlideinRecord) -> None:
        """Note what is new of a glidein; without its file the next director looks for the glidein by its stamp."""
        (await self._living())[record.stamp] = record
        try:
            await asyncio.to_thread(self._folders.keep, record)
        except WorldError as error:
            log.warning("record of a glidein could not be written", stamp=record.stamp, reason=str(error))

    async def _tell_ended(self, ended: Sequence[tuple[GlideinRecord, GlideinStatus]]) -> set[str]:
        """Tell the server, and forget here what it has heard; returns the stamps of pilots that had run a job."""
        worked: set[str] = set()
        for some in _portions(ended):
            reports = [
                GlideinReport(each.stamp, each.glidein_id, True, status.reason, each.stamp in self._called_back)
                for each, status in some
            ]
            worked.update((await self._link.report_glideins(reports)).worked)
            for record, status in some:
                log.info("glidein ended", stamp=record.stamp, queue=str(record.queue), reason=status.reason)
                await self.ended(record)
        return worked

    def _judged(
        self, failures: QueueFailures, ended: Sequence[tuple[GlideinRecord, GlideinStatus]], worked: Collection[str]
    ) -> QueueFailures:
        """Return the failures after these ends; a queue where one ended in error is not well for another's sake."""
        in_error = [(record, status) for record, status in ended if status.has_failed or status.exit_code]
        for queue in {record.queue for record, status in ended if status.exit_code == 0 and record.stamp in worked}:
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


async def _poll(system: BatchSystem, records: Sequence[GlideinRecord]) -> _Look:
    """Return the glideins that the batch system says have ended, and those that it says it has, of which some wait."""
    if not records:
        return _Look()
    statuses = await system.poll_all([record.glidein_id for record in records])
    known = [
        (record, status)
        for record in records
        if (status := statuses.get(record.glidein_id)) is not None and status.state.is_known
    ]
    ended = tuple((record, status) for record, status in known if status.state is GlideinState.ENDED)
    there = tuple(record for record, status in known if status.state is not GlideinState.ENDED)
    return _Look(ended, there, tuple(record for record, status in known if status.state is GlideinState.WAITING))


def _portions(things: Sequence[_Thing]) -> Iterator[Sequence[_Thing]]:
    """Yield as many as one report may bring, until all have come."""
    for start in range(0, len(things), _MOST_IN_A_REPORT):
        yield things[start : start + _MOST_IN_A_REPORT]
