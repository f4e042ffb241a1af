"""Rotation of the signing keys on running servers: no call is refused before, during and after it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jwt

from pilotage.errors import PilotageError, UnauthenticatedError
from pilotage.v1 import identity_service_pb2
from pilotage.v1.identity_service_pb2_grpc import IdentityServiceStub
from pilotage_server.core.identity import Role
from support.postgresql import PostgresqlServer
from support.processes import until
from support.server import RunningServer, server_fleet
from support.wire_grid import WireGrid, a_job

OVERLAP_S = 5


def key_of(token: str) -> str:
    return str(jwt.get_unverified_header(token)["kid"])


def new_token(server: RunningServer, admin: str) -> str:
    request = identity_service_pb2.IssueTokenRequest(owner="bob", vo="sky", roles=["user"], lifetime_s=60)
    with server.channel(admin) as channel:
        return str(IdentityServiceStub(channel).IssueToken(request).token)


def check(server: RunningServer, token: str) -> None:
    """Make a call with a token; raises UnauthenticatedError."""
    with server.channel(token) as channel:
        IdentityServiceStub(channel).WhoAmI(identity_service_pb2.WhoAmIRequest())


@contextmanager
def steady_calls(servers: list[RunningServer], tokens: list[str]) -> Iterator[list[PilotageError]]:
    """Call every server with every token all the time, each over its own connections; the list has the refusals."""
    refusals: list[PilotageError] = []
    stopping = threading.Event()

    def run() -> None:
        while not stopping.wait(0.05):
            for server in servers:
                for token in list(tokens):
                    try:
                        check(server, token)
                    except PilotageError as error:
                        refusals.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield refusals
    finally:
        stopping.set()
        thread.join()


async def test_keys_rotate_under_several_servers_without_a_refused_call(
    tmp_path: Path, postgresql_server: PostgresqlServer
) -> None:
    url = postgresql_server.new_database()
    try:
        with server_fleet(tmp_path, url.render_as_string(hide_password=False), 2, key_overlap_s=OVERLAP_S) as fleet:
            one, two = fleet.servers
            admin = one.token(Role.ADMIN)
            old_key = key_of(admin)
            tokens = [admin, new_token(two, admin)]
            grid = WireGrid(one)
            grid.put_tree()
            pilot = grid.start_pilot()
            with steady_calls(fleet.servers, tokens) as refusals:
                rotated = one.command("keys", "rotate")
                assert rotated.returncode == 0, rotated.stderr
                await until(lambda: all(key_of(new_token(each, admin)) != old_key for each in fleet.servers))
                tokens += [new_token(one, admin), new_token(two, admin)]  # each is accepted by the other server too
                (job_id,) = grid.submit(a_job())
                assert [match.job_id for match in pilot.request_jobs().matches] == [job_id]
                pilot.finish(job_id)
                assert "signs" in one.command("keys", "list").stdout
                kept = one.command("keys", "retire", old_key)
                assert kept.returncode == 1
                assert f"tokens of key {old_key} may be valid until" in kept.stderr
                assert "there is no signing key other" in one.command("keys", "retire", "other").stderr
            assert refusals == []
            assert one.command("keys", "retire", old_key, "--force").returncode == 0
            await until(lambda: all(is_refused(each, admin) for each in fleet.servers))
            check(two, tokens[-2])
            grid.close()
    finally:
        postgresql_server.drop(url)


def is_refused(server: RunningServer, token: str) -> bool:
    try:
        check(server, token)
    except UnauthenticatedError:
        return True
    return False
