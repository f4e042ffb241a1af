"""Random calls of a live server: all methods, with the tokens of each role, a pilot's, a false one and none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from fuzz.mutation import Mutator
from fuzz.tally import Tally
from pilotage.errors import PilotageError, UnauthenticatedError
from pilotage.v1 import (
    agent_service_pb2,
    audit_service_pb2,
    diagnosis_service_pb2,
    identity_service_pb2,
    job_service_pb2,
    jobs_pb2,
    matcher_service_pb2,
    node_service_pb2,
    notification_service_pb2,
    overview_service_pb2,
    pilot_service_pb2,
    pool_service_pb2,
    race_service_pb2,
    resource_service_pb2,
    route_service_pb2,
    share_service_pb2,
    values_pb2,
)
from pilotage_server.core.identity import AGENT_NAMES, Role
from pilotage_server.rpc.framework.access import REQUIRED_ROLES
from support.server import Token, request_id
from support.wire_grid import TREE, WireGrid

_FILES = (
    agent_service_pb2,
    audit_service_pb2,
    diagnosis_service_pb2,
    identity_service_pb2,
    job_service_pb2,
    matcher_service_pb2,
    node_service_pb2,
    notification_service_pb2,
    overview_service_pb2,
    pilot_service_pb2,
    pool_service_pb2,
    race_service_pb2,
    resource_service_pb2,
    route_service_pb2,
    share_service_pb2,
)
_CALL_TIMEOUT_S = 2.0
_STREAM_TIMEOUT_S = 0.05
_PERMITTED = 0.8
"""The share of the calls with a token that has the role they need."""

_VALID = 0.3
"""The share of the calls whose message is a valid one with a few changes, where there is a valid one."""

_REVOCATIONS = ("RevokeTokens", "RevokePilots")
"""Calls that may have made the tokens of all further calls useless."""

_METHOD_OF_USERS = job_service_pb2.DESCRIPTOR.services_by_name["JobService"].methods_by_name["ListJobs"]

RENEW_EVERY = 2000
"""Inputs after which the tree is put again and a new pilot starts: operators' calls may have removed them."""


def all_methods() -> Iterator[MethodDescriptor]:
    """Yield all methods of the protocol."""
    for file in _FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            yield from service.methods


def path_of(method: MethodDescriptor) -> str:
    """Return the full name of a method as it stands in a call."""
    return f"/{method.containing_service.full_name}/{method.name}"


class RandomCalls:
    """Calls all methods with random messages; the inputs depend on the seed and on their number."""

    def __init__(self, grid: WireGrid, seed: int) -> None:
        self._grid = grid
        self._seed = seed
        self._methods = tuple(all_methods())
        self._channels: dict[Role | None, list[grpc.Channel]] = {}
        self._words: list[str] = []
        self._valid: Mapping[str, Message] = {}

    def run(self, inputs: range, tally: Tally) -> None:
        """Make the calls with these numbers."""
        for number in inputs:
            if number % RENEW_EVERY == 0 or not self._channels:
                self._renew()
            mutator = Mutator((self._seed, "calls", number), self._words)
            method = mutator.random.choice(self._methods)
            content, error = self._content(mutator, method), None
            try:
                _send(self._channel(mutator, method), method, content)
            except PilotageError as refusal:
                error = refusal
            tally.add_call(number, method.name, content, error)
            if error is None and method.name in _REVOCATIONS and self._is_revoked():
                self._renew()

    def _is_revoked(self) -> bool:
        """Return whether any of the valid tokens is refused by now.

        Only then are there new ones: the server remembers each token that it has verified.
        """
        return any(_is_refused(channel) for role, found in self._channels.items() if role for channel in found)

    def _content(self, mutator: Mutator, method: MethodDescriptor) -> bytes:
        valid = self._valid.get(method.name)
        if valid is None or mutator.random.random() >= _VALID:
            return mutator.content(mutator.message(method.input_type))
        message: Message = type(valid)()
        message.CopyFrom(valid)
        if "request_id" in method.input_type.fields_by_name:
            message.request_id = request_id()  # type: ignore[attr-defined]
        for _ in range(mutator.random.randrange(3)):
            mutator.change(message)
        return mutator.content(message)

    def _channel(self, mutator: Mutator, method: MethodDescriptor) -> grpc.Channel:
        roles = sorted(REQUIRED_ROLES[path_of(method)] & self._channels.keys())
        if roles and mutator.random.random() < _PERMITTED:
            return mutator.random.choice(self._channels[mutator.random.choice(roles)])
        return mutator.random.choice(self._channels[mutator.random.choice([*self._channels])])

    def _renew(self) -> None:
        """Put the tree again, start a new pilot, and connect as everyone; None = without a valid token."""
        grid, server = self._grid, self._grid.server
        for channels in self._channels.values():
            for channel in channels:
                channel.close()
        grid.put_tree()
        pilot = grid.start_pilot()
        roles = (Role.USER, Role.OPERATOR, Role.ADMIN, *sorted(AGENT_NAMES))
        tokens: dict[Role | None, list[Token]] = {  # new ones: a call may have revoked the others
            **{role: [server.token(role, owner="mallory", vo=grid.vo)] for role in roles},
            Role.PILOT: [pilot.token],
            Role.JOIN: [server.join_token(Role.USER, Role.DIRECTOR, owner="mallory", vo=grid.vo)],
            None: ["", "x", pilot.token.token],
        }
        self._channels = {
            role: [server.channel(token, timeout_s=_CALL_TIMEOUT_S) for token in found]
            for role, found in tokens.items()
        }
        self._words = [pilot.stamp, grid.vo, "SITE", "ce1", "long", "mallory", "slot1", "node1", "job router", "h"]
        self._valid = _valid_messages(pilot.stamp, pilot.request())


def _is_refused(channel: grpc.Channel) -> bool:
    try:
        _send(channel, _METHOD_OF_USERS, b"")
    except UnauthenticatedError:
        return True
    except PilotageError:
        return False
    return False


def _valid_messages(stamp: str, request: matcher_service_pb2.RequestJobsRequest) -> Mapping[str, Message]:
    """Return a valid message of each of the methods that change most."""
    job = jobs_pb2.JobDescription(
        executable="/bin/true",
        arguments="-c 'x y'",
        environment={"A": "1"},
        requirements={"Memory": values_pb2.Value(number=500)},
        requirements_expression="TARGET.Memory > 500",
        rank="TARGET.Cpus",
        attributes={"Kind": values_pb2.Value(text="x")},
    )
    queue = values_pb2.QueueId(site="SITE", ce="ce1", queue="long")
    turn = values_pb2.Turn(agent="job router", holder="h")
    condition = job_service_pb2.JobCondition(
        states=[jobs_pb2.JOB_STATE_HELD],
        site="SITE",
        owner="*",
        name="a[b]*",
        where='Owner == "a" && QDate > 5',
        selections=[job_service_pb2.JobSelection(id=1)],
        runs=[job_service_pb2.IdRun(first=1, count=9)],
    )
    report = jobs_pb2.JobReport(job_id=1, attempt=1, state=jobs_pb2.JOB_STATE_RUNNING)
    messages = (
        job_service_pb2.SubmitJobsRequest(descriptions=[job]),
        job_service_pb2.ListJobsRequest(condition=condition),
        job_service_pb2.SearchJobsRequest(condition=condition),
        job_service_pb2.FindJobsRequest(
            selections=[job_service_pb2.JobSelection(id=1, first_process=0, last_process=9)]
        ),
        job_service_pb2.ListClustersRequest(),
        job_service_pb2.ListWorkflowsRequest(owner="*"),
        job_service_pb2.GetWorkflowRequest(id=1),
        job_service_pb2.EditJobRequest(job_id=1, description=job),
        job_service_pb2.ChangeJobsRequest(job_ids=[1, 2], change=job_service_pb2.JOB_CHANGE_HOLD, reason="because"),
        job_service_pb2.WatchEventsRequest(),
        request,
        matcher_service_pb2.ReportStateRequest(reports=[report]),
        pilot_service_pb2.RegisterPilotsRequest(queue=queue, count=1),
        pilot_service_pb2.DrainPilotsRequest(stamps=[stamp]),
        pilot_service_pb2.RevokePilotsRequest(stamps=["0" * 32], reason="because"),
        identity_service_pb2.RevokeTokensRequest(
            owner=identity_service_pb2.OwnerTokens(owner="nobody"), reason="because"
        ),
        resource_service_pb2.PutTreeRequest(text=TREE, format="json"),
        resource_service_pb2.HoldPlaceRequest(),
        agent_service_pb2.TakeTurnRequest(turn=turn, for_s=10, place="host"),
        route_service_pb2.PutRoutesRequest(turn=turn),
    )
    return {type(message).__name__.removesuffix("Request"): message for message in messages}


def _send(channel: grpc.Channel, method: MethodDescriptor, content: bytes) -> None:
    """Make one call and read the begin of its answer; raises a PilotageError."""
    name = path_of(method)
    untyped: Any = channel  # the stubs of grpc know typed messages only
    match method.client_streaming, method.server_streaming:
        case False, False:
            untyped.unary_unary(name)(content)
        case True, False:
            untyped.stream_unary(name)(iter([content]))
        case _, _:
            next(iter(untyped.unary_stream(name)(content, timeout=_STREAM_TIMEOUT_S)), None)
