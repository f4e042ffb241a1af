"""A server as a process: how it starts, what it refuses, how it ends, what survives."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from pilotage.errors import ServerUnreachableError, WorldError
from pilotage.v1 import (
    identity_service_pb2,
    identity_service_pb2_grpc,
    job_service_pb2,
)
from support.polls import Polls
from support.postgresql_process import PostgresqlServer
from support.server import RunningServer, request_id, running_server
from support.wire_grid import WireGrid, a_job

TIMEOUT_S = 60


def run_command(*arguments: str, before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pilotage_server.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, preexec_fn=before)


def assert_one_clear_line(done: subprocess.CompletedProcess[str], words: str, code: int = 1) -> None:
    lines = done.stderr.strip().splitlines()
    assert done.returncode == code, done.stderr
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("pilotage-server: ")
    assert words in lines[0]


@pytest.fixture
def grid(server: RunningServer) -> Iterator[WireGrid]:
    grid = WireGrid(server)
    grid.put_tree()
    yield grid
    grid.close()


def test_the_ready_file_has_the_address_and_goes_with_the_server(server: RunningServer) -> None:
    ready = server.data / "ready.json"
    host, port = json.loads(ready.read_text())["address"].split(":")
    socket.create_connection((host, int(port))).close()

    assert server.stop() == 0
    assert not ready.exists()


def test_a_second_server_on_the_same_data_is_refused(server: RunningServer) -> None:
    second = run_command("run", "--data", str(server.data), "--listen", "127.0.0.1:0")

    assert server.process is not None
    assert_one_clear_line(second, f"another server works with {server.data} already (process {server.process.pid})")


def test_a_taken_port_is_one_clear_line(server: RunningServer, tmp_path: Path) -> None:
    second = run_command("run", "--data", str(tmp_path / "other"), "--listen", server.address)

    assert_one_clear_line(second, f"cannot listen at {server.address}: Address already in use")


def test_a_data_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert_one_clear_line(
        run_command("run", "--data", str(tmp_path / "file" / "data"), "--listen", "127.0.0.1:0"),
        "cannot be used: Not a directory",
    )


def test_a_full_disk_at_the_start_is_one_clear_line(tmp_path: Path) -> None:
    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = run_command("run", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", before=no_room)

    assert_one_clear_line(done, "database")


def test_a_key_that_others_can_read_is_one_clear_line(tmp_path: Path) -> None:
    assert run_command("token", "--data", str(tmp_path), "--role", "user").returncode == 0
    (tmp_path / "keys" / "tokens.pem").chmod(0o644)

    done = run_command("run", "--data", str(tmp_path), "--listen", "127.0.0.1:0")

    assert_one_clear_line(done, "is open to others (mode 644)")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "0.0.0.0:0"], "tls_cert"),
        (["--listen", "nowhere"], "listen"),
        (["--config", "/does/not/exist.toml"], "there is no file"),
        (["--database", "nonsense"], "is not a URL of sqlite or postgresql"),
        (["--database", "mysql://host/name"], "is not a URL of sqlite or postgresql"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(tmp_path: Path, arguments: list[str], words: str) -> None:
    assert_one_clear_line(run_command("run", "--data", str(tmp_path), *arguments), words, code=2)


def test_a_database_that_does_not_answer_is_one_clear_line(tmp_path: Path) -> None:
    nobody = "postgresql+psycopg://somebody@127.0.0.1:1/jobs"

    done = run_command("run", "--data", str(tmp_path), "--listen", "127.0.0.1:0", "--database", nobody)

    assert_one_clear_line(done, "the database does not serve")


def test_a_certificate_that_is_none_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(f'tls_cert = "{tmp_path}/config.toml"\ntls_key = "{tmp_path}/absent"\n')

    where = ("--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    done = run_command("run", *where, "--config", str(tmp_path / "config.toml"))

    assert_one_clear_line(done, "cannot be used")


def test_a_token_signed_offline_opens_the_door(server: RunningServer) -> None:
    done = run_command("token", "--data", str(server.data), "--owner", "carol", "--vo", "sea", "--role", "operator")

    with server.channel(done.stdout.strip()) as channel:
        stub = identity_service_pb2_grpc.IdentityServiceStub(channel)
        seen = stub.WhoAmI(identity_service_pb2.WhoAmIRequest())

    assert (seen.owner, seen.vo, list(seen.roles)) == ("carol", "sea", ["operator"])


def test_bootstrap_tokens_are_for_their_owner_alone(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    with running_server(tmp_path / "data", arguments=["--bootstrap-tokens", str(tokens), "--vo", "sea"]) as server:
        for name in ("user", "operator", "admin", "agent"):
            file = tokens / f"{name}.token"
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            with server.channel(file.read_text().strip()) as channel:
                stub = identity_service_pb2_grpc.IdentityServiceStub(channel)
                assert name in stub.WhoAmI(identity_service_pb2.WhoAmIRequest()).roles


def test_what_was_acknowledged_survives_a_crash(grid: WireGrid) -> None:
    server = grid.server
    job_ids = grid.submit(a_job(Memory=2000), a_job())
    pilot = grid.start_pilot()
    (match,) = pilot.ask().matches
    assert pilot.report(match.job_id).accepted

    server.kill()
    server.start()

    assert {grid.state_of(job_id) for job_id in job_ids} == {"RUNNING", "WAITING"}
    assert pilot.heartbeat(leases=[{"job_id": match.job_id, "attempt": 1}]).renewed
    pilot.finish(match.job_id)
    assert grid.state_of(match.job_id) == "DONE"
    assert pilot.ask().matches


def test_a_repeated_request_after_a_crash_has_one_effect(grid: WireGrid) -> None:
    id_ = request_id()
    before = grid.submit(a_job(), id_=id_)

    grid.server.kill()
    grid.server.start()

    assert grid.submit(a_job(), id_=id_) == before


def test_a_call_made_while_the_server_restarts_finds_the_new_one(grid: WireGrid) -> None:
    grid.server.kill()
    restart = threading.Thread(target=grid.server.start)
    restart.start()
    try:
        assert [grid.state_of(job_id) for job_id in _submit_patiently(grid)] == ["WAITING"]
    finally:
        restart.join()


def _submit_patiently(grid: WireGrid) -> list[int]:
    id_ = request_id()
    for _ in range(20):  # each call retries for some seconds by itself
        try:
            return grid.submit(a_job(), id_=id_)
        except ServerUnreachableError:
            continue
    raise AssertionError("the server did not come back")


def test_a_server_that_is_not_there_is_said_so(server: RunningServer) -> None:
    server.kill()

    with pytest.raises(ServerUnreachableError), server.channel("token") as channel:
        identity_service_pb2_grpc.IdentityServiceStub(channel).WhoAmI(identity_service_pb2.WhoAmIRequest())


async def test_a_server_that_stops_lets_waiting_calls_end(grid: WireGrid) -> None:
    (job_id,) = grid.submit(a_job(Memory=9999))
    async with Polls(grid) as polls:
        poll = await polls.begin(grid.start_pilot())
        wait = await polls.begin_wait(grid.server.token(vo=grid.vo), job_id)

        assert await asyncio.to_thread(grid.server.stop) == 0

        assert not (await poll).matches
        assert not (await wait).all_final


def test_a_disk_that_fills_is_told_to_the_caller_and_survived(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", max_file_bytes_on_disk=1_500_000) as server:
        grid = WireGrid(server)
        with pytest.raises(WorldError, match="database does not serve"):
            _submit_without_end(grid)
        assert grid.jobs.ListJobs(job_service_pb2.ListJobsRequest(page_size=1)).jobs
        assert server.process is not None
        assert server.process.poll() is None
        assert len(server.log().splitlines()) < 60
        grid.close()


def _submit_without_end(grid: WireGrid) -> None:
    for _ in range(1000):
        grid.submit(*(a_job() for _ in range(500)))


def test_leases_that_ended_give_their_jobs_back(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", lease_s=1, shortest_lease_s=1, expire_every_s=0.1) as server:
        grid = WireGrid(server)
        grid.put_tree()
        (job_id,) = grid.submit(a_job())
        assert grid.start_pilot().ask().matches
        other = grid.start_pilot()

        (match,) = other.ask(wait_s=30).matches

        assert (match.job_id, match.attempt) == (job_id, 2)
        grid.close()


def test_a_server_stands_on_postgresql(tmp_path: Path, postgresql_server: PostgresqlServer) -> None:
    url: URL = postgresql_server.new_database()
    try:
        with running_server(tmp_path / "data", database=url.render_as_string(hide_password=False)) as server:
            grid = WireGrid(server)
            grid.put_tree()
            (job_id,) = grid.submit(a_job(Memory=2000))
            pilot = grid.start_pilot()
            assert [match.job_id for match in pilot.ask(wait_s=20).matches] == [job_id]
            pilot.finish(job_id)
            assert grid.state_of(job_id) == "DONE"
            assert url.password is None or str(url.password) not in server.log()
            grid.close()
            assert server.stop() == 0
    finally:
        postgresql_server.drop(url)


async def test_what_one_server_does_another_on_the_same_database_hears(
    tmp_path: Path, postgresql_server: PostgresqlServer
) -> None:
    url = postgresql_server.new_database()
    options = {
        "database": url.render_as_string(hide_password=False),
        "signing_key": str(tmp_path / "key.pem"),
        "files": (tmp_path / "files").as_uri(),
    }
    try:
        with running_server(tmp_path / "a", **options) as one:
            here = WireGrid(one)
            here.put_tree()
            with running_server(tmp_path / "b", **options) as other:
                await _submit_here_run_there(here, WireGrid(other))
    finally:
        postgresql_server.drop(url)


async def _submit_here_run_there(here: WireGrid, there: WireGrid) -> None:
    there.vo = here.vo
    async with Polls(here) as waits, Polls(there) as polls:
        pilot = there.start_pilot()
        poll = await polls.begin(pilot)
        (job_id,) = await asyncio.to_thread(here.submit, a_job(Memory=2000))
        wait = await waits.begin_wait(here.server.token(vo=here.vo), job_id)
        assert [match.job_id for match in (await poll).matches] == [job_id]
        await asyncio.to_thread(pilot.finish, job_id)
        assert (await wait).all_final
    here.close()
    there.close()


def test_tls_guards_a_server_that_is_reached_from_elsewhere(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*request.split(), *names, *files], check=True, capture_output=True)
    with running_server(tmp_path / "data", tls_cert=str(certificate), tls_key=str(key)) as server:
        with server.encrypted_channel(server.token(), certificate.read_bytes()) as channel:
            stub = identity_service_pb2_grpc.IdentityServiceStub(channel)
            assert stub.WhoAmI(identity_service_pb2.WhoAmIRequest()).owner == "alice"
        with pytest.raises(ServerUnreachableError), server.channel(server.token()) as channel:
            identity_service_pb2_grpc.IdentityServiceStub(channel).WhoAmI(identity_service_pb2.WhoAmIRequest())


def test_a_server_that_stops_says_how_many_jobs_it_has_bound_and_how_often_others_were_quicker(grid: WireGrid) -> None:
    grid.submit(a_job())
    assert grid.start_pilot().ask().matches

    assert grid.server.stop() == 0
    last = json.loads(grid.server.log().splitlines()[-1])
    assert (last["event"], last["jobs_bound"], last["choices_missed"]) == ("server stopped", 1, 0)
