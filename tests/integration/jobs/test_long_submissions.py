"""Long submissions to real servers: killed ones, repeated calls, and two servers at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from pilotage.job_description import JobDescription
from pilotage.v1 import job_service_pb2, job_service_pb2_grpc
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.operations.jobs.new_jobs import PART_JOBS
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.engine import Database, upgrade
from pilotage_server.storage.database.engine import closing as closing_database
from support.jobs import a_user
from support.postgresql import PostgresqlServer
from support.server import RunningServer, request_id, running_server, server_fleet
from support.wire_grid import WireGrid, submission

pytestmark = pytest.mark.process

JOBS = 20 * PART_JOBS
ARRAY = JobDescription("/bin/true", count=JOBS)
TIMEOUT_S = 300.0


def new_jobs(jobs: Any) -> Iterator[int]:
    """Yield the jobs of a user in the order of their first events, as they are stored."""
    for message in jobs.WatchEvents(job_service_pb2.WatchEventsRequest(), timeout=TIMEOUT_S):
        yield from (event.job_id for event in message.events)


def test_server_completes_what_a_killed_server_has_accepted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with closing_database(Database(f"sqlite:///{data}/pilotage.db")) as database:
        upgrade(database)
        accepted = database.write(
            lambda transaction: submit_jobs(transaction, ServerState(), a_user("alice", "sky"), single_groups([ARRAY]))
        )
    with running_server(data) as server, closing(WireGrid(server)) as grid:
        found = new_jobs(grid.user("alice", vo="sky"))
        assert tuple(next(found) for _ in range(JOBS)) == accepted.job_ids


def test_repeated_submission_is_completed_after_a_kill(tmp_path: Path) -> None:
    request = submission([ARRAY], request_id())
    with running_server(tmp_path / "data") as server, closing(WireGrid(server)) as grid, ThreadPoolExecutor(1) as calls:
        call = calls.submit(grid.jobs.SubmitJobs, request, timeout=TIMEOUT_S)
        first = next(new_jobs(grid.jobs))
        server.kill()
        call.exception()  # or its result, if it was faster
        server.start()
        channel = grid.channel(server.token(vo=grid.vo))
        grpc.channel_ready_future(channel).result(TIMEOUT_S)
        jobs: Any = job_service_pb2_grpc.JobServiceStub(channel)
        answer = jobs.SubmitJobs(request, timeout=TIMEOUT_S)
        assert list(answer.job_ids) == list(range(first, first + JOBS))
        assert all_events(jobs) == list(answer.job_ids)


def all_events(jobs: Any) -> list[int]:
    """Return the jobs of the events that are there now."""
    watch = jobs.WatchEvents(job_service_pb2.WatchEventsRequest(until_now=True), timeout=TIMEOUT_S)
    return [event.job_id for message in watch for event in message.events]


def test_repetition_at_another_server_gets_the_same_answer(tmp_path: Path, postgresql_server: PostgresqlServer) -> None:
    url = postgresql_server.new_database()
    request = submission([ARRAY], request_id())
    with server_fleet(tmp_path, url.render_as_string(hide_password=False), 2) as fleet:
        first, second = (WireGrid(server) for server in fleet.servers)
        second.vo, second.jobs = first.vo, second.user(vo=first.vo)
        with closing(first), closing(second), ThreadPoolExecutor(2) as calls:
            answers = [calls.submit(grid.jobs.SubmitJobs, request, timeout=TIMEOUT_S) for grid in (first, second)]
            job_ids = [list(answer.result().job_ids) for answer in answers]
            assert job_ids[0] == job_ids[1]
            assert all_events(second.jobs) == job_ids[0]
    postgresql_server.drop(url)


def test_server_serves_others_during_a_long_submission(server: RunningServer) -> None:
    with closing(WireGrid(server)) as grid, ThreadPoolExecutor(1) as calls:
        grid.put_tree()
        pilot = grid.start_pilot()
        call = calls.submit(grid.jobs.SubmitJobs, submission([ARRAY]), timeout=TIMEOUT_S)
        next(new_jobs(grid.jobs))
        pilot.heartbeat()
        (match,) = pilot.request_jobs().matches
        pilot.finish(match.job_id)
        assert grid.state_of(match.job_id) == "DONE"
        assert len(call.result().job_ids) == JOBS
