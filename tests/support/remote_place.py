"""Another server, a real one, as a place that copies go to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage_agents.router.places.remote_server import RemoteServer
from pilotage_agents.router.places.server import RemoteJobFolders, RemoteServerTarget
from pilotage_agents.router.ports import RoutedJobRequest
from pilotage_server.core.identity import Role
from support.copies import HeldFiles, a_copy
from support.process_grid import ProcessGrid
from support.server import request_id

NAME = "pilotage-7-3"


@dataclass
class Remote:
    """Another server, with no pilots, as a place for copies; `origin` is another for each test."""

    grid: ProcessGrid
    line: RemoteServer
    folder: Path
    origin: str
    files: HeldFiles

    @property
    def target(self) -> RemoteServerTarget:
        """What a router sees after a restart."""
        return self.at(self.folder)

    def at(self, folder: Path, *, token: str = "token", origin: str = "") -> RemoteServerTarget:
        """Return the place as a router sees it that keeps its copies in this folder."""
        folders = RemoteJobFolders(folder, origin or self.origin)
        return RemoteServerTarget(self.line, folders, self.folder.parent / token if token else None)

    def of(self, name: str = NAME) -> Path:
        """Return the folder of a copy."""
        return self.folder / f"{name}-{self.origin}"

    def copy_of(self, owner: str, name: str = NAME) -> RoutedJobRequest:
        """Return a copy of a job that brings its owner's token for the server."""
        secret = self.files.add("mine.token", self.grid.server.token(owner=owner))
        return a_copy(name, "/bin/true", input_files=(secret,), attributes={"ScitokensFile": "mine.token"})

    def job(self, reference: str) -> jobs_pb2.Job:
        (job,) = self._as_operator("GetJobs", job_ids=[_id(reference)]).jobs
        found: jobs_pb2.Job = job
        return found

    def description(self, reference: str) -> jobs_pb2.JobDescription:
        found: jobs_pb2.JobDescription = self._as_operator("GetJobDescription", job_id=_id(reference)).description
        return found

    def change(self, reference: str, change: job_service_pb2.JobChange.ValueType) -> None:
        wish = {"request_id": request_id(), "change": change, "reason": "its owner's wish"}
        self._as_operator("ChangeJobs", job_ids=[_id(reference)], **wish)

    def _as_operator(self, method: str, **fields: Any) -> Any:
        request = getattr(job_service_pb2, f"{method}Request")(**fields)
        with self.grid.server.channel(self.grid.server.token(Role.OPERATOR)) as channel:
            return getattr(JobServiceStub(channel), method)(request)


def _id(reference: str) -> int:
    return int(reference.rsplit(" ")[-1])


@asynccontextmanager
async def a_remote(grid: ProcessGrid, folder: Path) -> AsyncIterator[Remote]:
    """Give the server of a grid, to which routes go as "router"."""
    (folder / "token").write_text(grid.server.token(owner="router") + "\n")
    line = RemoteServer([grid.server.address], None)
    yield Remote(grid, line, folder / "copies", uuid4().hex[:8], HeldFiles())
    await line.close()
