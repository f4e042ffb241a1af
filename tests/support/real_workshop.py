"""A real workshop in a test's own folder, with a link in memory."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pilotage.job_description import InputFile
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey, ReportedOutput
from pilotage_pilot.core.events import LimitPassed, PayloadExited
from pilotage_pilot.core.instructions import PrepareJob, Slot
from pilotage_pilot.core.model import GrantedJob, Now
from pilotage_pilot.core.slots.states import Activity, SlotState
from pilotage_pilot.supervise.base import PayloadEvent, PayloadRunner
from pilotage_pilot.supervise.cgroups import CgroupMaker
from pilotage_pilot.supervise.folders import PilotFolder
from pilotage_pilot.supervise.payload_runner import LocalPayloadRunner, PayloadRules
from pilotage_pilot.supervise.spawn import PayloadSite
from support.fake_pilot_edges import EPOCH, FakeLink

SITE = PayloadSite(
    f"pilot-of-test-{os.getpid()}", queue="S/C/Q", node="node1"
)  # no other run of tests ends what is ours


def a_slot(job: GrantedJob) -> Slot:
    now = Now(EPOCH, 1000.0)
    return Slot("slot1_1", SlotState.CLAIMED, Activity.IDLE, job.amounts, Amounts(), now, now, job.key)


def an_order(job: GrantedJob, **more: Any) -> PrepareJob:
    return PrepareJob(job, a_slot(job), **more)


class Bench:
    """A workshop and what it has told."""

    def __init__(self, workshop: PayloadRunner, link: FakeLink, folder: Path) -> None:
        self.workshop = workshop
        self.link = link
        self.folder = folder
        self.told: asyncio.Queue[PayloadEvent] = asyncio.Queue()
        workshop.subscribe(self.told.put_nowait)

    def an_input(self, name: str, content: bytes, *, executable: bool = False) -> InputFile:
        """Return an input file that the server has."""
        checksum = hashlib.sha256(content).hexdigest()
        self.link.files[checksum] = content
        return InputFile(name, None, checksum, len(content), executable)

    async def prepare(self, job: GrantedJob, **order: Any) -> None:
        """Prepare a job, with its files; `order` says more of how."""
        self.workshop.prepare(an_order(job, **order))
        await self.workshop.fetch(job.key)

    async def start(self, job: GrantedJob, **order: Any) -> AttemptKey:
        """Start a job; `order` says more of how it is prepared."""
        await self.prepare(job, **order)
        self.workshop.start(job.key)
        return job.key

    async def happens(self) -> PayloadEvent:
        async with asyncio.timeout(20):
            return await self.told.get()

    async def ends(self) -> PayloadExited:
        """Return how the next payload ends."""
        happening = await self.happens()
        assert isinstance(happening, PayloadExited), happening
        return happening

    async def passes_limit(self) -> LimitPassed:
        happening = await self.happens()
        assert isinstance(happening, LimitPassed), happening
        return happening

    async def run(self, job: GrantedJob, **order: Any) -> tuple[PayloadExited, dict[str, ReportedOutput], str]:
        """Run a job to its end and return what it left by name."""
        await self.start(job, **order)
        end = await self.ends()
        files, notes = await self.store(job.key)
        return end, files, notes

    async def store(self, key: AttemptKey) -> tuple[dict[str, ReportedOutput], str]:
        """Return what an attempt left, by name, when it is stored, and what its owner should know of it."""
        left = await self.workshop.collect(key)
        stored = await self.workshop.upload_large(key, left) if left.large else left
        return {file.name: file for file in stored.files}, "; ".join(stored.notes)

    def work_of(self, key: AttemptKey) -> Path:
        return next(self.folder.glob(f"*/jobs/{key}/work"))


@asynccontextmanager
async def a_workshop(
    folder: Path, handling: PayloadRules | None = None, groups: CgroupMaker | None = None
) -> AsyncIterator[Bench]:
    link = FakeLink()
    workshop = LocalPayloadRunner(PilotFolder(folder), link, SITE, handling or PayloadRules(watch_s=0.05), groups)
    try:
        yield Bench(workshop, link, folder)
    finally:
        await workshop.close()
