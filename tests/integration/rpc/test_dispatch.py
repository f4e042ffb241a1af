"""Dispatch of calls of each kind: errors, traces, incidents, cancellation and back-pressure."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from pilotage.errors import InvalidInputError, LeaseLostError, UnauthenticatedError, WorldError
from pilotage.telemetry import TraceContext, current_trace, trace_bound
from pilotage_server.rpc.framework.calls import Call, caller, hot
from support.dispatcher_server import CODERS, COROUTINE, HOT, STREAM, UPLOAD, hot_method, served_methods

SECRET = "do not disclose"


def methods_of_each_kind(act: Callable[[], bytes]) -> Mapping[str, Any]:
    """Return methods of each kind that all call the same function."""

    async def unary(_request: Any, _call: Any) -> bytes:
        return act()

    async def stream(_request: Any, _call: Any) -> AsyncIterator[bytes]:
        yield b"first"
        yield act()

    @hot
    def submit(_request: bytes, call: Call[bytes]) -> None:
        call.answer(act())

    return {
        "GetJobs": grpc.unary_unary_rpc_method_handler(unary, *CODERS),
        "WatchEvents": grpc.unary_stream_rpc_method_handler(stream, *CODERS),
        "UploadFile": grpc.stream_unary_rpc_method_handler(unary, *CODERS),
        "SubmitJobs": grpc.unary_unary_rpc_method_handler(submit, *CODERS),
    }


def fail() -> bytes:
    raise ZeroDivisionError(SECRET)


def lose_lease() -> bytes:
    raise LeaseLostError(7, 2, "it ran out")


async def upload(channel: Any, *chunks: bytes) -> Any:
    async def sent() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return await channel.stream_unary(UPLOAD)(sent())


async def make_call(channel: Any, method: str) -> Any:
    return await upload(channel, b"x") if method == UPLOAD else await channel.unary_unary(method)(b"")


class Marker:
    """An object that lives as long as the context of a call."""


_MARKER: ContextVar[Marker] = ContextVar("marker")


async def test_finished_call_leaves_no_reference_cycle() -> None:
    references: list[weakref.ref[Marker]] = []

    async def unary(_request: Any, _call: Any) -> bytes:
        marker = Marker()
        _MARKER.set(marker)
        references.append(weakref.ref(marker))
        return b""

    gc.disable()
    try:
        async with served_methods(GetJobs=grpc.unary_unary_rpc_method_handler(unary, *CODERS)) as channel:
            await channel.unary_unary(COROUTINE)(b"")
        (reference,) = references
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("method", [COROUTINE, UPLOAD, HOT])
async def test_unexpected_error_is_logged_as_an_incident(method: str) -> None:
    with capture_logs() as logs:
        async with served_methods(**methods_of_each_kind(fail)) as channel:
            with pytest.raises(WorldError) as caught:
                await make_call(channel, method)

    (line,) = [line for line in logs if line["event"] == "call failed"]
    assert line["incident"] in str(caught.value)
    assert SECRET not in str(caught.value)
    assert isinstance(line["exc_info"], ZeroDivisionError)
    assert not caught.value.transient


@pytest.mark.parametrize("method", [COROUTINE, UPLOAD, HOT])
async def test_rejected_call_raises_the_servers_error(method: str) -> None:
    async with served_methods(**methods_of_each_kind(lose_lease)) as channel:
        with pytest.raises(LeaseLostError):
            await make_call(channel, method)


@pytest.mark.parametrize("method", [COROUTINE, UPLOAD, HOT])
async def test_call_without_token_is_not_served(method: str) -> None:
    served: list[str] = []

    def act() -> bytes:
        served.append(method)
        return b""

    async with served_methods(let_in=False, **methods_of_each_kind(act)) as channel:
        with pytest.raises(UnauthenticatedError):
            await make_call(channel, method)

    assert not served


async def test_error_in_the_dispatch_itself_is_an_incident() -> None:
    def failing_clock() -> datetime:
        raise ZeroDivisionError(SECRET)

    async with served_methods(now=failing_clock, **methods_of_each_kind(bytes)) as channel:
        with pytest.raises(WorldError, match="incident") as caught:
            await make_call(channel, HOT)

    assert SECRET not in str(caught.value)


async def test_failing_stream_delivers_messages_and_then_the_error() -> None:
    async with served_methods(**methods_of_each_kind(lose_lease)) as channel:
        messages = aiter(channel.unary_stream(STREAM)(b""))
        assert await anext(messages) == b"first"
        with pytest.raises(LeaseLostError) as caught:
            await anext(messages)

    assert (caught.value.job_id, caught.value.attempt, caught.value.why) == (7, 2, "it ran out")


async def test_uploaded_chunks_arrive_in_order() -> None:
    async def join(chunks: AsyncIterator[bytes], _call: Any) -> bytes:
        return b"".join([chunk async for chunk in chunks])

    async with served_methods(UploadFile=grpc.stream_unary_rpc_method_handler(join, *CODERS)) as channel:
        assert await upload(channel, *(bytes([number]) for number in range(100))) == bytes(range(100))


async def test_call_without_request_is_rejected() -> None:
    async def empty() -> AsyncIterator[bytes]:
        return
        yield b""

    async with served_methods(**methods_of_each_kind(bytes)) as channel:
        with pytest.raises(InvalidInputError, match="the call has no request"):
            await channel.stream_unary(COROUTINE)(empty())


@pytest.mark.parametrize(
    "sent",
    [TraceContext("ab" * 16, "cd" * 8, sampled=True), TraceContext("ab" * 16, "cd" * 8), TraceContext("ab" * 16)],
    ids=["sampled", "not sampled", "undecided"],
)
async def test_trace_of_the_caller_is_bound_in_the_handler(sent: TraceContext) -> None:
    traces: list[object] = []

    def act() -> bytes:
        traces.append(current_trace())
        return caller().owner.encode()

    async with served_methods(**methods_of_each_kind(act)) as channel:
        with trace_bound(sent):
            assert await channel.unary_unary(COROUTINE)(b"") == b"alice"

    assert traces == [sent]


@pytest.mark.parametrize("method", [COROUTINE, UPLOAD, HOT])
async def test_refused_call_is_logged_with_the_trace_of_its_caller(method: str) -> None:
    with capture_logs() as logs:
        async with served_methods(**methods_of_each_kind(lose_lease)) as channel:
            with trace_bound(TraceContext("ab" * 16)), pytest.raises(LeaseLostError):
                await make_call(channel, method)

    assert [line["trace_id"] for line in logs if line["event"] == "call refused"] == ["ab" * 16]


async def test_hot_call_can_be_answered_from_another_thread() -> None:
    def submit(_request: bytes, call: Call[bytes]) -> None:
        answer = f"{call.identity.owner} {30 < call.time_remaining() < 61}".encode()
        threading.Thread(target=call.answer, args=(answer,)).start()

    async with served_methods(**hot_method(submit)) as channel:
        assert await channel.unary_unary(HOT)(b"", timeout=60) == b"alice True"


async def test_hot_call_can_be_answered_with_a_future() -> None:
    futures: list[Future[bytes]] = []

    def submit(request: bytes, call: Call[bytes]) -> None:
        future: Future[bytes] = Future()
        future.add_done_callback(call.answer_with)
        if request:
            future.set_result(request)
        else:
            future.set_exception(LeaseLostError(7, 2, "it ran out"))
        futures.append(future)

    async with served_methods(**hot_method(submit)) as channel:
        assert await channel.unary_unary(HOT)(b"well") == b"well"
        with pytest.raises(LeaseLostError):
            await channel.unary_unary(HOT)(b"")


async def test_hot_call_can_continue_as_a_coroutine() -> None:
    async def wait() -> bytes:
        return caller().owner.encode()

    async with served_methods(**hot_method(lambda _request, call: call.answer_async(wait))) as channel:
        assert await channel.unary_unary(HOT)(b"") == b"alice"


@pytest.mark.parametrize("method", [HOT, COROUTINE])
async def test_handler_of_a_cancelled_call_is_cancelled(method: str) -> None:
    is_waiting, is_cancelled = asyncio.Event(), asyncio.Event()

    async def wait(*_: Any) -> bytes:
        is_waiting.set()
        try:
            return await asyncio.Future()
        finally:
            is_cancelled.set()

    methods: Mapping[str, Any] = {"GetJobs": grpc.unary_unary_rpc_method_handler(wait, *CODERS)}
    async with served_methods(**methods, **hot_method(lambda _request, call: call.answer_async(wait))) as channel:
        call = asyncio.ensure_future(make_call(channel, method))
        await is_waiting.wait()
        call.cancel()
        async with asyncio.timeout(10):
            await is_cancelled.wait()


async def test_failing_callback_affects_no_other_call() -> None:
    def serve(request: bytes, call: Call[bytes]) -> None:
        if request == b"fails":
            call.send(b"", fail)
        else:
            call.answer(b"served")

    async with served_methods(**hot_method(serve)) as channel:
        fails = channel.unary_stream(HOT)(b"fails")
        assert await anext(aiter(fails)) == b""
        assert await channel.unary_unary(HOT)(b"", timeout=10) == b"served"
        fails.cancel()


async def test_slow_reader_applies_back_pressure() -> None:
    sent: list[int] = []
    many, size = 1000, 1 << 20

    async def stream(_request: Any, _call: Any) -> AsyncIterator[bytes]:
        for number in range(many):
            sent.append(number)
            yield bytes(size)

    methods = dict(methods_of_each_kind(bytes)) | {"WatchEvents": grpc.unary_stream_rpc_method_handler(stream, *CODERS)}
    async with served_methods(**methods) as channel:
        messages = aiter(channel.unary_stream(STREAM)(b""))
        for _ in range(3):
            assert len(await anext(messages)) == size
        await channel.unary_unary(COROUTINE)(b"")

    assert len(sent) < many / 10


async def test_slow_requests_block_no_other_call() -> None:
    never = asyncio.Event()

    async def slow_request() -> AsyncIterator[bytes]:
        await never.wait()
        yield b""

    async with served_methods(**methods_of_each_kind(bytes)) as channel:
        slow_calls = [asyncio.ensure_future(channel.stream_unary(HOT)(slow_request())) for _ in range(50)]
        await asyncio.sleep(0)
        assert await channel.unary_unary(HOT)(b"") == b""
        for call in slow_calls:
            call.cancel()
        await asyncio.gather(*slow_calls, return_exceptions=True)
