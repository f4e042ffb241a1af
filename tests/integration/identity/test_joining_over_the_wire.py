"""Join tokens: what they are exchanged for, and the queues of workers in the tree."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pilotage.errors import InvalidInputError, PermissionDeniedError, UnauthenticatedError
from pilotage.v1 import (
    audit_service_pb2,
    audit_service_pb2_grpc,
    identity_service_pb2,
    identity_service_pb2_grpc,
    pilot_service_pb2,
    pilot_service_pb2_grpc,
    resource_service_pb2,
    values_pb2,
)
from pilotage_server.core.identity import Role
from support.server import RunningServer, request_id, running_server
from support.wire_grid import WireGrid


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[WireGrid]:
    """Return a grid of a server without a tree."""
    with running_server(tmp_path / "data") as server:
        grid = WireGrid(server)
        yield grid
        grid.close()


def identity(grid: WireGrid, token: str) -> identity_service_pb2_grpc.IdentityServiceStub:
    return identity_service_pb2_grpc.IdentityServiceStub(grid.channel(token))


def who(grid: WireGrid, token: str) -> identity_service_pb2.WhoAmIResponse:
    return identity(grid, token).WhoAmI(identity_service_pb2.WhoAmIRequest())


def join(grid: WireGrid, machine: str, *roles: Role) -> identity_service_pb2.JoinResponse:
    request = identity_service_pb2.JoinRequest(machine=machine, cpus=8, memory_mib=16_000, disk_mib=100_000)
    return identity(grid, grid.server.join_token(*roles)).Join(request)


def put_tree(grid: WireGrid, text: str, form: str) -> None:
    request = resource_service_pb2.PutTreeRequest(request_id=request_id(), text=text, format=form)
    grid.resources.PutTree(request)


def tree(grid: WireGrid) -> resource_service_pb2.GetTreeResponse:
    return grid.resources.GetTree(resource_service_pb2.GetTreeRequest())


def queues(grid: WireGrid) -> set[str]:
    found = grid.resources.ListQueues(resource_service_pb2.ListQueuesRequest(vo="*")).queues
    return {f"{each.queue.site}/{each.queue.ce}/{each.queue.queue}" for each in found}


def test_user_gets_a_token_and_changes_no_tree(grid: WireGrid) -> None:
    joined = join(grid, "laptop", Role.USER)
    user = who(grid, joined.user_token)
    assert (user.owner, user.vo, list(user.groups), list(user.roles)) == ("alice", "sky", ["grp"], ["user"])
    assert (joined.director_token, joined.HasField("queue"), tree(grid).version) == ("", False, 0)


def test_tokens_and_queue_of_a_machine_are_in_the_audit(grid: WireGrid) -> None:
    admin = identity(grid, grid.server.token(Role.ADMIN, owner="ada"))
    issued = admin.IssueToken(
        identity_service_pb2.IssueTokenRequest(
            owner="bob", vo="sky", roles=["user", "director"], lifetime_s=60, joined_lifetime_s=3600
        )
    )
    machine = identity_service_pb2.JoinRequest(machine="node1", cpus=8, memory_mib=16_000, disk_mib=100_000)
    joined = identity(grid, issued.token).Join(machine)
    operator = grid.channel(grid.server.token(Role.OPERATOR))
    found = audit_service_pb2_grpc.AuditServiceStub(operator).ListAudit(audit_service_pb2.ListAuditRequest()).entries
    assert [(each.who, list(each.roles), each.what, each.subject) for each in reversed(found)] == [
        ("ada", ["admin"], "token", "bob of the VO sky"),
        ("bob", ["join"], "tree", "version 1"),
        ("bob", ["join"], "token", "bob of the VO sky"),
        ("bob", ["join"], "token", "director:node1"),
    ]
    director, user, tree_, invitation = (each.difference for each in found)
    assert "+ lets machines join with the roles director, user for 3600 s" in invitation.splitlines()
    assert '+[sites.workers.ces."node1"]' in tree_.splitlines()
    assert "+ roles user" in user.splitlines()
    assert "+ bound to the queues workers/node1/default" in director.splitlines()
    for token in (issued.token, joined.user_token, joined.director_token):
        assert token not in str(found)


def test_workers_that_join_at_once_get_one_queue_each(grid: WireGrid) -> None:
    put_tree(grid, '[sites.local.ces.head]\nCEType = "local"\n[sites.local.ces.head.queues.q]\nCPUs = 2\n', "toml")
    names = [f"node{number}.example.org" for number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        first, *_ = list(threads.map(lambda name: join(grid, name, Role.DIRECTOR), names))
    assert queues(grid) == {"local/head/q", *(f"workers/{name}/default" for name in names)}
    version = tree(grid).version
    again = join(grid, names[0].upper(), Role.USER, Role.DIRECTOR)
    assert (again.queue, tree(grid).version) == (first.queue, version)

    director = who(grid, first.director_token)
    assert (list(director.roles), list(director.bounds.queues)) == (["director"], [f"workers/{names[0]}/default"])
    stub = pilot_service_pb2_grpc.PilotServiceStub(grid.channel(first.director_token))
    other = values_pb2.QueueId(site="workers", ce=names[1], queue="default")
    with pytest.raises(PermissionDeniedError, match="is bound to the queues"):
        stub.RegisterPilots(pilot_service_pb2.RegisterPilotsRequest(request_id=request_id(), queue=other, count=1))


def test_tree_that_cannot_be_continued_needs_an_operator(grid: WireGrid) -> None:
    with_queue = '{"sites": {"workers": {"ces": {"node1": {"CEType": "worker", "queues": {"default": {}}}}}}}'
    put_tree(grid, with_queue, "json")
    assert join(grid, "node1", Role.DIRECTOR).queue.ce == "node1"
    with pytest.raises(InvalidInputError, match=r"adds the queue workers/node2/default .* in json, not TOML"):
        join(grid, "node2", Role.DIRECTOR)
    put_tree(grid, "sites.workers = {}", "toml")
    with pytest.raises(InvalidInputError, match="the tree cannot be continued: an operator adds the queue"):
        join(grid, "node2", Role.DIRECTOR)


def test_machine_does_not_get_the_queue_of_a_cluster(grid: WireGrid) -> None:
    put_tree(grid, '[sites.workers.ces.head]\nCEType = "SLURM"\n[sites.workers.ces.head.queues.default]\n', "toml")
    with pytest.raises(InvalidInputError, match="workers/head/default is not of a joined machine"):
        join(grid, "head", Role.DIRECTOR)


def test_join_token_serves_to_join_alone(grid: WireGrid, tmp_path: Path) -> None:
    token = grid.server.join_token(Role.USER, Role.DIRECTOR)
    assert list(who(grid, token).roles) == ["join"]
    with pytest.raises(PermissionDeniedError, match="needs the role"):
        identity(grid, token).IssueToken(identity_service_pb2.IssueTokenRequest())
    with pytest.raises(PermissionDeniedError, match="Join needs the role join"):
        identity(grid, grid.server.token(Role.ADMIN)).Join(identity_service_pb2.JoinRequest(machine="x", cpus=1))
    with pytest.raises(InvalidInputError, match="machine"):
        join(grid, 'x".queues', Role.DIRECTOR)
    identity(grid, grid.server.token(Role.ADMIN)).RevokeTokens(
        identity_service_pb2.RevokeTokensRequest(request_id=request_id(), token=token, reason="shown in a talk")
    )
    with pytest.raises(UnauthenticatedError, match="shown in a talk"):
        who(grid, token)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"roles": ["admin"]}, "roles"),
        ({"roles": ["user"], "scopes": ["compute.read"]}, "joined_lifetime_s"),
        ({"roles": ["director"], "bounds": {"queues": ["*/*/*"]}}, "joined_lifetime_s"),
        ({"roles": ["user"], "joined_lifetime_s": 1e9}, "joined_lifetime_s"),
    ],
)
def test_join_token_for_more_is_not_issued(shared_server: RunningServer, fields: dict[str, Any], where: str) -> None:
    request: dict[str, Any] = {"owner": "bob", "lifetime_s": 60, "joined_lifetime_s": 60, **fields}
    with shared_server.channel(shared_server.token(Role.ADMIN)) as channel:
        stub = identity_service_pb2_grpc.IdentityServiceStub(channel)
        with pytest.raises(InvalidInputError) as caught:
            stub.IssueToken(identity_service_pb2.IssueTokenRequest(**request))
    assert {violation.where for violation in caught.value.violations} == {where}
