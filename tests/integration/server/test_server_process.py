"""The server process: crash, restart, stop, full disk, PostgreSQL and TLS."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import URL

from pilotage.errors import ServerUnreachableError, WorldError
from pilotage.v1 import (
    identity_service_pb2,
    identity_service_pb2_grpc,
    job_service_pb2,
)
from support.long_polls import PendingPolls
from support.postgresql import PostgresqlServer
from support.processes import until
from support.server import RunningServer, request_id, running_server, self_signed_certificate
from support.wire_grid import WireGrid, a_job

pytestmark = pytest.mark.process


@pytest.fixture
def grid(server: RunningServer) -> Iterator[WireGrid]:
    """Return a grid at a server that the test may stop."""
    grid = WireGrid(server)
    grid.put_tree()
    yield grid
    grid.close()


def test_acknowledged_changes_survive_a_crash(grid: WireGrid) -> None:
    server = grid.server
    job_ids = grid.submit(a_job(Memory=2000), a_job())
    pilot = grid.start_pilot()
    (match,) = pilot.request_jobs().matches
    assert pilot.report(match.job_id).accepted

    server.kill()
    server.start()

    assert {grid.state_of(job_id) for job_id in job_ids} == {"RUNNING", "WAITING"}
    assert pilot.heartbeat(leases=[{"job_id": match.job_id, "attempt": 1}]).renewed
    pilot.finish(match.job_id)
    assert grid.state_of(match.job_id) == "DONE"
    assert pilot.request_jobs().matches


def test_database_is_private_even_after_it_was_not(grid: WireGrid) -> None:
    server = grid.server
    files = {path: stat.S_IMODE(path.stat().st_mode) for path in server.data.glob("pilotage.db*")}
    assert len(files) == 3
    assert set(files.values()) == {0o600}
    server.kill()
    for path in server.data.glob("pilotage.db*"):
        path.chmod(0o644)
    server.start()
    assert {stat.S_IMODE(path.stat().st_mode) for path in server.data.glob("pilotage.db*")} == {0o600}


def test_request_repeated_after_a_crash_has_one_effect(grid: WireGrid) -> None:
    id_ = request_id()
    before = grid.submit(a_job(), id_=id_)

    grid.server.kill()
    grid.server.start()

    assert grid.submit(a_job(), id_=id_) == before


def test_call_during_restart_reaches_the_new_server(grid: WireGrid) -> None:
    grid.server.kill()
    restart = threading.Thread(target=grid.server.start)
    restart.start()
    try:
        assert [grid.state_of(job_id) for job_id in _submit_with_retries(grid)] == ["WAITING"]
    finally:
        restart.join()


def _submit_with_retries(grid: WireGrid) -> list[int]:
    id_ = request_id()
    for _ in range(20):  # each call itself retries for some seconds
        try:
            return grid.submit(a_job(), id_=id_)
        except ServerUnreachableError:
            continue
    raise AssertionError("the server did not come back")


def test_stopped_server_is_unreachable(server: RunningServer) -> None:
    server.kill()

    with pytest.raises(ServerUnreachableError), server.channel("token") as channel:
        identity_service_pb2_grpc.IdentityServiceStub(channel).WhoAmI(identity_service_pb2.WhoAmIRequest())


async def test_stop_ends_waiting_calls(grid: WireGrid) -> None:
    (job_id,) = grid.submit(a_job(Memory=9999))
    async with PendingPolls(grid) as polls:
        poll = await polls.begin(grid.start_pilot())
        wait = await polls.begin_wait(grid.server.token(vo=grid.vo), job_id)

        assert await asyncio.to_thread(grid.server.stop) == 0

        assert not (await poll).matches
        assert not (await wait).all_final


def test_server_survives_a_full_disk(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", max_file_bytes_on_disk=1_500_000) as server:
        grid = WireGrid(server)
        with pytest.raises(WorldError, match="database is not available"):
            _fill_the_disk(grid)
        assert grid.jobs.ListJobs(job_service_pb2.ListJobsRequest(page_size=1)).jobs
        assert server.process is not None
        assert server.process.poll() is None
        assert len(server.log().splitlines()) < 60
        grid.close()


def _fill_the_disk(grid: WireGrid) -> None:
    for _ in range(1000):
        grid.submit(*(a_job() for _ in range(500)))


def test_expired_lease_requeues_the_job(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", lease_s=1, shortest_lease_s=1, expire_every_s=0.1) as server:
        grid = WireGrid(server)
        grid.put_tree()
        (job_id,) = grid.submit(a_job())
        assert grid.start_pilot().request_jobs().matches
        other = grid.start_pilot()

        (match,) = other.request_jobs(wait_s=30).matches

        assert (match.job_id, match.attempt) == (job_id, 2)
        grid.close()


def test_server_runs_on_postgresql(tmp_path: Path, postgresql_server: PostgresqlServer) -> None:
    url: URL = postgresql_server.new_database()
    try:
        with running_server(tmp_path / "data", database=url.render_as_string(hide_password=False)) as server:
            grid = WireGrid(server)
            grid.put_tree()
            (job_id,) = grid.submit(a_job(Memory=2000))
            pilot = grid.start_pilot()
            assert [match.job_id for match in pilot.request_jobs(wait_s=20).matches] == [job_id]
            pilot.finish(job_id)
            assert grid.state_of(job_id) == "DONE"
            assert url.password is None or str(url.password) not in server.log()
            grid.close()
            assert server.stop() == 0
    finally:
        postgresql_server.drop(url)


async def test_server_waits_for_its_database_at_start(tmp_path: Path, postgresql_server: PostgresqlServer) -> None:
    url = postgresql_server.new_database()
    postgresql_server.refuse_connections(url)
    server = RunningServer(tmp_path / "data", database=url.render_as_string(hide_password=False))
    server.data.mkdir()
    (server.data / "server.log").touch()
    starting = asyncio.create_task(asyncio.to_thread(server.start))
    try:
        await until(lambda: "server waits for its database" in server.log())
        assert not starting.done()
        postgresql_server.accept_connections(url)
        await starting
        with closing(WireGrid(server)) as grid:
            assert await asyncio.to_thread(grid.submit, a_job())
    finally:
        server.kill()
    postgresql_server.drop(url)


async def test_servers_on_one_database_notify_each_other(tmp_path: Path, postgresql_server: PostgresqlServer) -> None:
    url = postgresql_server.new_database()
    options = {
        "database": url.render_as_string(hide_password=False),
        "signing_key": str(tmp_path / "key.pem"),
        "files": (tmp_path / "files").as_uri(),
    }
    try:
        with running_server(tmp_path / "a", **options) as first:
            here = WireGrid(first)
            here.put_tree()
            with running_server(tmp_path / "b", **options) as other:
                await _submit_here_run_there(here, WireGrid(other))
    finally:
        postgresql_server.drop(url)


async def _submit_here_run_there(here: WireGrid, there: WireGrid) -> None:
    there.vo = here.vo
    async with PendingPolls(here) as waits, PendingPolls(there) as polls:
        pilot = there.start_pilot()
        poll = await polls.begin(pilot)
        (job_id,) = await asyncio.to_thread(here.submit, a_job(Memory=2000))
        wait = await waits.begin_wait(here.server.token(vo=here.vo), job_id)
        assert [match.job_id for match in (await poll).matches] == [job_id]
        await asyncio.to_thread(pilot.finish, job_id)
        assert (await wait).all_final
    here.close()
    there.close()


def test_tls_server_rejects_plaintext_connections(tmp_path: Path) -> None:
    certificate, key = self_signed_certificate(tmp_path)
    with running_server(tmp_path / "data", tls_cert=str(certificate), tls_key=str(key)) as server:
        with server.encrypted_channel(server.token(), certificate.read_bytes()) as channel:
            stub = identity_service_pb2_grpc.IdentityServiceStub(channel)
            assert stub.WhoAmI(identity_service_pb2.WhoAmIRequest()).owner == "alice"
        with pytest.raises(ServerUnreachableError), server.channel(server.token()) as channel:
            identity_service_pb2_grpc.IdentityServiceStub(channel).WhoAmI(identity_service_pb2.WhoAmIRequest())
        assert "certificate ends soon" in server.log()  # it is valid for a day


def test_stopped_server_logs_its_match_counts(grid: WireGrid) -> None:
    grid.submit(a_job())
    assert grid.start_pilot().request_jobs().matches

    assert grid.server.stop() == 0
    last = json.loads(grid.server.log().splitlines()[-1])
    assert (last["event"], last["jobs_bound"], last["choices_missed"]) == ("server stopped", 1, 0)
