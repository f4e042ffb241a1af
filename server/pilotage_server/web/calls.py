"""The calls of a page: those of the gateway, in this process, with the token of the visitor.

A call takes the way of a request to `/v1`: the dispatcher, its access check, its quotas and its counts. Only JSON and
the socket are missing. Calls belong to the gateway's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.message import Message

from pilotage.clock import BootClock
from pilotage_server.rpc.gateway.http_calls import CallFinished, CallRefused, HttpCall, MessageSent, RequestWanted
from pilotage_server.rpc.gateway.json_form import method_types
from pilotage_server.rpc.gateway.problems import Problem, problem_of_refusal
from pilotage_server.rpc.gateway.routes import ROUTES

CALL_TIME_S = 60.0
"""A call of a page is given up after this time."""

Handlers = Mapping[str, Callable[[Any], object]]
"""The entry points of calls, by full method name."""


class CallFailedError(Exception):
    """A call was refused; `problem` has its HTTP status and the reason for people."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.content["detail"])
        self.problem = problem


@cache
def _response_types() -> Mapping[str, type[Message]]:
    return {route.call: method_types(route)[1] for route in ROUTES}


@dataclass(frozen=True, slots=True)
class PageCalls:
    """Makes calls with one token; a call is named Service/Method."""

    handlers: Handlers
    clock: BootClock
    token: str
    peer: str

    async def __call__(self, call: str, request: Message) -> Any:
        """Return the response of a call; raises CallFailedError, or TimeoutError."""
        async with asyncio.timeout(CALL_TIME_S), aclosing(self.stream(call, request, CALL_TIME_S)) as responses:
            async for response in responses:
                return response
        raise AssertionError(f"{call} has ended without a response")

    async def stream(self, call: str, request: Message, time_s: float = float("inf")) -> AsyncGenerator[Any, None]:
        """Yield the responses of a call; raises CallFailedError."""
        wire = HttpCall({"authorization": f"Bearer {self.token}"}, self.peer, self.clock() + time_s, self.clock)
        response_type = _response_types()[call]
        content: bytes | None = request.SerializeToString()
        try:
            self.handlers[f"/pilotage.v1.{call}"](wire)
            while True:
                event = await wire.next_event()
                match event:
                    case RequestWanted():
                        event.callback(content)
                        content = None
                    case MessageSent():
                        yield response_type.FromString(event.content)
                        if event.on_sent is not None:
                            event.on_sent()
                    case CallFinished() | CallRefused(None):
                        return
                    case CallRefused(status):
                        assert status is not None
                        raise CallFailedError(problem_of_refusal(status))
        finally:
            wire.end()
