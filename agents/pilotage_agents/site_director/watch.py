"""Watches the director's glideins: adopts them after a restart, reports their states, and cleans up after them.

`GlideinReaper` collects the output of ended glideins and removes what they left elsewhere. `GlideinCredentials` renews
the enrolment secrets of pilots that wait long in batch queues, so that none has to be valid for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import TypeVar

import structlog

from pilotage.backoff import backoff
from pilotage.errors import PilotageError, WorldError
from pilotage.values.pilots import GlideinReport, PilotState
from pilotage_agents.batch_systems.base import BatchSystem, GlideinState, GlideinStatus
from pilotage_agents.site_director.glideins import TOKEN_NAME, GlideinRecord
from pilotage_agents.site_director.ports import DirectorContext
from pilotage_agents.site_director.queues import QueueFailures

log = structlog.get_logger()

_FETCH_BATCH = 20
_MAX_FETCH_BATCHES = 5
_MAX_SINGLE_FETCHES = 10
_FIRST_RETRY, _LONGEST_RETRY = timedelta(minutes=1), timedelta(hours=1)


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
class _FetchRetry:
    """The output of a glidein could not be fetched `times` times; the next attempt is at `until`."""

    times: int
    until: datetime


class GlideinReaper:
    """Collects output in batches. After a failure each glidein is retried alone, at growing intervals.

    So a folder that cannot be fetched or removed delays no other.
    """

    def __init__(self, context: DirectorContext, *, keep_ended: int) -> None:
        self._folders = context.folders
        self._link = context.link
        self._batch_systems = context.batch_systems
        self._clock = context.clock
        self._keep_ended = keep_ended
        self._retries: dict[str, _FetchRetry] = {}
        self._logs_wanted: set[str] = set()

    def want_logs(self, stamps: Iterable[str]) -> None:
        """Send the end of the output of these glideins to the server once it is collected."""
        self._logs_wanted.update(stamps)

    async def reap(self) -> None:
        """Collect output from each batch system until it fails; then remove old folders."""
        records = await asyncio.to_thread(self._folders.uncollected)
        known = {record.stamp for record in records}
        self._retries = {stamp: miss for stamp, miss in self._retries.items() if stamp in known}
        async with asyncio.TaskGroup() as group:
            for system, its in by_batch_system(self._batch_systems, records):
                group.create_task(self._collect_from(system, its))
        await asyncio.to_thread(self._folders.prune, self._keep_ended, self._clock())

    async def _collect_from(self, system: BatchSystem, records: Sequence[GlideinRecord]) -> None:
        for batch in self._batches(records):
            if not await self._fetch(system, batch):
                return

    def _batches(self, records: Sequence[GlideinRecord]) -> Iterator[Sequence[GlideinRecord]]:
        """Yield the batches to fetch: first glideins never tried, then single ones, the longest waiting first."""
        new = [record for record in records if record.stamp not in self._retries]
        for start in range(0, min(len(new), _FETCH_BATCH * _MAX_FETCH_BATCHES), _FETCH_BATCH):
            yield new[start : start + _FETCH_BATCH]
        now = self._clock()
        due = [each for each in records if each.stamp in self._retries and self._retries[each.stamp].until <= now]
        for record in sorted(due, key=lambda record: self._retries[record.stamp].until)[:_MAX_SINGLE_FETCHES]:
            yield [record]

    async def _fetch(self, system: BatchSystem, records: Sequence[GlideinRecord]) -> bool:
        """Fetch the output of these glideins; returns whether it succeeded."""
        try:
            await system.collect([self._folders.path_of(record.stamp) for record in records])
        except WorldError as error:
            log.warning("output could not be collected", glideins=len(records), reason=str(error))
            for record in records:
                times = self._retries[record.stamp].times + 1 if record.stamp in self._retries else 1
                # In a batch another glidein may be at fault, so the first retry, alone, follows at once.
                rest = backoff(times - 1, _FIRST_RETRY, _LONGEST_RETRY)
                self._retries[record.stamp] = _FetchRetry(times, self._clock() + rest)
            return False
        await self._send_logs([record.stamp for record in records if record.stamp in self._logs_wanted])
        await asyncio.to_thread(self._folders.mark_collected, [record.stamp for record in records])
        return True

    async def _send_logs(self, stamps: Sequence[str]) -> None:
        """Send the ends of wanted outputs; what fails stays in the folders alone."""
        self._logs_wanted.difference_update(stamps)
        try:
            logs = await asyncio.to_thread(lambda: {stamp: self._folders.end_of_log(stamp) for stamp in stamps})
            if logs:
                await self._link.put_pilot_logs(logs)
        except PilotageError as error:
            log.warning("output of pilots could not be sent", glideins=len(stamps), reason=str(error))


_MAX_RENEWALS = 500


class GlideinCredentials:
    """Renews the enrolment secret of a waiting pilot when half of its `lifetime` has passed."""

    def __init__(self, context: DirectorContext, lifetime: timedelta) -> None:
        self._folders = context.folders
        self._link = context.link
        self._batch_systems = context.batch_systems
        self._clock = context.clock
        self._lifetime = lifetime

    async def renew(self, waiting: Sequence[GlideinRecord]) -> None:
        """Renew old tokens of waiting glideins; failures are retried in the next cycle."""
        for system, records in by_batch_system(self._batch_systems, waiting):
            stamps = [record.stamp for record in records]
            old = await asyncio.to_thread(self._folders.tokens_before, stamps, self._clock() - self._lifetime / 2)
            if old:
                try:
                    await self._renew_some(system, old[:_MAX_RENEWALS])
                except PilotageError as error:
                    log.warning("tokens of waiting pilots could not be renewed", reason=str(error))

    async def _renew_some(self, system: BatchSystem, stamps: Sequence[str]) -> None:
        pilots = await self._link.renew_credentials(stamps, self._lifetime.total_seconds())
        for pilot in pilots:
            await asyncio.to_thread(self._folders.put_token, pilot.stamp, pilot.token)
        renewed = [pilot.stamp for pilot in pilots]
        await system.renew([self._folders.path_of(stamp) for stamp in renewed], TOKEN_NAME)
        # Pilots that got no token are marked too: however many they are, they do not delay others.
        await asyncio.to_thread(self._folders.mark_tokens_renewed, stamps, self._clock())
        log.info("tokens of waiting pilots renewed", pilots=len(renewed))


_NEVER_SUBMITTED = GlideinStatus(GlideinState.ENDED, "it was never submitted")
_MAX_REPORT = 1000
_REPORT_INTERVAL = timedelta(hours=1)
"""How often the server hears that a glidein exists; it gives up a pilot after days without a report."""

_Thing = TypeVar("_Thing")


@dataclass(frozen=True, slots=True)
class _PollResult:
    """The result of a poll of a batch system: of the `there` glideins, some are `waiting`, the others `running`.

    `adopted` glideins were submitted without an answer and have been found.
    """

    ended: tuple[tuple[GlideinRecord, GlideinStatus], ...] = ()
    there: tuple[GlideinRecord, ...] = ()
    waiting: tuple[GlideinRecord, ...] = ()
    running: tuple[GlideinRecord, ...] = ()
    adopted: tuple[GlideinRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """How many folders of ended glideins are kept, and two durations.

    An unanswered submission that is not found for `lost_after` was never made; `credential` is the lifetime of an
    enrolment secret.
    """

    keep_ended: int
    lost_after: timedelta
    credential: timedelta


class GlideinWatch:
    """Keeps the records of live glideins; a batch system that does not answer changes none.

    A glidein whose submission was not answered may still be in a backlog of its batch system. The server waits for it
    until it has not been found for `WatchLimits.lost_after`; then it counts as never submitted.
    """

    def __init__(self, context: DirectorContext, limits: WatchLimits) -> None:
        self._folders = context.folders
        self._link = context.link
        self._batch_systems = context.batch_systems
        self._clock = context.clock
        self._reaper = GlideinReaper(context, keep_ended=limits.keep_ended)
        self._credentials = GlideinCredentials(context, limits.credential)
        self._lost_after = limits.lost_after
        self._records: dict[str, GlideinRecord] | None = None
        self._unreported: set[str] = set()
        self._reported: dict[str, tuple[datetime, PilotState]] = {}
        self._running: set[str] = set()
        self._cancelled: set[str] = set()

    async def add(self, records: Sequence[GlideinRecord]) -> None:
        """Watch glideins that are about to be submitted; they count as unanswered until `confirm`."""
        (await self._live_records()).update((record.stamp, record) for record in records)
        self._unreported.update(record.stamp for record in records)

    async def confirm(self, record: GlideinRecord) -> None:
        """Save the id of a watched glidein and report it in the next cycle."""
        await self._save(record)
        self._unreported.add(record.stamp)

    async def report_present(self, records: Sequence[GlideinRecord]) -> None:
        """Report glideins that are, or may be, in their batch systems; the next cycle repeats a failed report."""
        for some in _report_batches(records):
            await self._link.report_glideins(
                [GlideinReport(each.stamp, each.glidein_id, self._state_of(each)) for each in some]
            )
            self._reported.update((each.stamp, (self._clock(), self._state_of(each))) for each in some)
            self._unreported.difference_update(each.stamp for each in some)

    async def remove(self, record: GlideinRecord) -> None:
        """Stop watching a glidein whose end has been reported."""
        (await self._live_records()).pop(record.stamp, None)
        self._unreported.discard(record.stamp)
        self._reported.pop(record.stamp, None)
        self._running.discard(record.stamp)
        await asyncio.to_thread(self._folders.mark_ended, record.stamp)

    async def refresh(self, failures: QueueFailures) -> QueueFailures:
        """Poll the batch systems and report the changes; returns `failures` with those found."""
        live = await self._live_records()
        asked = self._clock()
        # Possible glideins are reported first, so that the server does not give up a pilot before the director does.
        await self.report_present([live[stamp] for stamp in sorted(self._unreported)])
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._poll_system(*each)) for each in await self._live_by_system()]
        polls = [task.result() for task in tasks]
        self._running.difference_update(each.stamp for poll in polls for each in poll.waiting)
        self._running.update(each.stamp for poll in polls for each in poll.running)
        adopted = [each for poll in polls for each in poll.adopted]
        for record in adopted:
            await self.confirm(record)
        await self.report_present(
            [*adopted, *(each for poll in polls for each in poll.there if self._is_report_due(each))]
        )
        ended = [each for poll in polls for each in poll.ended]
        worked = await self._report_ended(ended, asked)
        await self._reaper.reap()
        await self._credentials.renew([each for poll in polls for each in poll.waiting])
        return self._updated_failures(failures, ended, worked)

    async def cancel_all(self) -> None:
        """Cancel every glidein."""
        self._cancelled.update(await self._live_records())
        async with asyncio.TaskGroup() as group:
            for system, records in await self._live_by_system():
                group.create_task(system.cancel_many([each.glidein_id for each in records if each.glidein_id]))

    async def _live_records(self) -> dict[str, GlideinRecord]:
        if self._records is None:
            found = await asyncio.to_thread(self._folders.records)
            self._records = {record.stamp: record for record in found}
            self._unreported = {record.stamp for record in found if not record.glidein_id}
        return self._records

    async def _live_by_system(self) -> list[tuple[BatchSystem, list[GlideinRecord]]]:
        return by_batch_system(self._batch_systems, (await self._live_records()).values())

    def _is_report_due(self, record: GlideinRecord) -> bool:
        """Whether the last report of a glidein is long ago, or was of another state."""
        reported_at, state = self._reported.get(record.stamp, (None, None))
        is_old = reported_at is None or self._clock() - reported_at >= _REPORT_INTERVAL
        return is_old or state is not self._state_of(record)

    def _state_of(self, record: GlideinRecord) -> PilotState:
        """Return the state of a glidein that has not ended, as its batch system stated it last."""
        return PilotState.RUNNING if record.stamp in self._running else PilotState.SUBMITTED

    async def _poll_system(self, system: BatchSystem, records: Sequence[GlideinRecord]) -> _PollResult:
        unanswered = await self._find_unanswered(system, [each for each in records if not each.glidein_id])
        polled = await _poll(system, [each for each in records if each.glidein_id])
        return replace(polled, ended=(*unanswered.ended, *polled.ended), adopted=unanswered.adopted)

    async def _find_unanswered(self, system: BatchSystem, records: Sequence[GlideinRecord]) -> _PollResult:
        """Find glideins whose submission was not answered; after a time without success they count as lost."""
        if not records:
            return _PollResult()
        try:
            found = await system.find_by_stamp([record.stamp for record in records])
        except WorldError as error:
            log.warning("glideins could not be looked for", glideins=len(records), reason=str(error))
            return _PollResult()
        adopted = tuple(
            replace(record, glidein_id=found[record.stamp], missed_since=None)
            for record in records
            if record.stamp in found
        )
        lost = [record for record in records if record.stamp not in found and await self._is_lost(record)]
        return _PollResult(tuple((record, _NEVER_SUBMITTED) for record in lost), adopted=adopted)

    async def _is_lost(self, record: GlideinRecord) -> bool:
        """Return whether a glidein has been missing for long enough to be lost; the first call starts the time."""
        if record.missed_since is None:
            record = replace(record, missed_since=self._clock())
            await self._save(record)
        assert record.missed_since is not None, "it is missed from now on"
        return self._clock() - record.missed_since >= self._lost_after

    async def _save(self, record: GlideinRecord) -> None:
        """Save a changed record; without its file the next director finds the glidein by its stamp."""
        (await self._live_records())[record.stamp] = record
        try:
            await asyncio.to_thread(self._folders.save, record)
        except WorldError as error:
            log.warning("record of a glidein could not be written", stamp=record.stamp, reason=str(error))

    async def _report_ended(self, ended: Sequence[tuple[GlideinRecord, GlideinStatus]], asked: datetime) -> set[str]:
        """Report ends and forget the glideins; returns the stamps of pilots that had run a job.

        `asked` is a time before the batch systems were asked.
        """
        worked: set[str] = set()
        for some in _report_batches(ended):
            reports = [
                GlideinReport(
                    each.stamp,
                    each.glidein_id,
                    PilotState.ENDED,
                    status.reason,
                    called_back=each.stamp in self._cancelled,
                    processes_ended=status.processes_ended,
                    age=max(timedelta(0), self._clock() - asked),
                )
                for each, status in some
            ]
            answer = await self._link.report_glideins(reports)
            worked.update(answer.worked)
            self._reaper.want_logs(answer.logs_wanted)
            for record, status in some:
                log.info("glidein ended", stamp=record.stamp, queue=str(record.queue), reason=status.reason)
                await self.remove(record)
        return worked

    def _updated_failures(
        self, failures: QueueFailures, ended: Sequence[tuple[GlideinRecord, GlideinStatus]], worked: Collection[str]
    ) -> QueueFailures:
        """Return the failures after these ends; a queue with an end in error gets no success from another pilot."""
        in_error = [(record, status) for record, status in ended if status.has_failed or status.exit_code]
        for queue in {record.queue for record, status in ended if status.exit_code == 0 and record.stamp in worked}:
            if queue not in {record.queue for record, _ in in_error}:
                failures = failures.with_success(queue)
        for record, status in in_error:
            log.warning(
                "pilot ended in error",
                stamp=record.stamp,
                queue=str(record.queue),
                reason=status.reason,
                output=str(self._folders.path_of(record.stamp)),
            )
            failures = failures.with_failure(record.queue, f"a pilot ended with {status.reason}", self._clock())
        return failures


async def _poll(system: BatchSystem, records: Sequence[GlideinRecord]) -> _PollResult:
    """Return which glideins have ended, which are in the batch system, and which of these wait."""
    if not records:
        return _PollResult()
    statuses = await system.poll_all([record.glidein_id for record in records])
    known = [
        (record, status)
        for record in records
        if (status := statuses.get(record.glidein_id)) is not None and status.state.is_known
    ]
    ended = tuple((record, status) for record, status in known if status.state is GlideinState.ENDED)
    there = tuple(record for record, status in known if status.state is not GlideinState.ENDED)
    waiting = tuple(record for record, status in known if status.state is GlideinState.WAITING)
    running = tuple(record for record, status in known if status.state is GlideinState.RUNNING)
    return _PollResult(ended, there, waiting, running)


def _report_batches(things: Sequence[_Thing]) -> Iterator[Sequence[_Thing]]:
    """Yield batches that fit in one report."""
    for start in range(0, len(things), _MAX_REPORT):
        yield things[start : start + _MAX_REPORT]
