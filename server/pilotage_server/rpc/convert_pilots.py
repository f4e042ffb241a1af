"""Wire ↔ domain for PilotService and NodeService."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pilotage.errors import InvalidInputError, Violation
from pilotage.v1 import matcher_service_pb2, node_service_pb2, pilot_service_pb2
from pilotage.wire import (
    enum_from_wire,
    enum_to_wire,
    queue_from_wire,
    queue_to_wire,
    section_to_wire,
    text_from_wire,
    time_to_wire,
)
from pilotage_server.core.node_settings import NodeId, NodeSettings
from pilotage_server.core.node_use import FarmUse, NodeUse
from pilotage_server.core.pilots import GlideinReport, PilotState, SlotInfo
from pilotage_server.core.reports import SlotState
from pilotage_server.core.turns import Turn
from pilotage_server.operations.pilots import MOST_AT_ONCE, NewPilots, PilotInfo
from pilotage_server.rpc.convert_turns import turn_from_wire
from pilotage_server.rpc.convert_values import Fields, amounts_to_wire, each, not_too_many, reason_from_wire

_GLIDEIN_STATES = (PilotState.SUBMITTED, PilotState.RUNNING, PilotState.ENDED)


def new_pilots_from_wire(message: pilot_service_pb2.RegisterPilotsRequest) -> tuple[NewPilots, Turn | None]:
    """Return which pilots are asked for, and the turn in which an agent does so."""
    fields = Fields(message)
    queue = fields("queue", queue_from_wire)
    count = fields("count", _pilot_count)
    vos = fields("vos", lambda vos: each(vos, _vo))
    fields.length("lifetime_s")
    turn = fields.if_set("turn", turn_from_wire)
    fields.done()
    return NewPilots(queue, count, vos), turn


def stamps_to_renew_from_wire(message: pilot_service_pb2.RenewCredentialsRequest) -> tuple[str, ...]:
    """Return the pilots whose credentials are to be renewed."""
    fields = Fields(message)
    fields.faults.unless(1 <= len(message.stamps) <= MOST_AT_ONCE, "stamps", f"names none, or more than {MOST_AT_ONCE}")
    stamps = fields("stamps", lambda stamps: each(stamps, text_from_wire))
    fields.length("lifetime_s")
    fields.done()
    return stamps


def _pilot_count(number: int) -> int:
    if not 1 <= number <= MOST_AT_ONCE:
        raise InvalidInputError(Violation("", f"{number} is not a number of pilots from 1 to {MOST_AT_ONCE}"))
    return number


def _vo(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise InvalidInputError(Violation("", "is not the name of a VO"))
    return text


def glidein_reports_from_wire(message: pilot_service_pb2.ReportGlideinsRequest) -> tuple[GlideinReport, ...]:
    """Return what a batch system says of glideins."""
    fields = Fields(message)
    fields("reports", not_too_many)
    reports = fields("reports", lambda reports: each(reports, _glidein_report))
    fields.done()
    return reports


def _glidein_report(message: pilot_service_pb2.GlideinReport) -> GlideinReport:
    fields = Fields(message)
    fields.faults.unless(bool(message.stamp), "stamp", "is missing")
    report = GlideinReport(
        stamp=fields.text("stamp"),
        glidein_id=fields.text("glidein_id"),
        state=fields("state", _glidein_state),
        reason=fields("reason", reason_from_wire),
        called_back=message.called_back,
    )
    fields.done()
    return report


def _glidein_state(number: int) -> PilotState:
    name = enum_from_wire(pilot_service_pb2.PilotState, number)
    if name not in {state.name for state in _GLIDEIN_STATES}:
        raise InvalidInputError(Violation("", f"{name or 'nothing'} is not what a batch system can say"))
    return PilotState[name]


def pilot_to_wire(info: PilotInfo) -> pilot_service_pb2.Pilot:
    """Return the message of a pilot."""
    pilot = info.pilot
    return pilot_service_pb2.Pilot(
        stamp=pilot.stamp,
        queue=queue_to_wire(pilot.queue),
        glidein_id=pilot.glidein_id,
        state=enum_to_wire(pilot_service_pb2.PilotState, pilot.state.name),
        reason=pilot.reason,
        node=pilot.node,
        registered=time_to_wire(pilot.registered),
        last_seen=time_to_wire(pilot.last_seen),
        ends=time_to_wire(pilot.ends),
        jobs=info.jobs,
        jobs_ended=pilot.jobs_ended,
        vos=pilot.vos,
    )


def slot_info_to_wire(info: SlotInfo, ad: str = "") -> node_service_pb2.SlotInfo:
    """Return the message of a slot and where it is, with its whole ad where that is wanted."""
    return node_service_pb2.SlotInfo(
        slot=_slot_to_wire(info.slot),
        node=info.node,
        pilot_stamp=info.pilot_stamp,
        queue=queue_to_wire(info.queue),
        last_seen=time_to_wire(info.last_seen),
        ad=ad,
    )


def node_ids_from_wire(messages: Sequence[node_service_pb2.NodeId]) -> tuple[NodeId, ...]:
    """Return the nodes that are named."""
    not_too_many(messages)
    return each(messages, _node_id)


def _node_id(message: node_service_pb2.NodeId) -> NodeId:
    fields = Fields(message)
    node = NodeId(fields("site", _name), fields("node", _name))
    fields.done()
    return node


def _name(text: str) -> str:
    if not text.strip():
        raise InvalidInputError(Violation("", "is missing"))
    return text_from_wire(text)


def node_settings_to_wire(settings: NodeSettings) -> node_service_pb2.NodeSettings:
    """Return the message of what is set on a node."""
    return node_service_pb2.NodeSettings(
        node=node_service_pb2.NodeId(site=settings.node.site, node=settings.node.node),
        settings=[
            node_service_pb2.NodeSetting(
                name=each.name, expression=each.expression, set_by=each.set_by, set=time_to_wire(each.set)
            )
            for each in settings.settings
        ],
    )


def farm_use_to_wire(farm: FarmUse) -> node_service_pb2.GetNodeUseResponse:
    """Return the message of what jobs use of nodes and what waits for them."""
    return node_service_pb2.GetNodeUseResponse(
        nodes=[_node_use_to_wire(node) for node in farm.nodes],
        waiting=_widths_to_wire(farm.widths),
        queues=map(queue_to_wire, farm.queues),
        demands=[
            node_service_pb2.WaitingJobs(cpus=each.cpus, jobs=each.jobs, queue_indexes=each.queues)
            for each in farm.waiting
        ],
    )


def _node_use_to_wire(use: NodeUse) -> node_service_pb2.NodeUse:
    return node_service_pb2.NodeUse(
        node=node_service_pb2.NodeId(site=use.node.site, node=use.node.node),
        parts=[
            node_service_pb2.PartUse(
                free_cpus=part.free_cpus, running=_widths_to_wire(part.running), queue_index=part.queue
            )
            for part in use.parts
        ],
        settable=use.settable,
        holds=use.holds,
        told_by=use.told_by,
    )


def _widths_to_wire(jobs: Mapping[int, int]) -> list[node_service_pb2.WidthCount]:
    return [node_service_pb2.WidthCount(cpus=cpus, jobs=count) for cpus, count in sorted(jobs.items())]


def _slot_to_wire(slot: SlotState) -> matcher_service_pb2.SlotState:
    message = matcher_service_pb2.SlotState(
        name=slot.name,
        state=slot.state,
        activity=slot.activity,
        amounts=amounts_to_wire(slot.amounts),
        free=amounts_to_wire(slot.free),
        job_id=slot.job_id,
        since=time_to_wire(slot.since),
        load=slot.load,
        partitionable=slot.partitionable,
        attempt=slot.attempt,
        since_state=time_to_wire(slot.since_state),
    )
    section_to_wire(slot.attributes, message.attributes)
    return message
