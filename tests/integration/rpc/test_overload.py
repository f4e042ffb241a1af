"""Overload: a server rejects calls above its limit with a retry delay, and clients retry."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from grpc_status import rpc_status

from pilotage import clock
from pilotage.errors import OverloadedError, WorldError
from pilotage.rpc.status import error_of
from pilotage.v1 import job_service_pb2, job_service_pb2_grpc
from pilotage_server.rpc.framework.calls import Call, idle
from support.dispatcher_server import CODERS, COROUTINE, HOT, STREAM, UPLOAD, hot_method, served_methods
from support.server import RunningServer, request_id, running_server
from support.wire_grid import WireGrid, a_job, submission

pytestmark = pytest.mark.process


class HeldCalls:
    """A hot method that leaves its calls unanswered."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[Call[bytes]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def submit(self, _request: bytes, call: Call[bytes]) -> None:
        self._loop.call_soon_threadsafe(self.calls.put_nowait, call)


async def begin_call(channel: Any, held: HeldCalls) -> tuple[asyncio.Task[bytes], Call[bytes]]:
    """Start a call; return its task and the call on the server."""
    task = asyncio.ensure_future(_awaited(channel.unary_unary(HOT)(b"")))
    return task, await held.calls.get()


async def _awaited(call: Any) -> Any:
    return await call


async def test_excess_call_is_rejected_with_a_retry_delay() -> None:
    held = HeldCalls()
    async with served_methods(most=2, **hot_method(held.submit)) as channel:
        in_flight = [await begin_call(channel, held) for _ in range(2)]
        with pytest.raises(OverloadedError) as caught:
            await channel.unary_unary(HOT)(b"", timeout=5.0)
        for _, call in in_flight:
            call.answer(b"done")
        assert [await task for task, _ in in_flight] == [b"done", b"done"]

    assert "has 2 calls under way" in str(caught.value)
    assert caught.value.retry_after_s > 0


async def test_rejected_call_is_retried_until_it_is_served() -> None:
    held = HeldCalls()
    async with served_methods(most=1, **hot_method(held.submit)) as channel:
        first, server_call = await begin_call(channel, held)
        second = asyncio.ensure_future(_awaited(channel.unary_unary(HOT)(b"")))
        third = asyncio.ensure_future(anext(aiter(channel.unary_stream(HOT)(b""))))
        server_call.answer(b"first")
        for answer in (b"next", b"last"):
            (await held.calls.get()).answer(answer)
        assert await first == b"first"
        assert {await second, await third} == {b"next", b"last"}


async def test_waiting_calls_do_not_count() -> None:
    event = asyncio.Event()

    async def wait(*_: Any) -> bytes:
        with idle():
            await event.wait()
        return b"event"

    async def wait_and_stream(*_: Any) -> AsyncIterator[bytes]:
        with idle():
            await event.wait()
        yield b"event"

    methods: dict[str, Any] = {
        "GetJobs": grpc.unary_unary_rpc_method_handler(wait, *CODERS),
        "WatchEvents": grpc.unary_stream_rpc_method_handler(wait_and_stream, *CODERS),
    }
    held = HeldCalls()
    async with served_methods(most=1, **methods, **hot_method(held.submit)) as channel:
        waiting = [asyncio.ensure_future(_awaited(channel.unary_unary(COROUTINE)(b""))) for _ in range(20)]
        stream = asyncio.ensure_future(anext(aiter(channel.unary_stream(STREAM)(b""))))
        busy, server_call = await begin_call(channel, held)
        server_call.answer(b"busy")
        event.set()
        assert {await call for call in (*waiting, stream)} == {b"event"}
        assert await busy == b"busy"


async def test_slow_streams_do_not_count() -> None:
    has_begun, never = asyncio.Event(), asyncio.Event()

    async def stream_forever(*_: Any) -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 20)

    async def take(chunks: AsyncIterator[bytes], _call: Any) -> bytes:
        async for _ in chunks:
            has_begun.set()
        return b"taken"

    async def slow_request() -> AsyncIterator[bytes]:
        yield b"first"
        await never.wait()

    methods: dict[str, Any] = {
        "WatchEvents": grpc.unary_stream_rpc_method_handler(stream_forever, *CODERS),
        "UploadFile": grpc.stream_unary_rpc_method_handler(take, *CODERS),
    }
    held = HeldCalls()
    async with served_methods(most=1, **methods, **hot_method(held.submit)) as channel:
        upload = asyncio.ensure_future(_awaited(channel.stream_unary(UPLOAD)(slow_request())))
        await has_begun.wait()
        messages = aiter(channel.unary_stream(STREAM)(b""))
        await anext(messages)
        busy, server_call = await begin_call(channel, held)
        server_call.answer(b"busy")
        assert await busy == b"busy"
        upload.cancel()


async def test_download_that_nobody_reads_is_cancelled() -> None:
    is_over = asyncio.Event()

    async def stream_forever(*_: Any) -> AsyncIterator[bytes]:
        try:
            while True:
                yield bytes(1 << 20)
        finally:
            is_over.set()

    handler: Any = grpc.unary_stream_rpc_method_handler(stream_forever, *CODERS)
    async with served_methods(stalled_s=0.2, WatchEvents=handler) as channel:
        messages = aiter(channel.unary_stream(STREAM)(b""))
        await anext(messages)
        await is_over.wait()
        with pytest.raises(WorldError):
            async for _ in messages:
                pass


async def test_upload_without_progress_is_refused() -> None:
    never = asyncio.Event()

    async def take(chunks: AsyncIterator[bytes], _call: Any) -> bytes:
        async for _ in chunks:
            pass
        return b"taken"

    async def slow_request() -> AsyncIterator[bytes]:
        yield b"first"
        await never.wait()

    handler: Any = grpc.stream_unary_rpc_method_handler(take, *CODERS)
    async with served_methods(stalled_s=0.2, UploadFile=handler) as channel:
        with pytest.raises(WorldError, match="has sent no message"):
            await channel.stream_unary(UPLOAD)(slow_request())


async def test_call_counts_again_after_its_wait() -> None:
    has_resumed, is_done = asyncio.Event(), asyncio.Event()

    async def wait(*_: Any) -> bytes:
        with idle():
            pass
        has_resumed.set()
        await is_done.wait()
        return b"done"

    methods: dict[str, Any] = {"GetJobs": grpc.unary_unary_rpc_method_handler(wait, *CODERS)}
    async with served_methods(most=1, **methods, **hot_method(HeldCalls().submit)) as channel:
        busy = asyncio.ensure_future(_awaited(channel.unary_unary(COROUTINE)(b"")))
        await has_resumed.wait()
        with pytest.raises(OverloadedError):
            await channel.unary_unary(HOT)(b"", timeout=5.0)
        is_done.set()
        assert await busy == b"done"


async def test_calls_without_request_do_not_count() -> None:
    has_begun, never = asyncio.Event(), asyncio.Event()

    async def slow_request() -> AsyncIterator[bytes]:
        has_begun.set()
        await never.wait()
        yield b""

    held = HeldCalls()
    async with served_methods(most=1, **hot_method(held.submit)) as channel:
        slow_calls = [asyncio.ensure_future(_awaited(channel.stream_unary(HOT)(slow_request()))) for _ in range(20)]
        await has_begun.wait()
        for _ in range(3):
            fast, server_call = await begin_call(channel, held)
            server_call.answer(b"served")
            assert await fast == b"served"
        for call in slow_calls:
            call.cancel()
        await asyncio.gather(*slow_calls, return_exceptions=True)


@pytest.mark.parametrize(("most", "most_of_owner"), [(1, 1000), (1000, 1)])
async def test_requests_of_many_calls_that_arrived_before_are_limited(most: int, most_of_owner: int) -> None:
    requests_may_come = asyncio.Event()
    arrived = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    def clock_of_arrivals() -> datetime:
        loop.call_soon_threadsafe(arrived.release)  # the server reads its clock once for each call that arrives
        return clock.now()

    async def late_request() -> AsyncIterator[bytes]:
        await requests_may_come.wait()
        yield b""

    held = HeldCalls()
    async with served_methods(
        most=most, most_of_owner=most_of_owner, now=clock_of_arrivals, **hot_method(held.submit)
    ) as channel:
        late = [asyncio.ensure_future(_awaited(channel.stream_unary(HOT)(late_request()))) for _ in range(4)]
        for _ in late:
            await arrived.acquire()
        served, server_call = await begin_call(channel, held)
        server_call.answer(b"served")
        await served
        requests_may_come.set()
        server_call = await held.calls.get()
        while len(left := [task for task in late if not task.done()]) > 1:
            await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        server_call.answer(b"first")
        answers = await asyncio.gather(*late, return_exceptions=True)

    assert answers.count(b"first") == 1
    assert sum("calls under way" in str(answer) for answer in answers) == len(late) - 1
    assert held.calls.empty()


async def test_cancelled_call_no_longer_counts() -> None:
    held = HeldCalls()
    async with served_methods(most=1, **hot_method(held.submit)) as channel:
        first, _ = await begin_call(channel, held)
        first.cancel()
        second, server_call = await begin_call(channel, held)
        server_call.answer(b"second")
        assert await second == b"second"


def test_rejection_has_standard_grpc_retry_info(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", max_calls_in_flight=1) as server, _busy(server):
        rejections = asyncio.run(_rejections_of(server))

    assert {error.code() for error in rejections} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    for error in rejections:
        retry_info, status = RetryInfo(), rpc_status.from_call(error)
        assert any(detail.Unpack(retry_info) for detail in status.details)
        assert retry_info.retry_delay.ToMilliseconds() > 0
        assert isinstance(error_of(error), OverloadedError)


def test_all_callers_of_a_busy_server_are_served_once(tmp_path: Path) -> None:
    callers = 40
    with running_server(tmp_path / "data", max_calls_in_flight=2) as server:
        grid = WireGrid(server)
        job_ids = asyncio.run(_submit_concurrently(grid, callers))
        listed = grid.jobs.ListJobs(job_service_pb2.ListJobsRequest(page_size=1000)).jobs
        grid.close()

    assert '"calls are refused"' in server.log()
    assert len(set(job_ids)) == callers
    assert {job.id for job in listed} == set(job_ids)


@contextmanager
def _busy(server: RunningServer) -> Iterator[None]:
    """Block all writing calls of a server by a lock on its database."""
    with closing(sqlite3.connect(server.data / "pilotage.db", isolation_level=None, timeout=30)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        yield
        writer.execute("ROLLBACK")


async def _rejections_of(server: RunningServer) -> list[Any]:
    """Return the gRPC errors of calls to a busy server; at least one of four is rejected."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        jobs: Any = job_service_pb2_grpc.JobServiceStub(channel)
        metadata = (("authorization", f"Bearer {server.token()}"),)
        calls = [jobs.SubmitJobs(submission([a_job()], request_id()), metadata=metadata) for _ in range(4)]
        answers = [asyncio.ensure_future(_awaited(call)) for call in calls]
        caught, others = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        for call in others:
            call.cancel()
        return [answer.exception() for answer in caught]


async def _submit_concurrently(grid: WireGrid, callers: int) -> list[int]:
    """Submit one job per caller while the server is busy; return the job ids."""
    async with grid.server.async_channel(grid.server.token(vo=grid.vo)) as channel:
        jobs: Any = job_service_pb2_grpc.JobServiceStub(channel)
        with _busy(grid.server):
            calls = [jobs.SubmitJobs(submission([a_job()], request_id())) for _ in range(callers)]
            answers = asyncio.gather(*map(_awaited, calls))
            await _rejections_of(grid.server)
        return [answer.job_ids[0] for answer in await answers]
