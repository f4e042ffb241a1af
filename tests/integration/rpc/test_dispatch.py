"""How calls of every kind are taken and answered, whoever answers them: errors, causes, incidents, cancellation."""

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
import structlog
from structlog.testing import capture_logs

from pilotage.errors import InvalidInputError, LeaseLostError, UnauthenticatedError, WorldError
from pilotage.telemetry import cause_bound
from pilotage_server.rpc.framework.calls import Call, caller, hot
from support.fake_job_service import CODERS, COROUTINE, HOT, STREAM, UPLOAD, doorway, hot_method

SECRET = "do not tell"


def every_kind(act: Callable[[], bytes]) -> Mapping[str, Any]:
    """Return methods of each kind that all do the same."""

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


def failing() -> bytes:
    raise ZeroDivisionError(SECRET)


def losing() -> bytes:
    raise LeaseLostError(7, 2, "it ran out")


async def upload_of(channel: Any, *pieces: bytes) -> Any:
    async def sent() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return await channel.stream_unary(UPLOAD)(sent())


async def call_of(channel: Any, method: str) -> Any:
    return await upload_of(channel, b"x") if method == UPLOAD else await channel.unary_unary(method)(b"")


class Thing:
    """Something that a call has to do with."""


_OF_THE_CALL: ContextVar[Thing] = ContextVar("of_the_call")


async def test_a_call_that_is_over_leaves_nothing_for_the_collector_of_garbage() -> None:
    seen: list[weakref.ref[Thing]] = []

    async def unary(_request: Any, _call: Any) -> bytes:
        thing = Thing()
        _OF_THE_CALL.set(thing)
        seen.append(weakref.ref(thing))
        return b""

    gc.disable()
    try:
        async with doorway(GetJobs=grpc.unary_unary_rpc_method_handler(unary, *CODERS)) as channel:
            await channel.unary_unary(COROUTINE)(b"")
        (thing,) = seen
        assert thing() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("method", [COROUTINE, UPLOAD, HOT])
async def test_an_unforeseen_failure_is_an_incident_that_the_log_tells_of(method: str) -> None:
    with capture_logs() as logs:
        async with doorway(**every_kind(failing)) as channel:
            with pytest.raises(WorldError) as failed:
                await call_of(channel, method)

    (line,) = [line for line in logs if line["event"] == "call failed"]
    assert line["incident"] in str(failed.value)
    assert SECRET not in str(failed.value)
    assert isinstance(line["exc_info"], ZeroDivisionError)
    assert not failed.value.transient


@pytest.mark.parametrize("method", [COROUTINE, UPLOAD, HOT])
async def test_a_refused_call_raises_the_servers_error(method: str) -> None:
    async with doorway(**every_kind(losing)) as channel:
        with pytest.raises(LeaseLostError):
            await call_of(channel, method)


@pytest.mark.parametrize("method", [COROUTINE, UPLOAD, HOT])
async def test_nothing_of_a_call_without_token_is_served(method: str) -> None:
    served: list[str] = []

    def act() -> bytes:
        served.append(method)
        return b""

    async with doorway(let_in=False, **every_kind(act)) as channel:
        with pytest.raises(UnauthenticatedError):
            await call_of(channel, method)

    assert not served


async def test_a_failure_at_the_door_itself_is_an_incident_too() -> None:
    def no_time() -> datetime:
        raise ZeroDivisionError(SECRET)

    async with doorway(now=no_time, **every_kind(bytes)) as channel:
        with pytest.raises(WorldError, match="incident") as failed:
            await call_of(channel, HOT)

    assert SECRET not in str(failed.value)


async def test_a_stream_that_fails_gives_what_it_had_and_then_the_error() -> None:
    async with doorway(**every_kind(losing)) as channel:
        messages = aiter(channel.unary_stream(STREAM)(b""))
        assert await anext(messages) == b"first"
        with pytest.raises(LeaseLostError) as failed:
            await anext(messages)

    assert (failed.value.job_id, failed.value.attempt, failed.value.why) == (7, 2, "it ran out")


async def test_an_upload_comes_in_the_order_in_which_it_was_sent() -> None:
    async def join(pieces: AsyncIterator[bytes], _call: Any) -> bytes:
        return b"".join([piece async for piece in pieces])

    async with doorway(UploadFile=grpc.stream_unary_rpc_method_handler(join, *CODERS)) as channel:
        assert await upload_of(channel, *(bytes([number]) for number in range(100))) == bytes(range(100))


async def test_a_call_that_brings_no_request_is_refused() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        return
        yield b""

    async with doorway(**every_kind(bytes)) as channel:
        with pytest.raises(InvalidInputError, match="the call has no request"):
            await channel.stream_unary(COROUTINE)(nothing())


async def test_the_callers_cause_is_bound_where_the_call_is_served() -> None:
    causes: list[object] = []

    def act() -> bytes:
        causes.append(structlog.contextvars.get_contextvars().get("cause"))
        return caller().owner.encode()

    async with doorway(**every_kind(act)) as channel:
        with cause_bound("cause-4711"):
            assert await channel.unary_unary(COROUTINE)(b"") == b"alice"

    assert causes == ["cause-4711"]


async def test_a_hot_call_knows_its_caller_and_its_time_and_is_answered_from_another_thread() -> None:
    def submit(_request: bytes, call: Call[bytes]) -> None:
        told = f"{call.identity.owner} {30 < call.time_remaining() < 61}".encode()
        threading.Thread(target=call.answer, args=(told,)).start()

    async with doorway(**hot_method(submit)) as channel:
        assert await channel.unary_unary(HOT)(b"", timeout=60) == b"alice True"


async def test_a_hot_call_is_answered_with_what_a_future_brings() -> None:
    futures: list[Future[bytes]] = []

    def submit(request: bytes, call: Call[bytes]) -> None:
        future: Future[bytes] = Future()
        future.add_done_callback(call.answer_with)
        if request:
            future.set_result(request)
        else:
            future.set_exception(LeaseLostError(7, 2, "it ran out"))
        futures.append(future)

    async with doorway(**hot_method(submit)) as channel:
        assert await channel.unary_unary(HOT)(b"well") == b"well"
        with pytest.raises(LeaseLostError):
            await channel.unary_unary(HOT)(b"")


async def test_a_hot_call_can_go_on_as_a_coroutine() -> None:
    async def wait() -> bytes:
        return caller().owner.encode()

    async with doorway(**hot_method(lambda _request, call: call.answer_async(wait))) as channel:
        assert await channel.unary_unary(HOT)(b"") == b"alice"


@pytest.mark.parametrize("method", [HOT, COROUTINE])
async def test_what_waits_for_a_caller_that_goes_is_cancelled(method: str) -> None:
    waits, is_cancelled = asyncio.Event(), asyncio.Event()

    async def wait(*_: Any) -> bytes:
        waits.set()
        try:
            return await asyncio.Future()
        finally:
            is_cancelled.set()

    methods: Mapping[str, Any] = {"GetJobs": grpc.unary_unary_rpc_method_handler(wait, *CODERS)}
    async with doorway(**methods, **hot_method(lambda _request, call: call.answer_async(wait))) as channel:
        call = asyncio.ensure_future(call_of(channel, method))
        await waits.wait()
        call.cancel()
        async with asyncio.timeout(10):
            await is_cancelled.wait()


async def test_what_fails_when_it_is_called_back_leaves_all_other_calls_to_be_served() -> None:
    def serve(request: bytes, call: Call[bytes]) -> None:
        if request == b"fails":
            call.send(b"", failing)
        else:
            call.answer(b"served")

    async with doorway(**hot_method(serve)) as channel:
        fails = channel.unary_stream(HOT)(b"fails")
        assert await anext(aiter(fails)) == b""
        assert await channel.unary_unary(HOT)(b"", timeout=10) == b"served"
        fails.cancel()


async def test_who_reads_a_stream_slowly_holds_it_back() -> None:
    sent: list[int] = []
    many, size = 1000, 1 << 20

    async def stream(_request: Any, _call: Any) -> AsyncIterator[bytes]:
        for number in range(many):
            sent.append(number)
            yield bytes(size)

    methods = dict(every_kind(bytes)) | {"WatchEvents": grpc.unary_stream_rpc_method_handler(stream, *CODERS)}
    async with doorway(**methods) as channel:
        messages = aiter(channel.unary_stream(STREAM)(b""))
        for _ in range(3):
            assert len(await anext(messages)) == size
        await channel.unary_unary(COROUTINE)(b"")

    assert len(sent) < many / 10


async def test_who_is_slow_to_send_his_request_keeps_nobody_waiting() -> None:
    never = asyncio.Event()

    async def hesitant() -> AsyncIterator[bytes]:
        await never.wait()
        yield b""

    async with doorway(**every_kind(bytes)) as channel:
        hesitants = [asyncio.ensure_future(channel.stream_unary(HOT)(hesitant())) for _ in range(50)]
        await asyncio.sleep(0)
        assert await channel.unary_unary(HOT)(b"") == b""
        for call in hesitants:
            call.cancel()
        await asyncio.gather(*hesitants, return_exceptions=True)
