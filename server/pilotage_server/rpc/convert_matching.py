"""Wire ↔ domain for MatcherService: requests and node state in; matches, leases and commands out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any, assert_never

from pilotage.classad_evaluation import Ad
from pilotage.description_wire import description_to_wire
from pilotage.errors import InvalidInputError, Violation
from pilotage.v1 import matcher_service_pb2
from pilotage.wire import length_from_wire, section_from_wire, time_to_wire
from pilotage_server.core.node_settings import NodeSettings
from pilotage_server.core.reports import HeldLease, NodeState, SlotState
from pilotage_server.operations.pilot_calls import Command, DrainPilot, Kill
from pilotage_server.operations.report_state import Heartbeat, HeartbeatAnswer
from pilotage_server.operations.reports import ReportResult
from pilotage_server.operations.work import Match, WorkAnswer, WorkRequest
from pilotage_server.rpc.convert_offers import OfferReader, ad_part_from_wire, vacate_to_wire
from pilotage_server.rpc.convert_reports import job_report_from_wire
from pilotage_server.rpc.convert_values import (
    Fields,
    amounts_from_wire,
    amounts_to_wire,
    each,
    job_id_from_wire,
    name_from_wire,
    not_too_many,
    reason_from_wire,
)

_POOL_ID = re.compile(r"[0-9a-f]{64}")

MOST_SLOTS = 5000
"""No call offers more slots than this."""


def work_request_from_wire(message: matcher_service_pb2.RequestJobsRequest) -> WorkRequest:
    """Return what a pilot asks."""
    if len(message.slots) > MOST_SLOTS:  # before they are looked at one by one
        raise InvalidInputError(Violation("slots", f"offers {len(message.slots)}, and one call may offer {MOST_SLOTS}"))
    fields = Fields(message)
    request = WorkRequest(
        slots=fields("slots", lambda slots: each(slots, OfferReader())),
        reports=fields("reports", lambda reports: each(reports, job_report_from_wire)),
        pool_ids=fields("pool_ids", lambda ids: each(ids, _pool_id)),
        ad_parts=fields("ad_parts", lambda parts: each(parts, ad_part_from_wire)),
        node_settings_version=fields.count("node_attributes_version"),
    )
    fields("wait_s", length_from_wire)
    fields("slots", lambda slots: _differently_named(request.slots or slots))  # none are read where one has a fault
    fields.done()
    return request


def _differently_named(slots: Any) -> None:
    names = [slot.name for slot in slots]
    if len(set(names)) < len(names):
        twice = min(name for name, times in Counter(names).items() if times > 1)
        raise InvalidInputError(Violation("", f"two slots have the name {twice}"))


def _pool_id(text: str) -> str:
    if not _POOL_ID.fullmatch(text):
        raise InvalidInputError(Violation("", f'"{text}" is not the id of a pool (64 hex digits)'))
    return text


def heartbeat_from_wire(message: matcher_service_pb2.ReportStateRequest) -> Heartbeat:
    """Return what a pilot says of itself."""
    fields = Fields(message)
    fields("leases", not_too_many)
    heartbeat = Heartbeat(
        leases=fields("leases", lambda leases: each(leases, _held_lease)),
        reports=fields("reports", lambda reports: each(reports, job_report_from_wire)),
        node=fields.if_set("node", _node_state),
        ending=message.ending,
        ending_reason=fields("ending_reason", reason_from_wire),
        node_settings_version=fields.count("node_attributes_version"),
        came_back_empty=message.came_back_empty,
    )
    fields.done()
    return heartbeat


def _held_lease(message: matcher_service_pb2.HeldLease) -> HeldLease:
    fields = Fields(message)
    lease = HeldLease(fields("job_id", job_id_from_wire), fields.count("attempt"))
    fields.done()
    return lease


def _node_state(message: matcher_service_pb2.NodeState) -> NodeState:
    fields = Fields(message)
    node = NodeState(
        name=fields("name", name_from_wire),
        amounts=fields("amounts", amounts_from_wire),
        ends=fields.time("ends"),
        cpu_power=fields.amount("cpu_power"),
        attributes=fields("attributes", section_from_wire),
        slots=fields("slots", lambda slots: each(slots, _slot_state)),
        pilot_version=fields.text("pilot_version"),
        draining=message.draining,
        settable_attributes=fields("settable_attributes", lambda names: each(names, name_from_wire)),
    )
    fields("slots", _differently_named)
    fields.done()
    return node


def _slot_state(message: matcher_service_pb2.SlotState) -> SlotState:
    fields = Fields(message)
    slot = SlotState(
        name=fields("name", name_from_wire),
        state=fields.text("state"),
        activity=fields.text("activity"),
        amounts=fields("amounts", amounts_from_wire),
        free=fields("free", amounts_from_wire),
        job_id=fields.count("job_id"),
        since=fields.time("since"),
        load=fields.amount("load"),
        partitionable=message.partitionable,
        attributes=fields("attributes", section_from_wire),
        attempt=fields.count("attempt"),
        since_state=fields.time("since_state"),
        ad=fields("ad", _ad),
    )
    fields.done()
    return slot


def _ad(text: str) -> str:
    if text:
        Ad.read(text)
    return text


def work_answer_to_wire(answer: WorkAnswer) -> matcher_service_pb2.RequestJobsResponse:
    """Return the answer to a request for work."""
    return matcher_service_pb2.RequestJobsResponse(
        matches=[match_to_wire(match) for match in answer.matches],
        results=[_result(result) for result in answer.results],
        pools_changed=answer.pools_changed,
        commands=[_command(command) for command in answer.commands],
        vacate=[vacate_to_wire(vacate) for vacate in answer.vacates],
        ad_parts_wanted=answer.ad_parts_wanted,
        node_attributes=node_attributes_to_wire(answer.node_settings),
    )


def results_to_wire(results: Iterable[ReportResult]) -> matcher_service_pb2.RequestJobsResponse:
    """Return what became of reports, as a part of an answer."""
    return matcher_service_pb2.RequestJobsResponse(results=[_result(result) for result in results])


def match_to_wire(match: Match) -> matcher_service_pb2.Match:
    """Return a match with the description of its one job."""
    return matcher_service_pb2.Match(
        slot=match.slot,
        job_id=match.job_id,
        attempt=match.attempt,
        lease_s=match.lease.total_seconds(),
        description=description_to_wire(match.rendered()),
        amounts=amounts_to_wire(match.kind.amounts),
        task_queue=match.task_queue_id,
        owner=match.owner,
        vo=match.vo,
        group=match.group,
        cluster=match.cluster,
        process=match.process,
        job_ad=match.job_ad,
    )


def _result(result: ReportResult) -> matcher_service_pb2.ReportResult:
    return matcher_service_pb2.ReportResult(
        job_id=result.job_id, attempt=result.attempt, accepted=result.accepted, refusal=result.refusal
    )


def _command(command: Command) -> matcher_service_pb2.Command:
    match command:
        case Kill(job_id, attempt, reason):
            kill = matcher_service_pb2.KillAttempt(job_id=job_id, attempt=attempt, reason=reason)
            return matcher_service_pb2.Command(kill=kill)
        case DrainPilot(reason, evict):
            return matcher_service_pb2.Command(drain=matcher_service_pb2.Drain(reason=reason, evict=evict))
        case _:
            assert_never(command)


def heartbeat_answer_to_wire(answer: HeartbeatAnswer, now: datetime) -> matcher_service_pb2.ReportStateResponse:
    """Return the answer to a heartbeat, given at `now`."""
    renewed = [
        matcher_service_pb2.RenewedLease(job_id=each.job_id, attempt=each.attempt, lease_s=each.lease.total_seconds())
        for each in answer.renewed
    ]
    lost = [
        matcher_service_pb2.LostLease(job_id=each.job_id, attempt=each.attempt, reason=each.reason)
        for each in answer.lost
    ]
    return matcher_service_pb2.ReportStateResponse(
        renewed=renewed,
        lost=lost,
        results=[_result(result) for result in answer.results],
        commands=[_command(command) for command in answer.commands],
        next_s=answer.next_in.total_seconds(),
        node_wanted=answer.node_wanted,
        server_time=time_to_wire(now),
        node_attributes=node_attributes_to_wire(answer.node_settings),
    )


def heartbeat_answer_to_bytes(answer: HeartbeatAnswer, now: datetime, former: bytes) -> bytes:
    """Return the answer to a heartbeat as the wire has it, with the results that a `former` answer to it told."""
    message = heartbeat_answer_to_wire(answer, now)
    message.results.extend(matcher_service_pb2.ReportStateResponse.FromString(former).results)
    return message.SerializeToString()


def node_attributes_to_wire(settings: NodeSettings | None) -> matcher_service_pb2.NodeAttributes | None:
    """Return what a pilot hears of its node's settings; None = it has them."""
    if settings is None:
        return None
    return matcher_service_pb2.NodeAttributes(version=settings.version, expressions=settings.expressions)
