"""Wire ↔ domain for AgentService, and for the turns that calls of agents name."""

from __future__ import annotations

from datetime import timedelta

from pilotage.errors import InvalidInputError, Violation
from pilotage.v1 import agent_service_pb2, values_pb2
from pilotage.wire import length_from_wire, text_from_wire
from pilotage_server.core.turns import Turn
from pilotage_server.operations.turns import TurnAnswer
from pilotage_server.rpc.convert_values import Fields

_LONGEST_AGENT, _LONGEST_HOLDER = 500, 64
_SHORTEST, _LONGEST = timedelta(seconds=1), timedelta(hours=1)


def turn_from_wire(message: values_pb2.Turn) -> Turn:
    """Return the turn that a copy of an agent names."""
    fields = Fields(message)
    turn = Turn(
        fields("agent", lambda text: _bounded(text, _LONGEST_AGENT)),
        fields("holder", lambda text: _bounded(text, _LONGEST_HOLDER)),
    )
    fields.done()
    return turn


def turn_length_from_wire(seconds: float) -> timedelta:
    """Return for how long a copy wants its turn."""
    length = length_from_wire(seconds)
    if not _SHORTEST <= length <= _LONGEST:
        raise InvalidInputError(Violation("", f"is {seconds:g}; a turn is had for 1 to 3600 s at a time"))
    return length


def turn_answer_to_wire(answer: TurnAnswer) -> agent_service_pb2.TakeTurnResponse:
    """Return the message of who has a turn."""
    return agent_service_pb2.TakeTurnResponse(
        taken=answer.taken, place=answer.place, left_s=answer.left.total_seconds()
    )


def _bounded(text: str, longest: int) -> str:
    if not 1 <= len(text) <= longest or not text.isprintable():
        raise InvalidInputError(Violation("", f"is not 1 to {longest} printable characters"))
    return text_from_wire(text)
