"""Enrolment of pilots over the wire: a secret works once, and a token is worth nothing without its key."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import jwt
import pytest

from pilotage import clock
from pilotage.errors import PermissionDeniedError, ProofTimeError, UnauthenticatedError
from pilotage.rpc.channel import Endpoint, open_channel
from pilotage.rpc.proof import BoundToken
from pilotage.rpc.wire import queue_to_wire, time_from_wire
from pilotage.v1 import matcher_service_pb2, pilot_service_pb2
from pilotage.v1.matcher_service_pb2_grpc import MatcherServiceStub
from pilotage.v1.pilot_service_pb2_grpc import PilotServiceStub
from pilotage_server.rpc.framework.key_files import KeyFiles
from support.processes import until
from support.server import RunningServer, enrolled, request_id, running_server
from support.wire_grid import QUEUE, WireGrid, a_job

HEARTBEAT = "/pilotage.v1.MatcherService/ReportState"
REQUEST_JOBS = "/pilotage.v1.MatcherService/RequestJobs"


@pytest.fixture
def grid(shared_server: RunningServer) -> Iterator[WireGrid]:
    grid = WireGrid(shared_server)
    grid.put_tree()
    yield grid
    grid.close()


def registered(grid: WireGrid) -> pilot_service_pb2.PilotCredential:
    request = pilot_service_pb2.RegisterPilotsRequest(
        request_id=request_id(), queue=queue_to_wire(QUEUE), count=1, vos=[grid.vo]
    )
    return grid.pilots.RegisterPilots(request).pilots[0]


def shown(grid: WireGrid, stamp: str) -> pilot_service_pb2.Pilot:
    (pilot,) = (each for each in grid.list_pilots() if each.stamp == stamp)
    return pilot


def heartbeat(server: RunningServer, token: str, prove: Callable[[str], str] | None) -> None:
    """Send a heartbeat with this token and proof."""
    with open_channel(Endpoint((server.address,), token, prove=prove)) as channel:
        MatcherServiceStub(channel).ReportState(matcher_service_pb2.ReportStateRequest(request_id=request_id()))


def test_used_secret_enrols_nobody_else_and_raises_an_alarm(grid: WireGrid) -> None:
    credential = registered(grid)
    pilot = grid.enrol(credential)
    with pytest.raises(PermissionDeniedError, match="has been used"):
        grid.server.enrolled(credential.token)
    found = shown(grid, credential.stamp)
    assert found.alarm.startswith("its enrolment secret was used again at ")
    assert "127.0.0.1" in found.alarm
    assert found.state == pilot_service_pb2.PILOT_STATE_DRAINING
    (alarm,) = (line for line in grid.server.log().splitlines() if credential.stamp in line and '"error"' in line)
    assert "enrolment secret used again" in alarm
    assert "127.0.0.1" in alarm
    grid.submit(a_job())
    assert not pilot.request_jobs().matches


def test_secret_is_no_token(grid: WireGrid) -> None:
    credential = registered(grid)
    with pytest.raises(PermissionDeniedError, match="needs the role pilot"):
        heartbeat(grid.server, credential.token, None)


def test_enrolment_is_repeated_after_a_lost_answer(grid: WireGrid) -> None:
    credential, nonce = registered(grid), os.urandom(32)
    for _ in ("lost", "repeated"):
        with grid.server.channel(credential.token) as channel:
            token = enrolled(channel, nonce)
        heartbeat(grid.server, token.token, token.prove)
    assert not shown(grid, credential.stamp).alarm


def test_stolen_token_is_refused_without_its_key(grid: WireGrid) -> None:
    pilot, other = grid.start_pilot(), grid.start_pilot()
    with pytest.raises(UnauthenticatedError, match="no proof"):
        heartbeat(grid.server, pilot.token.token, None)
    with pytest.raises(UnauthenticatedError, match="is wrong"):
        heartbeat(grid.server, pilot.token.token, other.token.prove)
    heartbeat(grid.server, pilot.token.token, pilot.token.prove)


@pytest.mark.parametrize("proof", ["x", "1:", ":", "1:2:3", "a:b", "9" * 101, "1:é"])
def test_malformed_proof_is_refused(grid: WireGrid, proof: str) -> None:
    token = grid.start_pilot().token.token
    with pytest.raises(UnauthenticatedError):
        heartbeat(grid.server, token, lambda _: proof.encode("ascii", "replace").decode())


def test_proof_of_another_method_or_time_is_refused(grid: WireGrid) -> None:
    token = grid.start_pilot().token
    other = token.prove(REQUEST_JOBS)
    with pytest.raises(UnauthenticatedError, match="is wrong"):
        heartbeat(grid.server, token.token, lambda _: other)
    replayed = token.prove(HEARTBEAT)
    heartbeat(grid.server, token.token, lambda _: replayed)
    token.set_time(clock.now() - timedelta(seconds=61))
    with pytest.raises(ProofTimeError) as caught:
        heartbeat(grid.server, token.token, token.prove)
    assert abs(caught.value.server_time_ms / 1000 - clock.now().timestamp()) < 30
    moved = token.prove(HEARTBEAT).partition(":")[2]
    with pytest.raises(UnauthenticatedError, match="is wrong"):
        heartbeat(grid.server, token.token, lambda _: f"{round(clock.now().timestamp() * 1000)}:{moved}")


def renewed(server: RunningServer, token: BoundToken) -> BoundToken:
    with server.channel(token) as channel:
        found = PilotServiceStub(channel).RenewToken(pilot_service_pb2.RenewTokenRequest()).token
    return BoundToken(found.token, found.key, time_from_wire(found.server_time), clock.boot_time_s)


def test_pilot_renews_its_token_with_the_old_one(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    new = renewed(grid.server, pilot.token)
    assert new.token != pilot.token.token
    for token in (new, pilot.token):
        heartbeat(grid.server, token.token, token.prove)


def test_enrolled_or_ended_pilot_gets_no_new_secret(grid: WireGrid) -> None:
    waiting, present = registered(grid), grid.start_pilot()
    request = pilot_service_pb2.RenewCredentialsRequest(stamps=[waiting.stamp, present.stamp])
    (renewed,) = grid.pilots.RenewCredentials(request).pilots
    assert renewed.stamp == waiting.stamp
    grid.server.enrolled(renewed.token)
    with pytest.raises(PermissionDeniedError, match="has been used"):
        grid.server.enrolled(waiting.token)


def test_enrolled_pilot_outlives_restarts_of_its_server(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", second_use="report") as server:
        grid = WireGrid(server)
        grid.put_tree()
        (job,) = grid.submit(a_job())
        credential = registered(grid)
        pilot = grid.enrol(credential)
        server.kill()
        server.start()
        assert [match.job_id for match in pilot.request_jobs().matches] == [job]
        with pytest.raises(PermissionDeniedError, match="has been used"):
            server.enrolled(credential.token)
        found = shown(grid, credential.stamp)
        assert found.alarm
        assert found.state == pilot_service_pb2.PILOT_STATE_RUNNING
        grid.close()


def test_wrong_nonce_is_rejected(grid: WireGrid) -> None:
    with grid.server.channel(registered(grid).token) as channel, pytest.raises(Exception, match="31 bytes"):
        enrolled(channel, b"x" * 31)


def test_pilot_without_a_record_is_not_enrolled(grid: WireGrid, tmp_path: Path) -> None:
    credential = registered(grid)
    key = str(grid.server.data / "keys" / "tokens.pem")
    unknown = pytest.raises(PermissionDeniedError, match="does not know this pilot")
    with running_server(tmp_path / "data", signing_key=key) as other, unknown:
        other.enrolled(credential.token)


async def test_rotation_of_keys_does_not_disturb_enrolled_pilots(server: RunningServer) -> None:
    grid = WireGrid(server)
    grid.put_tree()
    old = grid.start_pilot().token
    keys = KeyFiles(server.data / "keys" / "tokens.pem")
    (first,) = keys.load()
    second = keys.add(clock.now() - timedelta(seconds=1))
    await until(lambda: kid_of(renewed(server, old)) == second.kid)
    new = renewed(server, old)
    for token in (old, new):
        heartbeat(server, token.token, token.prove)
    with pytest.raises(UnauthenticatedError, match="is wrong"):
        heartbeat(server, new.token, old.prove)
    keys.remove(first.kid)
    await until(lambda: is_refused(server, old))
    heartbeat(server, new.token, new.prove)
    grid.close()


def kid_of(token: BoundToken) -> object:
    return jwt.get_unverified_header(token.token)["kid"]


def is_refused(server: RunningServer, token: BoundToken) -> bool:
    try:
        heartbeat(server, token.token, token.prove)
    except UnauthenticatedError:
        return True
    return False
