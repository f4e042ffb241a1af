"""Clients and pilots with several server addresses continue when a server crashes, even during a call."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from pilotage.errors import WorldError
from pilotage.rpc.channel import open_async_channel
from pilotage.v1 import job_service_pb2, job_service_pb2_grpc, matcher_service_pb2_grpc
from support.postgresql import PostgresqlServer
from support.process_grid import QUEUE, TREE, ProcessGrid
from support.processes import until
from support.server import RunningServer, ServerFleet, Token, endpoint_of, request_id, running_server, server_fleet
from support.wire_grid import WireGrid, a_job, submission

pytestmark = pytest.mark.process

CALLERS = 6
LONG_S = 50.0
"""Waiting calls end by an event; no test waits this long."""


@pytest.fixture
def fleet(tmp_path: Path, postgresql_server: PostgresqlServer) -> Iterator[ServerFleet]:
    """Return two servers on one database with the tree of wire and process grids."""
    url = postgresql_server.new_database()
    try:
        with server_fleet(tmp_path, url.render_as_string(hide_password=False), 2, heartbeat_s=1) as servers:
            WireGrid(servers.servers[0]).put_tree(json.dumps(TREE))
            yield servers
    finally:
        postgresql_server.drop(url)


@asynccontextmanager
async def channel_to(fleet: ServerFleet, token: Token) -> AsyncIterator[grpc.aio.Channel]:
    """Yield a separate channel to all servers, connected to one of them."""
    endpoint = endpoint_of(tuple(server.address for server in fleet.servers), token)
    async with open_async_channel(endpoint, timeout_s=LONG_S) as channel:
        yield channel


async def kill_each_in_turn(fleet: ServerFleet) -> None:
    """Kill every server once, while another one serves."""
    for server in fleet.servers:
        server.kill()
        await asyncio.to_thread(server.start)


async def test_waiting_calls_survive_server_crashes(fleet: ServerFleet) -> None:
    grid = WireGrid(fleet.servers[0])
    (job_id,) = grid.submit(a_job())
    pilot = grid.start_pilot(QUEUE)
    request = job_service_pb2.WaitForJobsRequest(job_ids=[job_id], timeout_s=LONG_S)

    async def wait() -> bool:
        async with channel_to(fleet, grid.server.token(vo=grid.vo)) as channel:
            jobs: Any = job_service_pb2_grpc.JobServiceStub(channel)
            await jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=[job_id]))
            waiting.release()
            return bool((await jobs.WaitForJobs(request)).all_final)

    waiting = asyncio.Semaphore(0)
    waits = [asyncio.create_task(wait()) for _ in range(CALLERS)]
    for _ in range(CALLERS):
        await waiting.acquire()
    await kill_each_in_turn(fleet)
    (match,) = (await asyncio.to_thread(pilot.request_jobs, wait_s=20)).matches
    await asyncio.to_thread(pilot.finish, match.job_id)

    assert await asyncio.gather(*waits) == [True] * CALLERS
    grid.close()


async def test_waiting_pilots_get_jobs_after_server_crashes(fleet: ServerFleet) -> None:
    grid = WireGrid(fleet.servers[0])
    pilots = [grid.start_pilot(QUEUE) for _ in range(CALLERS)]

    async def poll(number: int) -> list[int]:
        async with channel_to(fleet, pilots[number].token) as channel:
            matcher: Any = matcher_service_pb2_grpc.MatcherServiceStub(channel)
            request = pilots[number].request(wait_s=LONG_S)
            return [match.job_id for match in (await matcher.RequestJobs(request, timeout=LONG_S + 10)).matches]

    polls = [asyncio.create_task(poll(number)) for number in range(CALLERS)]
    await kill_each_in_turn(fleet)
    job_ids = await asyncio.to_thread(grid.submit, *(a_job() for _ in range(CALLERS)))

    assert sorted(job_id for poll in await asyncio.gather(*polls) for job_id in poll) == sorted(job_ids)
    grid.close()


async def test_submissions_have_one_effect_across_server_crashes(fleet: ServerFleet) -> None:
    grid = WireGrid(fleet.servers[0])
    all_killed = asyncio.Event()

    async def submit_until_killed() -> list[int]:
        job_ids: list[int] = []
        async with channel_to(fleet, grid.server.token(vo=grid.vo)) as channel:
            jobs: Any = job_service_pb2_grpc.JobServiceStub(channel)
            while not all_killed.is_set():
                job_ids += (await jobs.SubmitJobs(submission([a_job()], request_id()))).job_ids
        return job_ids

    submitters = [asyncio.create_task(submit_until_killed()) for _ in range(CALLERS)]
    await kill_each_in_turn(fleet)
    all_killed.set()
    acknowledged = [job_id for job_ids in await asyncio.gather(*submitters) for job_id in job_ids]

    page = job_service_pb2.ListJobsRequest(page_size=1000)
    listed: list[int] = []
    while not listed or page.page_token:
        answer = await asyncio.to_thread(grid.jobs.ListJobs, page)
        listed += [job.id for job in answer.jobs]
        page.page_token = answer.next_page_token
    assert sorted(listed) == sorted(acknowledged)
    grid.close()


async def test_pilot_fails_over_to_the_other_server(fleet: ServerFleet, tmp_path: Path) -> None:
    first, second = fleet.servers
    here, there = ProcessGrid(first, tmp_path), ProcessGrid(second, tmp_path)
    async with here.pilot(server=[first.address, second.address]):
        assert (await here.done(here.submit(script="true"))).exit_code == 0
        first.kill()
        assert (await there.done(there.submit(script="true"))).exit_code == 0
        await asyncio.to_thread(first.start)
        second.kill()
        assert (await here.done(here.submit(script="true"))).exit_code == 0


async def test_server_starts_although_its_database_crashes_meanwhile(
    tmp_path: Path, postgresql_server: PostgresqlServer
) -> None:
    url = postgresql_server.new_database()
    server = RunningServer(tmp_path, database=url.render_as_string(hide_password=False))
    try:
        with postgresql_server.schema_locked(url) as end_waiting:
            server.launch()
            await until(lambda: end_waiting() > 0)
        server.wait_until_ready()
    finally:
        server.kill()
        postgresql_server.drop(url)


def test_error_of_the_database_is_one_line_of_the_log_and_hidden_from_callers(
    tmp_path: Path, postgresql_server: PostgresqlServer
) -> None:
    url = postgresql_server.new_database()
    try:
        with running_server(tmp_path, database=url.render_as_string(hide_password=False), log_json=False) as server:
            with server.channel(server.token(), timeout_s=5.0) as channel:
                postgresql_server.refuse_connections(url)
                with pytest.raises(WorldError) as failed:
                    job_service_pb2_grpc.JobServiceStub(channel).ListJobs(job_service_pb2.ListJobsRequest())
            lines = server.log().splitlines()
            postgresql_server.accept_connections(url)
    finally:
        postgresql_server.drop(url)
    assert str(failed.value) == "the database is not available; try again later"
    assert any("call refused" in line and str(url.database) in line for line in lines)
    assert all(re.match(r"\d{4}-\d\d-\d\dT", line) for line in lines), lines
