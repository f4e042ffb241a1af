"""Leadership ↔ wire; the wire calls it turn."""

from __future__ import annotations

from pilotage.errors import InvalidInputError, Violation
from pilotage.rpc.wire import length_from_wire, text_from_wire
from pilotage.v1 import agent_service_pb2, values_pb2
from pilotage.values.leadership import AgentCondition, Leadership, LeadershipAnswer
from pilotage.values.wire.fields import Fields, reason_from_wire

_LONGEST_AGENT, _LONGEST_HOLDER, _LONGEST_RELEASE = 500, 64, 64


def leadership_to_wire(leadership: Leadership) -> values_pb2.Turn:
    """Return the message of a leadership."""
    return values_pb2.Turn(agent=leadership.agent, holder=leadership.holder)


def leadership_from_wire(message: values_pb2.Turn) -> Leadership:
    """Return the leadership that a replica names."""
    fields = Fields(message)
    leadership = Leadership(
        fields("agent", lambda text: _bounded(text, _LONGEST_AGENT)),
        fields("holder", lambda text: _bounded(text, _LONGEST_HOLDER)),
    )
    fields.done()
    return leadership


def leadership_answer_to_wire(answer: LeadershipAnswer) -> agent_service_pb2.TakeTurnResponse:
    """Return the message of a leadership answer."""
    return agent_service_pb2.TakeTurnResponse(
        taken=answer.granted, place=answer.host, left_s=answer.left.total_seconds()
    )


def leadership_answer_from_wire(message: agent_service_pb2.TakeTurnResponse) -> LeadershipAnswer:
    """Return the leadership answer."""
    return LeadershipAnswer(message.taken, message.place, length_from_wire(message.left_s))


def condition_to_wire(condition: AgentCondition) -> agent_service_pb2.AgentCondition:
    """Return the message of the condition of a replica."""
    ago = condition.succeeded_ago
    return agent_service_pb2.AgentCondition(
        release=condition.release,
        succeeded_ago_s=None if ago is None else ago.total_seconds(),
        fault=condition.fault,
    )


def condition_from_wire(message: agent_service_pb2.AgentCondition) -> AgentCondition:
    """Return the condition that a replica names."""
    fields = Fields(message)
    ago = fields("succeeded_ago_s", length_from_wire) if message.HasField("succeeded_ago_s") else None
    condition = AgentCondition(fields("release", release_from_wire), ago, fields("fault", reason_from_wire))
    fields.done()
    return condition


def release_from_wire(text: str) -> str:
    """Return the release of a program; "" = it does not say."""
    return _bounded(text, _LONGEST_RELEASE) if text else ""


def _bounded(text: str, longest: int) -> str:
    if not 1 <= len(text) <= longest or not text.isprintable():
        raise InvalidInputError(Violation("", f"is not 1 to {longest} printable characters"))
    return text_from_wire(text)
