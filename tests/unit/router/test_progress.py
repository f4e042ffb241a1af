"""Waits that last as long as something moves."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pilotage.v1.job_service_pb2 import DownloadFileResponse
from pilotage_agents.router.server_link import upload_requests, write_download
from pilotage_agents.router.tasks import progress_timeout, report_progress
from support.virtual_clock import LoopTime

STILL_S = 60.0


async def test_a_wait_in_which_nothing_moves_ends() -> None:
    loop_time = LoopTime()

    async def stand_still() -> None:
        async with progress_timeout(STILL_S):
            loop_time.advance(STILL_S)
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await stand_still()


async def test_what_moves_in_a_task_moves_for_all_waits_above_it() -> None:
    loop_time = LoopTime()

    async def move() -> None:
        for _ in range(10):
            loop_time.advance(0.9 * STILL_S)
            report_progress()
            await asyncio.sleep(0)

    async with progress_timeout(STILL_S), progress_timeout(2 * STILL_S), asyncio.TaskGroup() as group:
        group.create_task(move())


async def test_what_moves_after_a_wait_is_over_disturbs_nobody() -> None:
    go_on = asyncio.Event()

    async def move() -> None:
        await go_on.wait()
        report_progress()

    async with progress_timeout(STILL_S):
        late = asyncio.create_task(move())
        await asyncio.sleep(0)
    go_on.set()
    await late


async def test_a_file_that_arrives_slowly_is_waited_for(tmp_path: Path) -> None:
    loop_time = LoopTime()

    async def arriving() -> AsyncIterator[DownloadFileResponse]:
        for _ in range(10):
            loop_time.advance(0.9 * STILL_S)
            yield DownloadFileResponse(content=b"piece")

    checksum = hashlib.sha256(b"piece" * 10).hexdigest()
    async with progress_timeout(STILL_S):
        await write_download(tmp_path / "file", checksum, arriving())
    assert (tmp_path / "file").read_bytes() == b"piece" * 10


async def test_a_file_that_is_taken_slowly_is_waited_for(tmp_path: Path) -> None:
    loop_time, content = LoopTime(), b"x" * (5 << 20)
    (tmp_path / "file").write_bytes(content)
    async with progress_timeout(STILL_S):
        async for _ in upload_requests(tmp_path / "file", "checksum", len(content)):
            loop_time.advance(0.9 * STILL_S)
