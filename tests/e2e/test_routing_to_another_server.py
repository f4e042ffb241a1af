"""Jobs that a router sends to another server, with the token of the route or of the owner."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pilotage.job_description import InputFile, JobDescription
from pilotage_client.api import Client
from pilotage_client.models import JobStatus
from pilotage_client.readers.files import resolve_local_files
from pilotage_server.core.identity import AGENT_NAMES, Role
from support.commands import PROGRAMS
from support.process_grid import ProcessGrid, a_process_grid
from support.processes import until
from support.server import RunningServer, running_server

TABLE = '[ name = "South"; Requirements = TARGET.WantJobRouter; set_Experiment = "sky"; ]'


@dataclass
class TwoServers:
    """The server with the submitted jobs, and a second server with a pilot."""

    north: RunningServer
    south: ProcessGrid
    folder: Path
    user: Client

    def submit(self, script: str, *files: str, **attributes: str | bool) -> int:
        """Submit a job for the route with input files of the test folder."""
        (self.folder / "run.sh").write_text(f"#!/bin/sh\n{script}\n")
        description = JobDescription(
            "run.sh",
            input_files=tuple(InputFile(name, source=name) for name in files),
            output_files=("*.dat",),
            attributes={"WantJobRouter": True, **attributes},
        )
        (job_id,) = self.user.submit([resolve_local_files(description, self.folder)]).job_ids
        return job_id

    async def wait_for_end(self, job_id: int) -> tuple[str, int | None]:
        await until(lambda: self.user.jobs([job_id])[0].is_final)
        (job,) = self.user.jobs([job_id])
        return job.state, job.exit_code

    def output(self, job_id: int) -> dict[str, bytes]:
        return {file.name: self.user.read_output(job_id, file) for file in self.user.output_files(job_id)}

    def jobs_at_south(self) -> list[JobStatus]:
        with Client(self.south.server.address, self.south.server.token(Role.OPERATOR, owner="op")) as operator:
            return list(operator.list_jobs(owner="*"))


def _config(north: RunningServer, south: RunningServer) -> str:
    return f"""
server = "{north.address}"
token_file = "agent.token"
[job_router]
folder = "router"
table = "routes.ads"
interval_s = 0.2
[job_router.targets.routes]
South = {{ server = "{south.address}" }}
[job_router.servers."{south.address}"]
token_file = "south.token"
"""


@contextmanager
def _router(folder: Path) -> Iterator[None]:
    """Run the router command; check its exit code at the end of the block."""
    command = [str(PROGRAMS / "pilotage-agents"), "job-router", "--config", str(folder / "agents.toml")]
    with (folder / "router.log").open("wb") as log:
        router = subprocess.Popen(command, stderr=log)
    try:
        yield
        router.terminate()
        assert router.wait(30) == 0
    finally:
        router.kill()
        router.wait()


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[TwoServers]:
    async with AsyncExitStack() as stack:
        north = stack.enter_context(running_server(tmp_path / "north"))
        south = stack.enter_context(a_process_grid(tmp_path / "south"))
        await stack.enter_async_context(south.pilot())
        (tmp_path / "routes.ads").write_text(TABLE)
        (tmp_path / "agent.token").write_text(north.token(*AGENT_NAMES, owner="agent:test"))
        (tmp_path / "south.token").write_text(south.server.token(owner="router"))
        (tmp_path / "agents.toml").write_text(_config(north, south.server))
        user = stack.enter_context(Client(north.address, north.token()))
        stack.enter_context(_router(tmp_path))
        yield TwoServers(north, south, tmp_path, user)


async def test_routed_job_has_its_input_and_returns_output(servers: TwoServers) -> None:
    (servers.folder / "data").write_text("the input")
    job_id = servers.submit("cat data; echo new > new.dat; exit 3", "data")
    assert await servers.wait_for_end(job_id) == ("FAILED", 3)
    output = servers.output(job_id)
    assert (output["stdout"], output["new.dat"]) == (b"the input", b"new\n")
    assert [job.owner for job in servers.jobs_at_south()] == ["router"]
    assert servers.user.jobs([job_id])[0].attempt == 1


async def test_routed_job_with_owners_token_runs_as_the_owner(servers: TwoServers) -> None:
    (servers.folder / "mine.token").write_text(servers.south.server.token(owner="ann"))
    job_id = servers.submit("ls", "mine.token", ScitokensFile="mine.token")
    assert await servers.wait_for_end(job_id) == ("DONE", 0)
    assert b"mine.token" not in servers.output(job_id)["stdout"]
    assert [job.owner for job in servers.jobs_at_south()] == ["ann"]
    log = (servers.folder / "router.log").read_text()
    assert (servers.folder / "mine.token").read_text() not in log


async def test_removed_job_is_removed_at_the_other_server(servers: TwoServers) -> None:
    job_id = servers.submit("sleep 600")
    await until(lambda: servers.user.jobs([job_id])[0].state == "RUNNING")
    servers.user.remove([job_id])
    await until(lambda: [job.state for job in servers.jobs_at_south()] == ["REMOVED"])
    assert servers.user.jobs([job_id])[0].state == "REMOVED"
