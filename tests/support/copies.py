"""Copies of jobs for tests of the places that they go to."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilotage.classads.library import AdValue
from pilotage.errors import NotFoundError
from pilotage.job_description import InputFile, JobDescription
from pilotage_agents.batch_systems.base import Submitted
from pilotage_agents.router.core.model import CollectedFile, RoutedJobState, RoutedJobStatus
from pilotage_agents.router.ports import RoutedJobRequest, RoutedJobTarget

PATIENCE_S = 60.0


@dataclass
class HeldFiles:
    """Input files of jobs, held in memory by checksum."""

    contents: dict[str, bytes] = field(default_factory=dict)

    def add(self, name: str, text: str, *, executable: bool = False) -> InputFile:
        """Hold a file; returns it as a job names it."""
        content = text.encode()
        checksum = hashlib.sha256(content).hexdigest()
        self.contents[checksum] = content
        return InputFile(name, None, checksum, len(content), executable)

    async def fetch(self, job_id: int, file: InputFile, to: Path) -> None:
        del job_id
        if file.checksum not in self.contents:
            raise NotFoundError("file", file.name)
        await asyncio.to_thread(_write_new, to, self.contents[file.checksum])


def _write_new(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)


def a_copy(name: str, *command: str, shared_proxy: str = "", **described: Any) -> RoutedJobRequest:
    """Return a copy that runs the command."""
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


async def submitted(target: RoutedJobTarget, files: HeldFiles, *copies: RoutedJobRequest) -> list[str]:
    """Submit copies, which must be taken; returns their references."""
    answers = await target.submit(copies, files)
    references = [answer.glidein_id for answer in answers if isinstance(answer, Submitted)]
    assert len(references) == len(copies), answers
    return references


async def status_when(target: RoutedJobTarget, reference: str, states: Collection[RoutedJobState]) -> RoutedJobStatus:
    """Return the status of a copy as soon as it is in one of the states."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            status = (await target.poll([reference]))[reference]
            if status.state in states:
                return status
            await asyncio.sleep(0)  # another process gives no event


async def end_of(target: RoutedJobTarget, reference: str) -> RoutedJobStatus:
    """Return the status of a copy once it has ended, one way or the other."""
    return await status_when(target, reference, (RoutedJobState.COMPLETED, RoutedJobState.GONE))


async def texts_of(target: RoutedJobTarget, reference: str) -> Mapping[str, str]:
    """Return the files that a copy has left, by name."""
    return {file.name: _text(file) for file in await target.collect(reference)}


def _text(file: CollectedFile) -> str:
    return Path(file.path).read_text()
