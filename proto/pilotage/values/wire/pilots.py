"""Reports on glideins ↔ wire."""

from __future__ import annotations

from pilotage.errors import InvalidInputError, Violation
from pilotage.rpc.wire import enum_from_wire, enum_to_wire
from pilotage.v1 import pilot_service_pb2
from pilotage.values.pilots import GlideinReport, PilotState
from pilotage.values.wire.fields import Fields, reason_from_wire

_OF_GLIDEINS = frozenset({PilotState.SUBMITTED, PilotState.RUNNING, PilotState.ENDED})


def glidein_report_to_wire(report: GlideinReport) -> pilot_service_pb2.GlideinReport:
    """Return the message of a report on a glidein."""
    return pilot_service_pb2.GlideinReport(
        stamp=report.stamp,
        glidein_id=report.glidein_id,
        state=enum_to_wire(pilot_service_pb2.PilotState, report.state.value),
        reason=report.reason,
        called_back=report.called_back,
        processes_ended=report.processes_ended,
        age_s=report.age.total_seconds(),
    )


def glidein_report_from_wire(message: pilot_service_pb2.GlideinReport) -> GlideinReport:
    """Return a report on a glidein."""
    fields = Fields(message)
    fields.faults.unless(bool(message.stamp), "stamp", "is missing")
    report = GlideinReport(
        stamp=fields.text("stamp"),
        glidein_id=fields.text("glidein_id"),
        state=fields("state", _glidein_state),
        reason=fields("reason", reason_from_wire),
        called_back=message.called_back,
        processes_ended=message.processes_ended,
        age=fields.length("age_s"),
    )
    fields.done()
    return report


def _glidein_state(number: int) -> PilotState:
    name = enum_from_wire(pilot_service_pb2.PilotState, number)
    if name not in _OF_GLIDEINS:
        raise InvalidInputError(Violation("", f"{name or 'nothing'} is no state of a glidein"))
    return PilotState(name)
