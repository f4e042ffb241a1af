"""A queue of the tree as a place that copies go to: each is a batch job of the queue's batch system.

A reference is the copy's name and what the batch system calls it. The agent and the nodes of the queue have to see the
folders of copies under the same paths. A copy runs as whom the batch system knows the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

import structlog

from pilotage.errors import WorldError
from pilotage.job_description import JobDescription
from pilotage.job_folders import JobAtFaultError
from pilotage.resource_tree import QueueId
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
from pilotage_agents.copies.copy_folders import CopyFolders
from pilotage_agents.core.copies.copy_scripts import WRAPPER_NAME, CopyStart
from pilotage_agents.core.copies.copy_status import copy_status, leaves_open
from pilotage_agents.core.pilot_shape import Shape
from pilotage_agents.router.route_edges import (
    CopyAnswer,
    CopyRequest,
    CopyState,
    CopyStatus,
    Found,
    InputFiles,
    LeftFile,
    NotThisWay,
    RefusedByJob,
)

log = structlog.get_logger()

_PREPARED_AT_ONCE = 8
_LOOKS_FOR_END = 60
_LONGEST_REASON = 300
_Prepared = GlideinRequest | NotSubmitted | NotThisWay | RefusedByJob
_NEVER_SUBMITTED = GlideinStatus(GlideinState.ENDED, "it was never submitted")


@dataclass(frozen=True, slots=True)
class _Reference:
    """What finds a copy: its name, and what the batch system calls it, "" = it had ended before anybody knew."""

    name: str
    batch_id: str

    def __str__(self) -> str:
        return f"{self.name} {self.batch_id}"

    @classmethod
    def of(cls, text: str) -> Self:
        name, _, batch_id = text.partition(" ")
        return cls(name, batch_id)


class QueueCopies:
    """Pushes copies into the batch system of `queue`; `folders` keeps what they are given and leave.

    `origin` tells this router's copies from those of others that push into the same batch system as the same user.
    """

    def __init__(self, queue: QueueId, batch_system: BatchSystem, folders: CopyFolders, origin: str) -> None:
        self._queue = queue
        self._origin = origin
        self._batch_system = batch_system
        self._folders = folders
        self._starts: dict[str, CopyStart] = {}
        self._looked: dict[str, int] = {}

    async def submit(self, copies: Sequence[CopyRequest], files: InputFiles) -> tuple[CopyAnswer, ...]:
        """Make folders and batch jobs; see CopyTarget."""
        called = [replace(copy, name=self._called(copy.name)) for copy in copies]
        ready = await asyncio.to_thread(lambda: [copy.name for copy in called if self._folders.record(copy.name)])
        try:
            made = await self._made_before(ready)
        except WorldError as error:
            # Those may have been submitted before; the others are not tried now.
            untried = NotSubmitted(str(error), was_tried=False)
            return tuple(Unanswered(str(error)) if copy.name in ready else untried for copy in called)
        new = [copy for copy in called if copy.name not in made]
        prepared = await self._prepared(new, files)
        answers = await self._pushed([each for each in prepared if isinstance(each, GlideinRequest)])
        refused = {
            copy.name: each for copy, each in zip(new, prepared, strict=True) if not isinstance(each, GlideinRequest)
        }
        for name in refused:
            await asyncio.to_thread(self._folders.remove, name)
        found = {name: Submitted(reference) for name, reference in made.items()}
        known: dict[str, CopyAnswer] = {**found, **refused, **answers}
        return tuple(known[copy.name] for copy in called)

    async def find_again(self, names: Collection[str]) -> Mapping[str, Found]:
        """Return the references of copies that the batch system has, or that have ended here; see CopyTarget."""
        called = {self._called(name): name for name in names}
        return {called[name]: reference for name, reference in (await self._made_before(called)).items()}

    async def poll(self, references: Collection[str]) -> Mapping[str, CopyStatus]:
        """Return what the batch system and the copies' own words come to; see CopyTarget."""
        known = {reference: _Reference.of(reference) for reference in references}
        said = dict(await self._batch_system.poll_all([each.batch_id for each in known.values() if each.batch_id]))
        said[""] = _NEVER_SUBMITTED
        unknown = GlideinStatus(GlideinState.UNKNOWN, "the batch system says nothing of it")
        return await asyncio.to_thread(
            lambda: {
                reference: self._status(each.name, said.get(each.batch_id, unknown))
                for reference, each in known.items()
            }
        )

    async def collect(self, reference: str) -> tuple[LeftFile, ...]:
        """Return the files in the copy's folder that are its output; see CopyTarget."""
        return await asyncio.to_thread(self._folders.output_of, _Reference.of(reference).name)

    async def cancel(self, references: Collection[str]) -> None:
        """Cancel the batch jobs; see CopyTarget."""
        ids = [each.batch_id for each in map(_Reference.of, references) if each.batch_id]
        if ids:
            await self._batch_system.cancel_many(ids)

    async def forget(self, names: Collection[str]) -> None:
        """Remove the folders; see CopyTarget."""
        for called in map(self._called, names):
            self._starts.pop(called, None)
            self._looked.pop(called, None)
            await asyncio.to_thread(self._folders.remove, called)

    async def strays(self, known: Collection[str], before: datetime) -> Mapping[str, str]:
        """Return the copies that have folders here; see CopyTarget.

        Of another queue's, which may share the folder, only those that need no batch system any more.
        """
        return await asyncio.to_thread(self._strays, known, before)

    def _strays(self, known: Collection[str], before: datetime) -> dict[str, str]:
        found = {}
        for name in self._folders.untouched(self._origin, before):
            record = None if name in known else self._folders.record(self._called(name))
            batch_id = record.batch_id if record is not None and not self._folders.end_of(self._called(name)) else ""
            is_others = record is not None and record.queue != str(self._queue)
            if name not in known and not (batch_id and is_others):
                found[name] = str(_Reference(self._called(name), batch_id)) if batch_id else ""
        return found

    async def _made_before(self, names: Collection[str]) -> dict[str, str]:
        """Return the references of copies that were made before, or are found by their names; raises WorldError."""
        await asyncio.to_thread(self._folders.check)
        found = await asyncio.to_thread(self._references, names)
        missing = [name for name in names if name not in found]
        for name, batch_id in (await self._batch_system.find_again(missing)).items() if missing else ():
            found[name] = str(_Reference(name, batch_id))
            await self._keep(name, batch_id)
        return found

    def _references(self, names: Collection[str]) -> dict[str, str]:
        """Return the references of copies of which it is kept here that they were submitted, or have ended."""
        found = {}
        for name in names:
            record = self._folders.record(name)
            if record is not None and (record.batch_id or self._folders.end_of(name)):
                found[name] = str(_Reference(name, record.batch_id))
        return found

    async def _prepared(self, copies: Sequence[CopyRequest], files: InputFiles) -> list[_Prepared]:
        room = asyncio.Semaphore(_PREPARED_AT_ONCE)

        async def prepare(copy: CopyRequest) -> _Prepared:
            async with room:
                return await self._prepare(copy, files)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(prepare(copy)) for copy in copies]
        return [task.result() for task in tasks]

    async def _prepare(self, copy: CopyRequest, files: InputFiles) -> _Prepared:
        try:
            folder = await self._folders.prepare(copy, self._queue, files)
        except JobAtFaultError as error:
            return RefusedByJob(str(error))
        except WorldError as error:
            return NotSubmitted(str(error))
        except Exception as error:
            # What nobody has foreseen of one copy is no reason to hold up those that are prepared beside it.
            log.exception("copy met an error of the router's own", copy=copy.name)
            return NotThisWay(f"an error of the router's own: {error!r:.{_LONGEST_REASON}}")
        wall_time = copy.description.wall_time
        return GlideinRequest(
            stamp=copy.name,
            queue=self._queue.queue,
            command=(f"./{WRAPPER_NAME}",),
            folder=folder,
            shape=_shape(copy.description),
            wall_time_s=None if wall_time is None else int(wall_time.total_seconds()),
        )

    async def _pushed(self, requests: Sequence[GlideinRequest]) -> dict[str, Submission]:
        """Submit batch jobs; returns the answers by name of the copy, with references for those that were taken."""
        answers: dict[str, Submission] = {}
        said = await self._batch_system.submit_many(requests) if requests else ()
        for request, answer in zip(requests, said, strict=True):
            name = request.stamp
            answers[name] = answer
            if isinstance(answer, Submitted):
                await self._keep(name, answer.glidein_id)
                answers[name] = Submitted(str(_Reference(name, answer.glidein_id)))
            elif isinstance(answer, NotSubmitted):
                await asyncio.to_thread(self._folders.remove, name)
        return answers

    def _called(self, name: str) -> str:
        """Return what a copy is called in its batch system and here."""
        return f"{name}-{self._origin}"

    async def _keep(self, name: str, batch_id: str) -> None:
        """Keep what the batch system calls a copy; without that it is found by its name."""
        try:
            await asyncio.to_thread(self._folders.keep, name, batch_id)
        except WorldError as error:
            log.warning("record of a copy could not be written", copy=name, reason=str(error))

    def _status(self, name: str, said: GlideinStatus) -> CopyStatus:
        if name not in self._starts and (start := self._folders.start_of(name)):
            self._starts[name] = start
        has_ended = said.state in (GlideinState.ENDED, GlideinState.UNKNOWN)
        if said.state is GlideinState.ENDED and not self._folders.has(name):
            # Another host may have it, with the word of how it ended.
            log.warning("folder of a copy is not here: how it ended is not known", copy=name, queue=str(self._queue))
            return CopyStatus(CopyState.UNKNOWN, "it has ended, and its folder is not here")
        end = self._folders.end_of(name) if has_ended else None
        if leaves_open(said, end) and self._looked.get(name, 0) < _LOOKS_FOR_END:
            # A shared file system may show what a node has written a little later.
            self._looked[name] = self._looked.get(name, 0) + 1
            return CopyStatus(CopyState.UNKNOWN, "it has ended, and its word of how is not to be seen yet")
        return copy_status(said, self._starts.get(name), end)


def _shape(description: JobDescription) -> Shape:
    return Shape(
        description.request_cpus or 1,
        description.request_memory_mib,
        description.request_disk_mib,
        description.request_gpus,
    )
