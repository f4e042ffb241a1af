"""Leadership ↔ wire; the wire calls it turn."""

from __future__ import annotations

from pilotage.errors import InvalidInputError, Violation
from pilotage.rpc.wire import length_from_wire, text_from_wire, time_to_wire
from pilotage.v1 import agent_service_pb2, values_pb2
from pilotage.values.leadership import AgentStatus, Leadership, LeadershipAnswer
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


def agent_status_to_wire(status: AgentStatus) -> agent_service_pb2.AgentStatus:
    """Return the message of what a replica reports of itself."""
    return agent_service_pb2.AgentStatus(
        version=status.version,
        last_cycle=time_to_wire(status.last_cycle),
        last_success=time_to_wire(status.last_success),
        failures=status.failures,
        last_error=status.last_error,
        last_error_time=time_to_wire(status.last_error_time),
    )


def agent_status_from_wire(message: agent_service_pb2.AgentStatus) -> AgentStatus:
    """Return what a replica reports of itself; long texts are cut."""
    fields = Fields(message)
    status = AgentStatus(
        version=fields("version", release_from_wire),
        last_cycle=fields.time("last_cycle"),
        last_success=fields.time("last_success"),
        failures=fields.count("failures"),
        last_error=fields("last_error", reason_from_wire),
        last_error_time=fields.time("last_error_time"),
    )
    fields.done()
    return status


def release_from_wire(text: str) -> str:
    """Return the release of a program; "" = it does not say."""
    return _bounded(text, _LONGEST_RELEASE) if text else ""


def _bounded(text: str, longest: int) -> str:
    if not 1 <= len(text) <= longest or not text.isprintable():
        raise InvalidInputError(Violation("", f"is not 1 to {longest} printable characters"))
    return text_from_wire(text)
