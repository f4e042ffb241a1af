"""Revocation over the wire: revoked tokens and pilots are refused by every call, every server, and after a restart."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import jwt
import pytest

from pilotage.errors import InvalidInputError, PermissionDeniedError, UnauthenticatedError
from pilotage.rpc.wire import queue_to_wire, time_from_wire
from pilotage.v1 import (
    identity_service_pb2,
    identity_service_pb2_grpc,
    job_service_pb2,
    matcher_service_pb2,
    pilot_service_pb2,
)
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage_client.api import Client
from pilotage_server.core.identity import Role
from support.postgresql import PostgresqlServer
from support.processes import until
from support.server import RunningServer, Token, request_id, running_server, server_fleet
from support.wire_grid import QUEUE, WireGrid, WirePilot, a_job, submission


@pytest.fixture
def grid(shared_server: RunningServer) -> Iterator[WireGrid]:
    grid = WireGrid(shared_server)
    grid.put_tree()
    yield grid
    grid.close()


def who_am_i(server: RunningServer, token: Token) -> identity_service_pb2.WhoAmIResponse:
    with server.channel(token) as channel:
        stub = identity_service_pb2_grpc.IdentityServiceStub(channel)
        return stub.WhoAmI(identity_service_pb2.WhoAmIRequest())


def is_refused(server: RunningServer, token: Token) -> bool:
    try:
        who_am_i(server, token)
    except UnauthenticatedError as error:
        return "revoked" in str(error)
    return False


def operator(grid: WireGrid) -> Client:
    return Client(grid.server.address, grid.server.token(Role.OPERATOR, owner="olga", vo=grid.vo))


def jti(token: str) -> str:
    return str(jwt.decode(token, options={"verify_signature": False})["jti"])


def revoke_pilot(grid: WireGrid, pilot: WirePilot, id_: str = "") -> pilot_service_pb2.RevokePilotsResponse:
    request = pilot_service_pb2.RevokePilotsRequest(
        request_id=id_ or request_id(), stamps=[pilot.stamp], reason="stolen"
    )
    return grid.pilots.RevokePilots(request)


def test_user_revokes_a_token_of_its_own(grid: WireGrid) -> None:
    stolen, present = grid.server.token(vo=grid.vo), grid.server.token(vo=grid.vo)
    with Client(grid.server.address, present) as client:
        revoked = client.revoke_token(stolen, reason="lost laptop")
        assert (revoked.kind, revoked.subject, revoked.owner, revoked.vo) == ("token", jti(stolen), "alice", grid.vo)
        assert revoked.expires == time_from_wire(who_am_i(grid.server, present).expires)
        assert [each.subject for each in client.revocations()] == [jti(stolen)]
    with pytest.raises(UnauthenticatedError, match=r"revoked by alice at .*: lost laptop"):
        who_am_i(grid.server, stolen)


def test_user_revokes_no_token_of_others(grid: WireGrid) -> None:
    token = grid.server.token(vo=grid.vo)
    others = grid.server.token(owner="bob", vo=grid.vo)
    with Client(grid.server.address, token) as client:
        orders: list[Callable[[], object]] = [
            lambda: client.revoke_token(others, reason="spite"),
            lambda: client.revoke_token_id(jti(others), reason="spite"),
            lambda: client.revoke_tokens_of("bob", vo=grid.vo, reason="spite"),
            lambda: client.revoke_tokens_of("alice", reason="too far"),
        ]
        for order in orders:
            with pytest.raises(PermissionDeniedError, match="your own tokens only"):
                order()
    who_am_i(grid.server, others)


def test_all_tokens_of_an_owner_until_now_are_refused(grid: WireGrid) -> None:
    before, elsewhere = grid.server.token(vo=grid.vo), grid.server.token(vo=f"{grid.vo}-2")
    with operator(grid) as client:
        client.revoke_tokens_of("alice", vo=grid.vo, reason="account closed")
    assert is_refused(grid.server, before)
    who_am_i(grid.server, elsewhere)
    who_am_i(grid.server, grid.server.token(vo=grid.vo))


def test_user_revokes_all_of_its_tokens_with_the_one_it_uses(grid: WireGrid) -> None:
    tokens = [grid.server.token(owner="carol", vo=grid.vo) for _ in range(2)]
    with Client(grid.server.address, tokens[0]) as client:
        assert client.revoke_tokens_of(reason="lost laptop").owner == "carol"
    assert all(is_refused(grid.server, token) for token in tokens)


def test_operator_revokes_by_id(grid: WireGrid) -> None:
    token = grid.server.token(vo=grid.vo)
    with operator(grid) as client:
        client.revoke_token_id(jti(token), reason="seen in a log")
        assert "alice" not in {each.owner for each in client.revocations() if each.subject == jti(token)}
    assert is_refused(grid.server, token)


@pytest.mark.parametrize(
    ("tokens", "where"),
    [
        ({}, "tokens"),
        ({"token": "nonsense"}, "token"),
        ({"token_id": identity_service_pb2.TokenId()}, "token_id.id"),
        ({"token_id": identity_service_pb2.TokenId(id="x", issuer="https://elsewhere/")}, "token_id.issuer"),
        ({"owner": identity_service_pb2.OwnerTokens(owner="pilot:abc")}, "owner.owner"),
        ({"owner": identity_service_pb2.OwnerTokens(owner="x"), "reason": ""}, "reason"),
    ],
)
def test_invalid_revocation_names_the_field(grid: WireGrid, tokens: dict[str, object], where: str) -> None:
    stub = identity_service_pb2_grpc.IdentityServiceStub(grid.channel(grid.server.token(Role.OPERATOR)))
    fields: dict[str, object] = {"request_id": request_id(), "reason": "because", **tokens}
    with pytest.raises(InvalidInputError) as caught:
        stub.RevokeTokens(identity_service_pb2.RevokeTokensRequest(**fields))  # type: ignore[arg-type]
    assert [violation.where for violation in caught.value.violations] == [where]


def test_repeated_revocation_has_one_effect(grid: WireGrid) -> None:
    stub = identity_service_pb2_grpc.IdentityServiceStub(grid.channel(grid.server.token(Role.OPERATOR)))
    owner = identity_service_pb2.OwnerTokens(owner="dave", vo=grid.vo)
    request = identity_service_pb2.RevokeTokensRequest(request_id=request_id(), reason="once", owner=owner)
    first = stub.RevokeTokens(request)
    later = grid.server.token(owner="dave", vo=grid.vo)
    assert stub.RevokeTokens(request) == first
    who_am_i(grid.server, later)


def test_token_of_a_pilot_is_revoked_by_its_stamp(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    with operator(grid) as client, pytest.raises(InvalidInputError, match=f"revoke the pilot {pilot.stamp}"):
        client.revoke_token(pilot.token.token, reason="stolen")


def calls_of(pilot: WirePilot, jobs: JobServiceStub, job: int) -> dict[str, Callable[[], object]]:
    content = b"result"
    piece = job_service_pb2.UploadFileRequest(
        checksum=hashlib.sha256(content).hexdigest(), size=len(content), content=content
    )
    return {
        "renew leases": lambda: pilot.heartbeat(leases=[matcher_service_pb2.HeldLease(job_id=job, attempt=1)]),
        "report results": lambda: pilot.finish(job),
        "request jobs": pilot.request_jobs,
        "renew its token": lambda: pilot.pilots.RenewToken(pilot_service_pb2.RenewTokenRequest()),
        "log in at the broker": lambda: pilot.pilots.GetBrokerLogin(pilot_service_pb2.GetBrokerLoginRequest()),
        "upload": lambda: jobs.UploadFile(iter([piece])),
        "read pools": lambda: pilot.matcher.GetSubmitPoolsForQueue(
            matcher_service_pb2.GetSubmitPoolsForQueueRequest(queues=[queue_to_wire(QUEUE)])
        ),
    }


def test_revoked_pilot_can_do_nothing(grid: WireGrid) -> None:
    (job,) = grid.submit(a_job())
    pilot = grid.start_pilot()
    assert [match.job_id for match in pilot.request_jobs().matches] == [job]
    pilot.report(job)
    id_ = request_id()
    assert revoke_pilot(grid, pilot, id_).revoked == revoke_pilot(grid, pilot, id_).revoked == 1
    for call in calls_of(pilot, JobServiceStub(grid.channel(pilot.token)), job).values():
        with pytest.raises(UnauthenticatedError, match="credential of the pilot ended"):
            call()
    assert grid.state_of(job) == "RUNNING"  # until its lease has run out
    shown = next(each for each in grid.list_pilots() if each.stamp == pilot.stamp)
    assert shown.reason == "revoked by olga: stolen"
    assert shown.HasField("credential_ends")


def test_secret_of_a_revoked_place_enrols_nobody(grid: WireGrid) -> None:
    register = pilot_service_pb2.RegisterPilotsRequest(
        request_id=request_id(), queue=queue_to_wire(QUEUE), count=1, vos=[grid.vo]
    )
    (credential,) = grid.pilots.RegisterPilots(register).pilots
    place = {"site": QUEUE.site, "ce": QUEUE.ce, "queue": QUEUE.queue}
    assert grid.pilots.RevokePilots(
        pilot_service_pb2.RevokePilotsRequest(request_id=request_id(), reason="site broken into", **place)
    ).revoked
    with pytest.raises(UnauthenticatedError, match="credential of the pilot ended"):
        grid.server.enrolled(credential.token)
    grid.start_pilot().request_jobs()


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({}, "stamps"),
        ({"stamps": ["x"], "site": "S"}, "stamps"),
        ({"stamps": ["x"], "ce": "C"}, "site"),
        ({"site": "NOWHERE"}, "site"),
        ({"stamps": ["x"], "reason": " "}, "reason"),
    ],
)
def test_invalid_revocation_of_pilots_names_the_field(grid: WireGrid, fields: dict[str, object], where: str) -> None:
    request = pilot_service_pb2.RevokePilotsRequest(
        **{"request_id": request_id(), "reason": "because", **fields}  # type: ignore[arg-type]
    )
    with pytest.raises(InvalidInputError) as caught:
        grid.pilots.RevokePilots(request)
    assert where in {violation.where for violation in caught.value.violations}


def test_users_revoke_no_pilots(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    with Client(grid.server.address, grid.server.token(vo=grid.vo)) as client, pytest.raises(PermissionDeniedError):
        client.revoke_pilots([pilot.stamp], reason="spite")


def test_open_feed_ends_with_its_token(grid: WireGrid) -> None:
    token = grid.server.token(owner="erin", vo=grid.vo)
    stub = JobServiceStub(grid.channel(token))
    stub.SubmitJobs(submission([a_job()]))
    feed = stub.WatchEvents(job_service_pb2.WatchEventsRequest(), timeout=60)
    assert next(feed).events
    with operator(grid) as client:
        client.revoke_token(token, reason="stolen")
    grid.user("erin").SubmitJobs(submission([a_job()]))
    with pytest.raises(UnauthenticatedError, match="revoked by olga"):
        list(feed)


async def test_revocations_outlive_restarts(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        grid = WireGrid(server)
        grid.put_tree()
        pilot, token = grid.start_pilot(), server.token(vo=grid.vo)
        revoke_pilot(grid, pilot)
        with operator(grid) as client:
            client.revoke_token(token, reason="stolen")
        assert '"tokens revoked"' in server.log()
        assert '"pilots revoked"' in server.log()
        server.kill()
        server.start()
        assert is_refused(server, token)
        assert is_refused(server, pilot.token)
        grid.close()


@pytest.mark.process
@pytest.mark.postgresql
async def test_revocations_reach_all_servers_of_a_database(tmp_path: Path, postgresql_server: PostgresqlServer) -> None:
    url = postgresql_server.new_database()
    try:
        with server_fleet(tmp_path, url.render_as_string(hide_password=False), 2) as fleet:
            one, other = fleet.servers
            grid = WireGrid(one)
            grid.put_tree()
            pilot, token, of_owner = grid.start_pilot(), one.token(vo=grid.vo), one.token(owner="bob", vo=grid.vo)
            for each in (pilot.token, token, of_owner):
                who_am_i(other, each)
            revoke_pilot(grid, pilot)
            with operator(grid) as client:
                client.revoke_token(token, reason="stolen")
                client.revoke_tokens_of("bob", vo=grid.vo, reason="account closed")
            for each in (pilot.token, token, of_owner):
                assert is_refused(one, each)
                await until(lambda each=each: is_refused(other, each))  # type: ignore[misc]
            grid.close()
    finally:
        postgresql_server.drop(url)
