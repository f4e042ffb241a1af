"""A queue of the tree as a target: each routed job is a batch job of the queue's batch system.

A reference is the job's name and its id in the batch system. The agent and the nodes of the queue must see the folders
of jobs under the same paths. Jobs run as the user that the batch system knows the agent by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

import structlog

from pilotage.errors import WorldError
from pilotage.jobs.files import JobFaultError
from pilotage.resources.tree import QueueId
from pilotage_agents.batch_systems.base import (
    BatchSystem,
    GlideinRequest,
    GlideinState,
    GlideinStatus,
    NotSubmitted,
    Submission,
    Submitted,
    Unanswered,
)
from pilotage_agents.batch_systems.shape import Shape
from pilotage_agents.router.core.model import CollectedFile, RoutedJobState, RoutedJobStatus
from pilotage_agents.router.core.routed_job import batch_job_status, is_end_missing
from pilotage_agents.router.core.script import WRAPPER_NAME, WrapperStart
from pilotage_agents.router.ports import (
    FindAnswer,
    InputFiles,
    RefusedByJob,
    RoutedJobAnswer,
    RoutedJobRequest,
    RouteUnsuitable,
)
from pilotage_agents.router.targets.job_folders import RoutedJobFolders

log = structlog.get_logger()

_PREPARED_AT_ONCE = 8
_POLLS_FOR_END = 60
_LONGEST_REASON = 300
_Prepared = GlideinRequest | NotSubmitted | RouteUnsuitable | RefusedByJob
_NEVER_SUBMITTED = GlideinStatus(GlideinState.ENDED, "it was never submitted")


@dataclass(frozen=True, slots=True)
class _Reference:
    """The reference of a job: its name and its batch id, "" = it ended before the id was known."""

    name: str
    batch_id: str

    def __str__(self) -> str:
        return f"{self.name} {self.batch_id}"

    @classmethod
    def of(cls, text: str) -> Self:
        name, _, batch_id = text.partition(" ")
        return cls(name, batch_id)


class BatchQueueTarget:
    """Submits jobs to the batch system of `queue`; `folders` keeps their input and output.

    `origin` distinguishes this router's jobs from those of others that submit to the same batch system as the same
    user.
    """

    def __init__(self, queue: QueueId, batch_system: BatchSystem, folders: RoutedJobFolders, origin: str) -> None:
        self._queue = queue
        self._origin = origin
        self._batch_system = batch_system
        self._folders = folders
        self._starts: dict[str, WrapperStart] = {}
        self._polls: dict[str, int] = {}

    async def submit(self, requests: Sequence[RoutedJobRequest], files: InputFiles) -> tuple[RoutedJobAnswer, ...]:
        """Make folders and batch jobs; see RoutedJobTarget."""
        named = [replace(request, name=self._full_name(request.name)) for request in requests]
        ready = await asyncio.to_thread(
            lambda: [request.name for request in named if self._folders.record(request.name)]
        )
        try:
            submitted = await self._submitted_before(ready)
        except WorldError as error:
            # These may have been submitted before; the others are not tried now.
            untried = NotSubmitted(str(error), was_tried=False)
            return tuple(Unanswered(str(error)) if request.name in ready else untried for request in named)
        new = [request for request in named if request.name not in submitted]
        prepared = await self._prepared(new, files)
        answers = await self._submit_batch([each for each in prepared if isinstance(each, GlideinRequest)])
        refused = {
            request.name: each
            for request, each in zip(new, prepared, strict=True)
            if not isinstance(each, GlideinRequest)
        }
        for name in refused:
            await asyncio.to_thread(self._folders.remove, name)
        found = {name: Submitted(reference) for name, reference in submitted.items()}
        known: dict[str, RoutedJobAnswer] = {**found, **refused, **answers}
        return tuple(known[request.name] for request in named)

    async def find_again(self, names: Collection[str]) -> Mapping[str, FindAnswer]:
        """Return the references of jobs that the batch system has, or that have ended; see RoutedJobTarget."""
        named = {self._full_name(name): name for name in names}
        return {named[name]: reference for name, reference in (await self._submitted_before(named)).items()}

    async def poll(self, references: Collection[str]) -> Mapping[str, RoutedJobStatus]:
        """Return statuses by the batch system and the wrappers' files; see RoutedJobTarget."""
        known = {reference: _Reference.of(reference) for reference in references}
        reported = dict(await self._batch_system.poll_all([each.batch_id for each in known.values() if each.batch_id]))
        reported[""] = _NEVER_SUBMITTED
        unknown = GlideinStatus(GlideinState.UNKNOWN, "the batch system reports nothing about it")
        return await asyncio.to_thread(
            lambda: {
                reference: self._status(each.name, reported.get(each.batch_id, unknown))
                for reference, each in known.items()
            }
        )

    async def collect(self, reference: str) -> tuple[CollectedFile, ...]:
        """Return the output files in the job's folder; see RoutedJobTarget."""
        return await asyncio.to_thread(self._folders.output_of, _Reference.of(reference).name)

    async def cancel(self, references: Collection[str]) -> None:
        """Cancel the batch jobs; see RoutedJobTarget."""
        ids = [each.batch_id for each in map(_Reference.of, references) if each.batch_id]
        if ids:
            await self._batch_system.cancel_many(ids)

    async def forget(self, names: Collection[str]) -> None:
        """Remove the folders; see RoutedJobTarget."""
        for named in map(self._full_name, names):
            self._starts.pop(named, None)
            self._polls.pop(named, None)
            await asyncio.to_thread(self._folders.remove, named)

    async def leftovers(self, known: Collection[str], before: datetime) -> Mapping[str, str]:
        """Return the unknown jobs with folders here; see RoutedJobTarget.

        Jobs of another queue that shares the folder are included only if they need no batch system any more.
        """
        return await asyncio.to_thread(self._strays, known, before)

    def _strays(self, known: Collection[str], before: datetime) -> dict[str, str]:
        found = {}
        for name in self._folders.untouched(self._origin, before):
            record = None if name in known else self._folders.record(self._full_name(name))
            batch_id = record.batch_id if record is not None and not self._folders.end_of(self._full_name(name)) else ""
            is_others = record is not None and record.queue != str(self._queue)
            if name not in known and not (batch_id and is_others):
                found[name] = str(_Reference(self._full_name(name), batch_id)) if batch_id else ""
        return found

    async def _submitted_before(self, names: Collection[str]) -> dict[str, str]:
        """Return the references of jobs that were submitted before, by record or by name; raises WorldError."""
        await asyncio.to_thread(self._folders.check)
        found = await asyncio.to_thread(self._references, names)
        missing = [name for name in names if name not in found]
        for name, batch_id in (await self._batch_system.find_by_stamp(missing)).items() if missing else ():
            found[name] = str(_Reference(name, batch_id))
            await self._save_batch_id(name, batch_id)
        return found

    def _references(self, names: Collection[str]) -> dict[str, str]:
        """Return the references of jobs whose records say that they were submitted, or that have ended."""
        found = {}
        for name in names:
            record = self._folders.record(name)
            if record is not None and (record.batch_id or self._folders.end_of(name)):
                found[name] = str(_Reference(name, record.batch_id))
        return found

    async def _prepared(self, requests: Sequence[RoutedJobRequest], files: InputFiles) -> list[_Prepared]:
        room = asyncio.Semaphore(_PREPARED_AT_ONCE)

        async def prepare(request: RoutedJobRequest) -> _Prepared:
            async with room:
                return await self._prepare(request, files)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(prepare(request)) for request in requests]
        return [task.result() for task in tasks]

    async def _prepare(self, request: RoutedJobRequest, files: InputFiles) -> _Prepared:
        try:
            folder = await self._folders.prepare(request, self._queue, files)
        except JobFaultError as error:
            return RefusedByJob(str(error))
        except WorldError as error:
            return NotSubmitted(str(error))
        except Exception as error:
            # An unexpected error of one job must not stop the others.
            log.exception("unexpected error in the preparation of a job", routed_job=request.name)
            return RouteUnsuitable(f"unexpected error: {error!r:.{_LONGEST_REASON}}")
        description = request.description
        return GlideinRequest(
            stamp=request.name,
            queue=self._queue.queue,
            command=(f"./{WRAPPER_NAME}",),
            folder=folder,
            shape=Shape(
                description.request_cpus or 1,
                description.request_memory_mib,
                description.request_disk_mib,
                description.request_gpus,
            ),
            wall_time_s=None if description.wall_time is None else int(description.wall_time.total_seconds()),
            in_place=True,
        )

    async def _submit_batch(self, requests: Sequence[GlideinRequest]) -> dict[str, Submission]:
        """Submit batch jobs; returns the answers by name, with references for accepted ones."""
        answers: dict[str, Submission] = {}
        reported = await self._batch_system.submit_many(requests) if requests else ()
        for request, answer in zip(requests, reported, strict=True):
            name = request.stamp
            answers[name] = answer
            if isinstance(answer, Submitted):
                await self._save_batch_id(name, answer.glidein_id)
                answers[name] = Submitted(str(_Reference(name, answer.glidein_id)))
            elif isinstance(answer, NotSubmitted):
                await asyncio.to_thread(self._folders.remove, name)
        return answers

    def _full_name(self, name: str) -> str:
        """Return the name of a job in its batch system and of its folder."""
        return f"{name}-{self._origin}"

    async def _save_batch_id(self, name: str, batch_id: str) -> None:
        """Save the batch id of a job; without it the job is found by its name."""
        try:
            await asyncio.to_thread(self._folders.keep, name, batch_id)
        except WorldError as error:
            log.warning("record of a routed job could not be written", routed_job=name, reason=str(error))

    def _status(self, name: str, reported: GlideinStatus) -> RoutedJobStatus:
        if name not in self._starts and (start := self._folders.start_of(name)):
            self._starts[name] = start
        has_ended = reported.state in (GlideinState.ENDED, GlideinState.UNKNOWN)
        if reported.state is GlideinState.ENDED and not self._folders.has(name):
            # Another host may have it, with the end file.
            log.warning(
                "folder of a routed job is missing: its end is unknown", routed_job=name, queue=str(self._queue)
            )
            return RoutedJobStatus(RoutedJobState.UNKNOWN, "it has ended, and its folder is missing")
        end = self._folders.end_of(name) if has_ended or self._folders.has_plug else None
        if is_end_missing(reported, end) and self._polls.get(name, 0) < _POLLS_FOR_END:
            # A shared file system may show a node's file a little later.
            self._polls[name] = self._polls.get(name, 0) + 1
            return RoutedJobStatus(RoutedJobState.UNKNOWN, "it has ended, and its end file is not visible yet")
        return batch_job_status(reported, self._starts.get(name), end)
