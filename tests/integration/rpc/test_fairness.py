"""Fairness at the door of a real server: feeds, calls in flight, and connections without a token."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from pilotage.errors import OverloadedError
from pilotage.rpc.channel import split_address
from pilotage.rpc.proof import PROOF_HEADER, BoundToken
from pilotage.rpc.status import error_of
from pilotage.v1 import (
    job_service_pb2,
    job_service_pb2_grpc,
    matcher_service_pb2,
    matcher_service_pb2_grpc,
)
from support.server import RunningServer, request_id, running_server
from support.wire_grid import QUEUE, WireGrid, WirePilot, a_job, submission

pytestmark = pytest.mark.process

SOON_S = 30.0


@contextmanager
def started_grid(data: Path, **options: Any) -> Iterator[WireGrid]:
    with running_server(data, **options) as server, closing(WireGrid(server)) as grid:
        grid.put_tree()
        yield grid


async def first_message(feed: Any) -> OverloadedError | None:
    """Return the error that refuses a feed; None = its first message has come."""
    try:
        await feed.read()
    except grpc.aio.AioRpcError as error:
        refused = error_of(error)
        assert isinstance(refused, OverloadedError)
        return refused
    return None


def metadata(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def proven(token: BoundToken, method: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a pilot's call of this method of the matcher service."""
    return (*metadata(token.token), (PROOF_HEADER, token.prove(f"/pilotage.v1.MatcherService/{method}")))


async def test_feeds_of_one_user_leave_room_for_others(tmp_path: Path) -> None:
    with started_grid(tmp_path / "data", max_calls_in_flight=4, max_open_calls_per_owner=20) as grid:
        mallory, alice = (metadata(grid.server.token(owner=name, vo=grid.vo)) for name in ("mallory", "alice"))
        async with grpc.aio.insecure_channel(grid.server.address) as channel:  # which repeats no refused call
            jobs: Any = job_service_pb2_grpc.JobServiceStub(channel)
            request, feeds, refusals = job_service_pb2.WatchEventsRequest(), [], []
            for _ in range(30):
                feeds.append(jobs.WatchEvents(request, metadata=mallory))
                refusals.append(await first_message(feeds[-1]))
            assert [refusal is None for refusal in refusals] == [True] * 20 + [False] * 10
            assert "mallory of the VO" in str(refusals[-1])
            assert "20 open calls" in str(refusals[-1])
            for _ in range(50):  # each event would wake 20 feeds if they were notified of it
                await jobs.SubmitJobs(a_submission(), metadata=alice)


async def test_heartbeats_are_served_while_users_fill_the_server(tmp_path: Path) -> None:
    with started_grid(tmp_path / "data", max_calls_in_flight=1, max_calls_in_flight_per_vo=1) as grid:
        pilot = grid.start_pilot()
        with closing(await asyncio.to_thread(_locked_database, grid.server)) as writer:
            async with grpc.aio.insecure_channel(grid.server.address) as channel:
                jobs: Any = job_service_pb2_grpc.JobServiceStub(channel)
                matcher: Any = matcher_service_pb2_grpc.MatcherServiceStub(channel)
                alice = metadata(grid.server.token(vo=grid.vo))
                submit = partial(jobs.SubmitJobs, metadata=alice)
                answers = [asyncio.ensure_future(_awaited(submit(a_submission()))) for _ in range(4)]
                refused, _ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
                request = matcher_service_pb2.ReportStateRequest(request_id=request_id())
                heartbeat = matcher.ReportState(request, metadata=proven(pilot.token, "ReportState"), timeout=SOON_S)
                with pytest.raises(grpc.aio.AioRpcError, match="under way"):
                    await submit(a_submission())  # by now the heartbeat has arrived too
                await asyncio.to_thread(writer.execute, "ROLLBACK")
                await heartbeat
                results = await asyncio.gather(*answers, return_exceptions=True)
    assert all(isinstance(each.exception(), grpc.aio.AioRpcError) for each in refused)
    assert any(isinstance(each, job_service_pb2.SubmitJobsResponse) for each in results)


def a_submission() -> job_service_pb2.SubmitJobsRequest:
    return submission([a_job()], request_id())


def _locked_database(server: RunningServer) -> Any:
    """Return a connection that blocks all writing calls until it rolls back."""
    writer = sqlite3.connect(server.data / "pilotage.db", isolation_level=None, timeout=30, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    return writer


async def _awaited(call: Any) -> Any:
    return await call


async def test_one_pilot_cannot_open_long_polls_without_end(tmp_path: Path) -> None:
    with started_grid(tmp_path / "data", max_open_calls_per_pilot=3) as grid:
        first, second = grid.start_pilot(), grid.start_pilot()
        async with grpc.aio.insecure_channel(grid.server.address) as channel:
            matcher: Any = matcher_service_pb2_grpc.MatcherServiceStub(channel)

            def poll(pilot: WirePilot) -> Any:
                return matcher.RequestJobs(pilot.request(wait_s=50.0), metadata=proven(pilot.token, "RequestJobs"))

            polls = [asyncio.ensure_future(_awaited(poll(first))) for _ in range(4)]
            (refused,), open_polls = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
            assert isinstance(error_of(refused.exception()), OverloadedError)  # type: ignore[arg-type]
            assert len(open_polls) == 3
            answer = asyncio.ensure_future(_awaited(poll(second)))
            await asyncio.to_thread(grid.submit, *(a_job() for _ in range(4)))
            assert (await answer).matches
            assert all([(await each).matches for each in open_polls])


def test_idle_sockets_without_token_lock_nobody_out(tmp_path: Path) -> None:
    with started_grid(tmp_path / "data", open_files=256) as grid, ExitStack() as open_sockets:
        address = split_address(grid.server.address)
        for _ in range(400):
            open_sockets.enter_context(socket.create_connection(address))
        assert grid.submit(a_job())
        assert grid.start_pilot(QUEUE).request_jobs().matches


def test_connection_that_says_nothing_is_closed(tmp_path: Path) -> None:
    with (
        running_server(tmp_path / "data", handshake_s=1) as server,
        socket.create_connection(split_address(server.address), timeout=SOON_S) as idle,
    ):
        while idle.recv(1024):  # the server's own settings, then the end of the stream
            pass
