"""Tokens of an outside issuer at a running server: scopes, key rotation, and issuers that are away, slow or unknown."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from pilotage import clock
from pilotage.errors import InvalidInputError, PermissionDeniedError, PilotageError, UnauthenticatedError, WorldError
from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage_client.api import Client
from pilotage_server.core.identity import Role
from support.issuer import JWKS, RunningIssuer, running_issuer
from support.processes import until
from support.server import RunningServer, running_server
from support.wire_grid import WireGrid, a_job, submission


@pytest.fixture
def issuer() -> Iterator[RunningIssuer]:
    with running_issuer() as found:
        yield found


def settings_of(issuer: RunningIssuer, **fields: object) -> list[dict[str, object]]:
    return [issuer.setting(unknown_key_every_s=1, **fields).model_dump(mode="json")]


@pytest.fixture
def server(issuer: RunningIssuer, tmp_path: Path) -> Iterator[RunningServer]:
    """Return a server that trusts the issuer, and whose operators are in a group."""
    issuers = settings_of(issuer, roles={"/cms/operators": ["operator"]}, needs_scopes=False)
    with running_server(tmp_path / "data", issuers=issuers) as running:
        yield running


def who_is(server: RunningServer, token: str) -> str:
    """Return the owner of a token, or why it is refused."""
    with Client(server.address, token) as client:
        try:
            return client.who_am_i().owner
        except PilotageError as error:
            return f"{type(error).__name__}: {error}"


async def test_scopes_of_a_user_permit_its_calls(issuer: RunningIssuer, server: RunningServer) -> None:
    await until(lambda: who_is(server, issuer.token(clock.now())) == "alice@iam")
    grid = WireGrid(server)
    grid.put_tree()

    def jobs(scope: str) -> JobServiceStub:
        return JobServiceStub(grid.channel(issuer.token(clock.now(), scope=scope)))

    (job,) = jobs("compute.create").SubmitJobs(submission([a_job()])).job_ids
    request = job_service_pb2.GetJobsRequest(job_ids=[job])
    (found,) = jobs("compute.read").GetJobs(request).jobs
    assert (found.owner, found.vo) == ("alice@iam", "cms")
    with pytest.raises(PermissionDeniedError, match=r"SubmitJobs needs the scope compute\.create; .* compute\.read"):
        jobs("compute.read").SubmitJobs(submission([a_job()]))
    with pytest.raises(PermissionDeniedError, match="GetJobs needs the scope"):
        jobs("storage.read:/").GetJobs(request)
    change = job_service_pb2.ChangeJobsRequest(
        request_id="1", job_ids=[job], change=job_service_pb2.JOB_CHANGE_REMOVE, reason="enough"
    )
    with pytest.raises(PermissionDeniedError, match=r"to remove jobs needs the scope compute\.cancel"):
        jobs("compute.modify").ChangeJobs(change)
    waiting = job_service_pb2.SearchJobsRequest(
        condition=job_service_pb2.JobCondition(states=[jobs_pb2.JOB_STATE_WAITING])
    )
    for scope in ("compute.read", "compute.modify", "compute.cancel"):
        assert [run.first for run in jobs(scope).SearchJobs(waiting).runs] == [job]
    assert not jobs("compute.cancel").ChangeJobs(change).results[0].refusal
    grid.close()


async def test_operators_of_an_issuer_are_those_of_a_group(issuer: RunningIssuer, server: RunningServer) -> None:
    token = issuer.token(clock.now(), groups=["/cms/operators"], scope="openid")
    await until(lambda: who_is(server, token) == "alice@iam")
    with Client(server.address, token) as client:
        assert client.bans() == []
    with (
        Client(server.address, issuer.token(clock.now(), scope="openid")) as client,
        pytest.raises(PermissionDeniedError),
    ):
        client.bans()


async def test_token_of_an_issuer_is_revoked(issuer: RunningIssuer, server: RunningServer) -> None:
    token = issuer.token(clock.now(), scope="openid", jti="id7")
    await until(lambda: who_is(server, token) == "alice@iam")
    with Client(server.address, server.token(Role.OPERATOR)) as client:
        client.revoke_token_id("id7", issuer=issuer.url, reason="stolen")
    assert "revoked by alice" in who_is(server, token)
    assert who_is(server, issuer.token(clock.now(), jti="id8")) == "alice@iam"


async def test_tokens_work_while_the_issuer_is_away_and_after_a_restart(
    issuer: RunningIssuer, server: RunningServer
) -> None:
    await until(lambda: who_is(server, issuer.token(clock.now())) == "alice@iam")
    issuer.stop()
    assert who_is(server, issuer.token(clock.now(), sub="bob")) == "bob@iam"
    server.kill()
    server.start()
    assert who_is(server, issuer.token(clock.now(), sub="carol")) == "carol@iam"


async def test_new_key_works_within_seconds_and_old_one_goes_on(issuer: RunningIssuer, server: RunningServer) -> None:
    old = issuer.token(clock.now())
    await until(lambda: who_is(server, old) == "alice@iam")
    issuer.add_key("second", "ES256")
    new = issuer.token(clock.now(), kid="second", algorithm="ES256", sub="bob")
    await until(lambda: who_is(server, new) == "bob@iam")
    assert who_is(server, old) == "alice@iam"


async def test_withdrawn_key_is_refused(issuer: RunningIssuer, server: RunningServer) -> None:
    token = issuer.token(clock.now())
    await until(lambda: who_is(server, token) == "alice@iam")
    issuer.add_key("second")
    issuer.remove_key("first")
    await until(lambda: who_is(server, issuer.token(clock.now(), kid="second")) == "alice@iam")
    with Client(server.address, token) as client, pytest.raises((UnauthenticatedError, WorldError)):
        client.who_am_i()


def test_slow_issuer_delays_nobody_else(issuer: RunningIssuer, tmp_path: Path) -> None:
    is_asked, go_on = threading.Event(), threading.Event()

    def hang(_: BaseHTTPRequestHandler) -> None:
        is_asked.set()
        go_on.wait(60)

    issuer.answers[JWKS] = hang
    try:
        with running_server(tmp_path / "data", issuers=settings_of(issuer)) as server:
            assert is_asked.wait(60)
            assert who_is(server, server.token(owner="olga")) == "olga"
            assert "are being read" in who_is(server, issuer.token(clock.now()))
    finally:
        go_on.set()


def test_unknown_issuer_is_named_with_the_known_ones(issuer: RunningIssuer, server: RunningServer) -> None:
    why = who_is(server, issuer.token(clock.now(), iss="https://elsewhere.example.org/"))
    assert f"'https://elsewhere.example.org/' is not trusted here; trusted are pilotage, {issuer.url}" in why


def test_admin_issues_no_token_for_an_owner_of_an_issuer(server: RunningServer) -> None:
    with Client(server.address, server.token(Role.ADMIN)) as client, pytest.raises(InvalidInputError, match="owner"):
        client.issue_token("eve@iam", ["user"], vo="cms", lifetime_s=60)
