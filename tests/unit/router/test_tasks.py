"""Tasks of the job router: background tasks that fail, and timeouts that progress extends."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pilotage.errors import ServerUnreachableError
from pilotage.v1.job_service_pb2 import DownloadFileResponse
from pilotage_agents.router.server_link import upload_requests, write_download
from pilotage_agents.router.tasks import BackgroundTasks, progress_timeout, report_progress
from support.virtual_clock import LoopTime

TIMEOUT_S = 60.0


async def test_wait_without_progress_times_out() -> None:
    loop_time = LoopTime()

    async def stall() -> None:
        async with progress_timeout(TIMEOUT_S):
            loop_time.advance(TIMEOUT_S)
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await stall()


async def test_progress_of_child_task_extends_all_outer_timeouts() -> None:
    loop_time = LoopTime()

    async def work() -> None:
        for _ in range(10):
            loop_time.advance(0.9 * TIMEOUT_S)
            report_progress()
            await asyncio.sleep(0)

    async with progress_timeout(TIMEOUT_S), progress_timeout(2 * TIMEOUT_S), asyncio.TaskGroup() as group:
        group.create_task(work())


async def test_progress_after_end_of_wait_is_ignored() -> None:
    resume = asyncio.Event()

    async def work() -> None:
        await resume.wait()
        report_progress()

    async with progress_timeout(TIMEOUT_S):
        pending = asyncio.create_task(work())
        await asyncio.sleep(0)
    resume.set()
    await pending


async def test_slow_download_does_not_time_out(tmp_path: Path) -> None:
    loop_time = LoopTime()

    async def chunks() -> AsyncIterator[DownloadFileResponse]:
        for _ in range(10):
            loop_time.advance(0.9 * TIMEOUT_S)
            yield DownloadFileResponse(content=b"piece")

    checksum = hashlib.sha256(b"piece" * 10).hexdigest()
    async with progress_timeout(TIMEOUT_S):
        await write_download(tmp_path / "file", checksum, chunks())
    assert (tmp_path / "file").read_bytes() == b"piece" * 10


async def test_slow_upload_does_not_time_out(tmp_path: Path) -> None:
    loop_time, content = LoopTime(), b"x" * (5 << 20)
    (tmp_path / "file").write_bytes(content)
    async with progress_timeout(TIMEOUT_S):
        async for _ in upload_requests(tmp_path / "file", "checksum", len(content)):
            loop_time.advance(0.9 * TIMEOUT_S)


async def raise_unexpected_error() -> None:
    raise RecursionError("endless recursion")


async def raise_unreachable() -> None:
    raise ServerUnreachableError("no server")


async def test_unexpected_error_of_one_task_does_not_end_the_cycle() -> None:
    tasks, done = BackgroundTasks(10.0), asyncio.Event()

    async def set_done() -> None:
        done.set()

    with capture_logs() as logs:
        tasks.start("failing", raise_unexpected_error)
        tasks.start("other", set_done)
        await tasks.wait_grace()
    assert done.is_set()
    assert not len(tasks)
    (line,) = logs
    assert (line["event"], line["log_level"], line["task"]) == (
        "unexpected error in background task",
        "error",
        "failing",
    )
    assert isinstance(line["exc_info"], RecursionError)


async def test_unreachable_server_ends_the_cycle() -> None:
    tasks = BackgroundTasks(10.0)
    tasks.start("one", raise_unreachable)
    with pytest.raises(ServerUnreachableError):
        await tasks.wait_grace()
    tasks.start("one", raise_unreachable)
    tasks.start("two", raise_unreachable)
    with pytest.raises(ExceptionGroup) as raised:
        await tasks.wait_all()
    assert len(raised.value.exceptions) == 2
    await tasks.wait_grace()
