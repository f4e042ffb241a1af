"""Output of running jobs over real servers and pilots, and what jobs keep that were stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage_client.api import Client
from pilotage_client.models import OutputPart
from support.postgresql import PostgresqlServer
from support.process_grid import TREE, ProcessGrid, a_process_grid
from support.processes import until
from support.server import RunningServer, server_fleet

pytestmark = pytest.mark.process

Part = OutputPart


@pytest.fixture(scope="module")
def shared_grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessGrid]:
    with a_process_grid(tmp_path_factory.mktemp("grid")) as grid:
        yield grid


@pytest.fixture
def grid(shared_grid: ProcessGrid, tmp_path: Path) -> ProcessGrid:
    return shared_grid.of_another_vo(tmp_path)


class Reader:
    """Reads the output of a job at one server, part by part."""

    def __init__(self, grid: ProcessGrid, job_id: int, server: RunningServer | None = None, **options: bool) -> None:
        self._client = Client((server or grid.server).address, token=grid.user_token())
        self._parts = self._client.follow_output(job_id, **options)
        self.parts: list[Part] = []

    @property
    def content(self) -> bytes:
        return b"".join(part.content for part in self.parts)

    async def read(self, *, until_seen: bytes | None = None) -> bytes:
        """Read until a text has come, or to the end."""
        while until_seen is None or until_seen not in self.content:
            part = await asyncio.to_thread(next, self._parts, None)
            assert part is not None, f"the stream was interrupted after {self.content!r}"
            self.parts.append(part)
            if part.over:
                break
        return self.content


def waits_for(mark: Path) -> str:
    return f"until [ -e {mark} ]; do sleep 0.05; done"


async def test_output_is_seen_while_job_runs(grid: ProcessGrid, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job_id = grid.submit(script=f"echo one; echo oh >&2; {waits_for(go)}; echo two")
    reader, errors = Reader(grid, job_id), Reader(grid, job_id, error=True)
    async with grid.pilot():  # the follower was there before the job ran
        assert await reader.read(until_seen=b"one\n") == b"one\n"
        assert await errors.read(until_seen=b"oh\n") == b"oh\n"
        assert await Reader(grid, job_id, follow=False).read() == b"one\n"
        go.touch()
        assert await reader.read() == b"one\ntwo\n"
        assert await errors.read() == b"oh\n"
    assert reader.parts[-1] == Part(attempt=1, offset=8, over=True)
    assert await Reader(grid, job_id).read() == b"one\ntwo\n"


async def test_fast_writer_is_skipped_through(grid: ProcessGrid, tmp_path: Path) -> None:
    go, size = tmp_path / "go", 5_000_000
    async with grid.pilot():
        job_id = grid.submit(script=f"yes | head -c {size}; echo all; {waits_for(go)}")
        reader = Reader(grid, job_id)
        await reader.read(until_seen=b"all\n")
        assert reader.parts[-1].offset + len(reader.parts[-1].content) == size + len(b"all\n")
        assert len(reader.content) < size
        go.touch()
        await reader.read()


async def test_removed_job_keeps_what_it_had_written(grid: ProcessGrid) -> None:
    async with grid.pilot():
        job_id = grid.submit(script="echo half > part; echo half; sleep 600", output_files=["part", "whole"])
        await Reader(grid, job_id).read(until_seen=b"half\n")
        grid.remove(job_id)
        await until(lambda: bool(grid.output(job_id)))
    assert grid.output(job_id) == {"stdout": b"half\n", "stderr": b"", "part": b"half\n"}
    reader = Reader(grid, job_id)
    assert await reader.read() == b"half\n"
    assert reader.parts[-1].partial.startswith("killed: ")


async def test_evicted_job_is_followed_to_its_next_attempt(grid: ProcessGrid, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job_id = grid.submit(script=f"echo began; {waits_for(go)}; echo ended")
    reader = Reader(grid, job_id)
    async with grid.pilot() as pilot:
        await reader.read(until_seen=b"began\n")
        pilot.process.terminate()
        await pilot.ends()
    go.touch()
    async with grid.pilot():
        assert await reader.read() == b"began\nbegan\nended\n"
    assert {part.attempt for part in reader.parts if part.content} == {1, 2}
    (stop,) = [part.partial for part in reader.parts if part.partial]
    assert stop.startswith("evicted: ")


@pytest.mark.postgresql
async def test_follower_and_pilot_may_be_at_different_servers(
    tmp_path: Path, postgresql_server: PostgresqlServer
) -> None:
    url = postgresql_server.new_database()
    with server_fleet(tmp_path, url.render_as_string(hide_password=False), 2, heartbeat_s=1) as fleet:
        grid = ProcessGrid(fleet.servers[0], tmp_path)
        grid.put_tree(TREE)
        go = tmp_path / "go"
        async with grid.pilot(server=[fleet.servers[1].address]):
            job_id = grid.submit(script=f"echo one; {waits_for(go)}; echo two")
            reader = Reader(grid, job_id, fleet.servers[0])
            assert await reader.read(until_seen=b"one\n") == b"one\n"
            go.touch()
            assert await reader.read() == b"one\ntwo\n"
    postgresql_server.drop(url)
