"""Routed jobs and their input files, helpers for all targets, and a target in memory."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pilotage.classads.library import AdValue
from pilotage.clock import Clock, now
from pilotage.errors import NotFoundError, PilotageError, WorldError
from pilotage.job_description import InputFile, JobDescription
from pilotage_agents.batch_systems.base import NotSubmitted, Submitted, Unanswered
from pilotage_agents.router.core.model import CollectedFile, RoutedJobState, RoutedJobStatus
from pilotage_agents.router.ports import (
    FindAnswer,
    InputFiles,
    RefusedByJob,
    RoutedJobAnswer,
    RoutedJobRequest,
    RoutedJobTarget,
)

WAIT_TIMEOUT_S = 60.0


_ENDED = (RoutedJobState.COMPLETED, RoutedJobState.GONE)
_EXIT_CODES = {"/bin/true": 0, "/bin/false": 1, "/bin/echo": 0}
_STILL_RUNNING = RoutedJobStatus(RoutedJobState.RUNNING)


@dataclass
class InMemoryFiles:
    """Input files of jobs, held in memory by checksum."""

    contents: dict[str, bytes] = field(default_factory=dict)

    def add(self, name: str, text: str, *, executable: bool = False) -> InputFile:
        """Add a file; returns the entry of a job description."""
        content = text.encode()
        checksum = hashlib.sha256(content).hexdigest()
        self.contents[checksum] = content
        return InputFile(name, None, checksum, len(content), executable)

    async def fetch(self, job_id: int, file: InputFile, to: Path) -> None:
        del job_id
        if file.checksum not in self.contents:
            raise NotFoundError("file", file.name)
        await asyncio.to_thread(_write_new_file, to, self.contents[file.checksum])


def _write_new_file(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)


def a_copy(name: str, *command: str, shared_proxy: str = "", **described: Any) -> RoutedJobRequest:
    """Return a routed job that runs the command."""
    program, *arguments = command
    values = {"executable": program, "arguments": " ".join(arguments), **described}
    description = JobDescription(**values)
    ad: dict[str, AdValue] = {
        "ClusterId": 41,
        "ProcId": 2,
        "Cmd": program,
        "RoutedFromJobId": "7",
        "RouteName": "Site 2",
    }
    return RoutedJobRequest(name, 7, 3, "Site 2", description, ad, "ann", "sky", "higgs", shared_proxy)


async def submitted(target: RoutedJobTarget, files: InMemoryFiles, *copies: RoutedJobRequest) -> list[str]:
    """Submit routed jobs, which the target must accept; returns their references."""
    answers = await target.submit(copies, files)
    references = [answer.glidein_id for answer in answers if isinstance(answer, Submitted)]
    assert len(references) == len(copies), answers
    return references


async def wait_for_status(
    target: RoutedJobTarget, reference: str, states: Collection[RoutedJobState]
) -> RoutedJobStatus:
    """Wait until a routed job is in one of the states; returns its status."""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while True:
            status = (await target.poll([reference]))[reference]
            if status.state in states:
                return status
            await asyncio.sleep(0)  # another process cannot set an event


async def end_of(target: RoutedJobTarget, reference: str) -> RoutedJobStatus:
    """Wait until a routed job has ended; returns its status."""
    return await wait_for_status(target, reference, (RoutedJobState.COMPLETED, RoutedJobState.GONE))


async def texts_of(target: RoutedJobTarget, reference: str) -> Mapping[str, str]:
    """Return the output files of a routed job, by name."""
    return {file.name: _text(file) for file in await target.collect(reference)}


def _text(file: CollectedFile) -> str:
    return Path(file.path).read_text()


def _by_program(copy: RoutedJobRequest) -> RoutedJobStatus:
    exit_code = _EXIT_CODES.get(copy.description.executable)
    return _STILL_RUNNING if exit_code is None else RoutedJobStatus(RoutedJobState.COMPLETED, exit_code=exit_code)


@dataclass
class FakeTarget:
    """Keeps routed jobs by reference ("ref:" and the name) and their output in `folder`.

    - `initial_status` returns the first status of a routed job. By default /bin/true, /bin/false and /bin/echo
      complete at once, and other programs run until they are cancelled.
    - `refuses`, if not empty, is the reason why every submission fails; `job_fault` the same, as a fault of the job.
    - While `is_reachable` is False every call fails. While `loses_answers` submissions succeed without an answer.
    - `made` counts the submissions of each name, `since` is the time of the last one. A search for a name in
      `unclear` has no answer.
    """

    folder: Path
    initial_status: Callable[[RoutedJobRequest], RoutedJobStatus] = _by_program
    copies: dict[str, RoutedJobRequest] = field(default_factory=dict)
    statuses: dict[str, RoutedJobStatus] = field(default_factory=dict)
    made: dict[str, int] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)
    since: dict[str, datetime] = field(default_factory=dict)
    unclear: set[str] = field(default_factory=set)
    clock: Clock = now
    cancelled: list[str] = field(default_factory=list)
    refuses: str = ""
    job_fault: str = ""
    loses_output: bool = False
    is_reachable: bool = True
    loses_answers: bool = False

    async def submit(self, copies: Sequence[RoutedJobRequest], files: InputFiles) -> tuple[RoutedJobAnswer, ...]:
        return tuple([await self._submit(copy, files) for copy in copies])

    async def find_again(self, names: Collection[str]) -> Mapping[str, FindAnswer]:
        if not self.is_reachable:
            raise WorldError("the target does not answer", transient=True)
        unclear = {name: Unanswered("its token is refused") for name in names if name in self.unclear}
        return {name: f"ref:{name}" for name in names if f"ref:{name}" in self.statuses} | unclear

    async def poll(self, references: Collection[str]) -> Mapping[str, RoutedJobStatus]:
        unknown = RoutedJobStatus(RoutedJobState.UNKNOWN, "the target gives no answer")
        return {
            reference: self.statuses.get(reference, unknown) if self.is_reachable else unknown
            for reference in references
        }

    async def collect(self, reference: str) -> tuple[CollectedFile, ...]:
        if self.loses_output:
            raise WorldError("its disk is gone", transient=False)
        if not self.is_reachable or reference not in self.copies:
            raise WorldError("the target does not answer", transient=True)
        description = self.copies[reference].description
        path = self.folder / reference.removeprefix("ref:")
        path.write_text(" ".join(shlex.split(description.arguments)) + "\n")
        return (CollectedFile(description.stdout or "stdout", str(path)),)

    async def cancel(self, references: Collection[str]) -> None:
        for reference in references:
            self.cancelled.append(reference)
            if self.is_reachable and reference in self.statuses:
                self.set_status(reference, RoutedJobStatus(RoutedJobState.GONE, "cancelled"))

    async def forget(self, names: Collection[str]) -> None:
        for name in names:
            self.forgotten.append(name)
            self.since.pop(name, None)
            self.copies.pop(f"ref:{name}", None)
            self.statuses.pop(f"ref:{name}", None)

    async def leftovers(self, known: Collection[str], before: datetime) -> Mapping[str, str]:
        found = [name for name, since in self.since.items() if since < before and name not in known]
        return {name: f"ref:{name}" if f"ref:{name}" in self.statuses else "" for name in found}

    def set_status(self, reference: str, status: RoutedJobStatus) -> None:
        """Set the status of a routed job, unless it has ended."""
        if self.statuses[reference].state not in _ENDED:
            self.statuses[reference] = status

    async def _submit(self, copy: RoutedJobRequest, files: InputFiles) -> RoutedJobAnswer:
        try:
            shlex.split(copy.description.arguments)
        except ValueError as error:
            return RefusedByJob(f"its arguments cannot be taken apart: {error}")
        if self.job_fault:
            return RefusedByJob(self.job_fault)
        if self.refuses or not self.is_reachable:
            return NotSubmitted(self.refuses or "the target does not answer")
        reference = f"ref:{copy.name}"
        if reference not in self.statuses:
            try:
                for file in copy.description.input_files:
                    await files.fetch(copy.job_id, file, self.folder / f"{copy.name}.input")
                    (self.folder / f"{copy.name}.input").unlink()
            except PilotageError as error:
                return NotSubmitted(str(error))
            self.copies[reference] = copy
            self.statuses[reference] = self.initial_status(copy)
            self.since[copy.name] = self.clock()
            self.made[copy.name] = self.made.get(copy.name, 0) + 1
        return Unanswered("the answer was lost") if self.loses_answers else Submitted(reference)
