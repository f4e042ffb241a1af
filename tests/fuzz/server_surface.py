"""Random calls of a live server, with the tokens of each role; and slot ads of a pilot whose policies are random."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor

from fuzz.mutation import Mutator
from pilotage.errors import PilotageError
from pilotage.rpc.proof import BoundToken
from pilotage.v1 import (
    agent_service_pb2,
    identity_service_pb2,
    job_service_pb2,
    matcher_service_pb2,
    node_service_pb2,
    pilot_service_pb2,
    pool_service_pb2,
    race_service_pb2,
    resource_service_pb2,
    route_service_pb2,
    share_service_pb2,
)
from pilotage_server.core.identity import Role
from support.server import request_id
from support.wire_grid import WireGrid, a_job

FILES = (
    agent_service_pb2,
    identity_service_pb2,
    job_service_pb2,
    matcher_service_pb2,
    node_service_pb2,
    pilot_service_pb2,
    pool_service_pb2,
    race_service_pb2,
    resource_service_pb2,
    route_service_pb2,
    share_service_pb2,
)
AGENTS = (Role.DIRECTOR, Role.ROUTER, Role.DRAINER, Role.CLEANER, Role.RACER)
UNHANDLED = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
CALL_TIMEOUT_S = 1.0
REPAIR_EVERY = 2000
"""Inputs after which the tree is put again and a new pilot starts: operators' calls may have removed them."""


@dataclass
class Tally:
    """The number of inputs, and the first inputs that were not handled."""

    inputs: int = 0
    unhandled: list[str] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, content: bytes, error: PilotageError | None) -> None:
        """Count a call; `error` None = it had an answer."""
        self.inputs += 1
        cause = None if error is None else error.__cause__
        code = cause.code() if isinstance(cause, grpc.RpcError) else None
        self.codes["OK" if error is None else "?" if code is None else code.name] += 1
        if code in UNHANDLED:
            self.unhandled.append(f"{name} {content[:2000].hex()}: {error!s:.500}")


def methods() -> Iterator[MethodDescriptor]:
    """Yield all methods of the protocol."""
    for file in FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            yield from service.methods


def send(channel: grpc.Channel, method: MethodDescriptor, content: bytes) -> None:
    """Make one call and read the begin of its answer; raises a PilotageError."""
    name = f"/{method.containing_service.full_name}/{method.name}"
    call: Any
    match method.client_streaming, method.server_streaming:
        case False, False:
            channel.unary_unary(name)(content)  # type: ignore[call-arg]
        case True, False:
            channel.stream_unary(name)(iter([content]))  # type: ignore[call-arg]
        case False, True:
            call = channel.unary_stream(name)(content, timeout=0.05)  # type: ignore[call-arg]
            next(iter(call), None)
        case _:
            call = channel.stream_stream(name)(iter([content]), timeout=0.05)  # type: ignore[call-arg]
            next(iter(call), None)


class RandomCalls:
    """Calls all methods with random messages."""

    def __init__(self, grid: WireGrid, seed: int) -> None:
        self._grid = grid
        self._seed = seed
        self._methods = tuple(methods())
        self._channels: list[grpc.Channel] = []
        self._words: list[str] = []

    def run(self, inputs: int, start: int, tally: Tally) -> None:
        """Make this number of calls; the inputs depend on the seed and on their number."""
        for number in range(start, start + inputs):
            if number % REPAIR_EVERY == 0 or not self._channels:
                self._repair()
            mutator = Mutator((self._seed, "rpc", number), self._words)
            method = mutator.random.choice(self._methods)
            content, error = mutator.request(method.input_type), None
            try:
                send(mutator.random.choice(self._channels), method, content)
            except PilotageError as refusal:
                error = refusal
            tally.add(method.name, content, error)

    def _repair(self) -> None:
        for channel in self._channels:
            channel.close()
        grid, server = self._grid, self._grid.server
        grid.put_tree()
        pilot = grid.start_pilot()
        user = (server.token(Role.USER, owner="mallory", vo=grid.vo), server.token(Role.OPERATOR, owner="mallory"))
        tokens: tuple[str | BoundToken, ...] = (*user, server.token(*AGENTS), server.token(Role.ADMIN), pilot.token, "x")
        self._channels = [server.channel(token, timeout_s=CALL_TIMEOUT_S) for token in tokens]
        self._words = [pilot.stamp, grid.vo, "SITE", "ce1", "long", "mallory", "slot1", "node1", "grp"]


TOKENS = (
    *("TARGET.RequestMemory", "MY.Memory", "Cpus", "RequestCpus", "1", "0", "-1", "1e308", '"a"', "true", "undefined", "error"),
    *("{1, 2}", "[a = 1]", "time()", "CurrentTime", "S1", "S2", 'regexp("(a*)*b", S2)', "strcat(S1, S1)", "eval(S1)"),
    *('eval("eval(S1)")', "size(S1)", "random()", "ifThenElse(S1, S2, S1)", 'split(S2, ",")', 'unparse(S1)', "sum({1, S1})"),
)
OPERATORS = (" + ", " * ", " && ", " || ", " == ", " =?= ", " < ", " ? S1 : ", " / ", " % ", ".", " >> ")


def expression(mutator: Mutator, depth: int = 4) -> str:
    """Return a random ClassAd expression; a part of them are malformed."""
    dice = mutator.random.random()
    if depth == 0 or dice < 0.3:
        return mutator.random.choice(TOKENS) if dice < 0.28 else mutator.text()
    left, right = expression(mutator, depth - 1), expression(mutator, depth - 1)
    if dice < 0.4:
        return f"eval({left})"
    if dice < 0.5:
        return "(" * mutator.random.randrange(60) + left + ")"
    return left + mutator.random.choice(OPERATORS) + right


class RandomAds:
    """Offers slots with random policies to waiting jobs."""

    def __init__(self, grid: WireGrid, seed: int) -> None:
        self._grid = grid
        self._seed = seed

    def run(self, inputs: int, start: int, tally: Tally) -> None:
        """Offer this number of ads."""
        for number in range(start, start + inputs):
            if number % REPAIR_EVERY == 0 or number == start:
                self._grid.put_tree()
                pilot = self._grid.start_pilot()
            if number % 100 == 0:
                self._grid.submit(*[a_job(Memory=500)] * 5)
            mutator = Mutator((self._seed, "ads", number))
            part = _part("; ".join(f"{name} = {expression(mutator)}" for name in ("S1", "S2", "Rank")))
            changes = f"[START = {expression(mutator)}; Memory = 4000; MaxJobRetirementTime = {expression(mutator)}]"
            request = pilot.request(ad_parts=[part.key], ad_changes=changes, job_ad_wanted=mutator.random.random() < 0.1)
            request.ad_parts.append(part)
            request.request_id = request_id()
            error = None
            try:
                pilot.matcher.RequestJobs(request, timeout=5)
            except PilotageError as refusal:
                error = refusal
            tally.add("RequestJobs", request.SerializeToString(), error)


def _part(text: str) -> matcher_service_pb2.AdPart:
    text = f"[{text}]"
    key = hashlib.sha256(text.encode()).hexdigest()
    return matcher_service_pb2.AdPart(key=key, text=text)
