"""A server that has too many calls under way refuses more, and tells when to come again; callers do."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from grpc_status import rpc_status

from pilotage.errors import OverloadedError
from pilotage.rpc.status import error_of
from pilotage.v1 import job_service_pb2, job_service_pb2_grpc
from pilotage_server.rpc.framework.calls import Call, idle
from support.fake_job_service import CODERS, COROUTINE, HOT, STREAM, UPLOAD, doorway, hot_method
from support.server import RunningServer, request_id, running_server
from support.wire_grid import WireGrid, a_job, submission

pytestmark = pytest.mark.process


class Held:
    """A hot method that keeps its calls until they are let go."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[Call[bytes]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def submit(self, _request: bytes, call: Call[bytes]) -> None:
        self._loop.call_soon_threadsafe(self.calls.put_nowait, call)


async def beginning(channel: Any, held: Held) -> tuple[asyncio.Task[bytes], Call[bytes]]:
    """Return a call that is under way, and its other end."""
    task = asyncio.ensure_future(_awaited(channel.unary_unary(HOT)(b"")))
    return task, await held.calls.get()


async def _awaited(call: Any) -> Any:
    return await call


async def test_a_call_too_many_is_refused_and_told_when_to_come_again() -> None:
    held = Held()
    async with doorway(most=2, **hot_method(held.submit)) as channel:
        under_way = [await beginning(channel, held) for _ in range(2)]
        with pytest.raises(OverloadedError) as refused:
            await channel.unary_unary(HOT)(b"", timeout=5.0)
        for _, call in under_way:
            call.answer(b"done")
        assert [await task for task, _ in under_way] == [b"done", b"done"]

    assert "has 2 calls under way" in str(refused.value)
    assert refused.value.retry_after_s > 0


async def test_a_call_that_was_refused_is_made_again_and_served_once_there_is_room() -> None:
    held = Held()
    async with doorway(most=1, **hot_method(held.submit)) as channel:
        first, its_end = await beginning(channel, held)
        second = asyncio.ensure_future(_awaited(channel.unary_unary(HOT)(b"")))
        third = asyncio.ensure_future(anext(aiter(channel.unary_stream(HOT)(b""))))
        its_end.answer(b"first")
        for answer in (b"next", b"last"):
            (await held.calls.get()).answer(answer)
        assert await first == b"first"
        assert {await second, await third} == {b"next", b"last"}


async def test_calls_that_merely_wait_do_not_count() -> None:
    news = asyncio.Event()

    async def wait(*_: Any) -> bytes:
        with idle():
            await news.wait()
        return b"news"

    async def many(*_: Any) -> AsyncIterator[bytes]:
        with idle():
            await news.wait()
        yield b"news"

    methods: dict[str, Any] = {
        "GetJobs": grpc.unary_unary_rpc_method_handler(wait, *CODERS),
        "WatchEvents": grpc.unary_stream_rpc_method_handler(many, *CODERS),
    }
    held = Held()
    async with doorway(most=1, **methods, **hot_method(held.submit)) as channel:
        waiting = [asyncio.ensure_future(_awaited(channel.unary_unary(COROUTINE)(b""))) for _ in range(20)]
        stream = asyncio.ensure_future(anext(aiter(channel.unary_stream(STREAM)(b""))))
        busy, its_end = await beginning(channel, held)
        its_end.answer(b"busy")
        news.set()
        assert {await call for call in (*waiting, stream)} == {b"news"}
        assert await busy == b"busy"


async def test_who_reads_or_brings_a_stream_slowly_takes_no_room() -> None:
    is_coming, never = asyncio.Event(), asyncio.Event()

    async def many(*_: Any) -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 20)

    async def take(pieces: AsyncIterator[bytes], _call: Any) -> bytes:
        async for _ in pieces:
            is_coming.set()
        return b"taken"

    async def hesitant() -> AsyncIterator[bytes]:
        yield b"first"
        await never.wait()

    methods: dict[str, Any] = {
        "WatchEvents": grpc.unary_stream_rpc_method_handler(many, *CODERS),
        "UploadFile": grpc.stream_unary_rpc_method_handler(take, *CODERS),
    }
    held = Held()
    async with doorway(most=1, **methods, **hot_method(held.submit)) as channel:
        upload = asyncio.ensure_future(_awaited(channel.stream_unary(UPLOAD)(hesitant())))
        await is_coming.wait()
        messages = aiter(channel.unary_stream(STREAM)(b""))
        await anext(messages)
        busy, its_end = await beginning(channel, held)
        its_end.answer(b"busy")
        assert await busy == b"busy"
        upload.cancel()


async def test_a_call_that_has_waited_counts_again() -> None:
    goes_on, is_done = asyncio.Event(), asyncio.Event()

    async def wait(*_: Any) -> bytes:
        with idle():
            pass
        goes_on.set()
        await is_done.wait()
        return b"done"

    methods: dict[str, Any] = {"GetJobs": grpc.unary_unary_rpc_method_handler(wait, *CODERS)}
    async with doorway(most=1, **methods, **hot_method(Held().submit)) as channel:
        busy = asyncio.ensure_future(_awaited(channel.unary_unary(COROUTINE)(b"")))
        await goes_on.wait()
        with pytest.raises(OverloadedError):
            await channel.unary_unary(HOT)(b"", timeout=5.0)
        is_done.set()
        assert await busy == b"done"


async def test_who_is_slow_to_send_his_request_takes_no_room() -> None:
    is_there, never = asyncio.Event(), asyncio.Event()

    async def hesitant() -> AsyncIterator[bytes]:
        is_there.set()
        await never.wait()
        yield b""

    held = Held()
    async with doorway(most=1, **hot_method(held.submit)) as channel:
        hesitants = [asyncio.ensure_future(_awaited(channel.stream_unary(HOT)(hesitant()))) for _ in range(20)]
        await is_there.wait()
        for _ in range(3):
            prompt, its_end = await beginning(channel, held)
            its_end.answer(b"served")
            assert await prompt == b"served"
        for call in hesitants:
            call.cancel()
        await asyncio.gather(*hesitants, return_exceptions=True)


async def test_a_caller_that_goes_makes_room() -> None:
    held = Held()
    async with doorway(most=1, **hot_method(held.submit)) as channel:
        first, _ = await beginning(channel, held)
        first.cancel()
        second, its_end = await beginning(channel, held)
        its_end.answer(b"second")
        assert await second == b"second"


def test_the_refusal_is_said_in_the_words_that_all_clients_of_grpc_know(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", max_calls_in_flight=1) as server, _busy(server):
        refusals = asyncio.run(_refusals_of(server))

    assert {error.code() for error in refusals} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    for error in refusals:
        retry, status = RetryInfo(), rpc_status.from_call(error)
        assert any(detail.Unpack(retry) for detail in status.details)
        assert retry.retry_delay.ToMilliseconds() > 0
        assert isinstance(error_of(error), OverloadedError)


def test_many_callers_of_a_busy_server_are_all_served_and_none_twice(tmp_path: Path) -> None:
    callers = 40
    with running_server(tmp_path / "data", max_calls_in_flight=2) as server:
        grid = WireGrid(server)
        job_ids = asyncio.run(_submitted(grid, callers))
        listed = grid.jobs.ListJobs(job_service_pb2.ListJobsRequest(page_size=1000)).jobs
        grid.close()

    assert '"calls are refused"' in server.log()
    assert len(set(job_ids)) == callers
    assert {job.id for job in listed} == set(job_ids)


@contextmanager
def _busy(server: RunningServer) -> Iterator[None]:
    """Keep every call of a server under way that writes, as somebody else writes to its database."""
    with closing(sqlite3.connect(server.data / "pilotage.db", isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def _refusals_of(server: RunningServer) -> list[Any]:
    """Return how calls to a busy server were refused, as plain gRPC tells it: of so many at once one at least."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        jobs: Any = job_service_pb2_grpc.JobServiceStub(channel)
        metadata = (("authorization", f"Bearer {server.token()}"),)
        calls = [jobs.SubmitJobs(submission([a_job()], request_id()), metadata=metadata) for _ in range(4)]
        answers = [asyncio.ensure_future(_awaited(call)) for call in calls]
        refused, others = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        for call in others:
            call.cancel()
        return [answer.exception() for answer in refused]


async def _submitted(grid: WireGrid, callers: int) -> list[int]:
    """Return the jobs that as many callers have got who came to a busy server."""
    async with grid.server.async_channel(grid.server.token(vo=grid.vo)) as channel:
        jobs: Any = job_service_pb2_grpc.JobServiceStub(channel)
        with _busy(grid.server):
            calls = [jobs.SubmitJobs(submission([a_job()], request_id())) for _ in range(callers)]
            answers = asyncio.gather(*map(_awaited, calls))
            await _refusals_of(grid.server)
        return [answer.job_ids[0] for answer in await answers]
