"""Conversion between the core's values and protobuf messages; no other module of the pilot knows both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from pilotage.errors import InvalidInputError
from pilotage.job_description import JobDescription
from pilotage.jobs.environment import NUMBER_VARIABLES
from pilotage.jobs.wire import description_from_wire
from pilotage.resources.tree import QueueId
from pilotage.rpc.wire import queue_to_wire, section_to_wire, time_from_wire, time_to_wire
from pilotage.telemetry import is_sampled
from pilotage.v1 import jobs_pb2, matcher_service_pb2
from pilotage.values.attempts import AttemptKey
from pilotage.values.offers import POLICY_FAULT
from pilotage.values.wire.amounts import amounts_to_wire, job_amounts_from_wire
from pilotage.values.wire.attempts import (
    held_lease_to_wire,
    job_hold_to_wire,
    lost_from_wire,
    outcome_to_wire,
    output_to_wire,
    renewed_from_wire,
    result_from_wire,
    tail_stream_from_wire,
)
from pilotage.values.wire.offers import ad_part_to_wire, slot_offer_to_wire, vacate_from_wire
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.instructions import RequestJobs, SendHeartbeat, Slot
from pilotage_pilot.core.model import GrantedJob, Report, ReportedState, Usage
from pilotage_pilot.link.base import NodeDescription

STATES = {
    ReportedState.RUNNING: jobs_pb2.JOB_STATE_RUNNING,
    ReportedState.PLUGGED: jobs_pb2.JOB_STATE_RUNNING,
    ReportedState.SUSPENDED: jobs_pb2.JOB_STATE_SUSPENDED,
    ReportedState.COMPLETING: jobs_pb2.JOB_STATE_COMPLETING,
    ReportedState.DONE: jobs_pb2.JOB_STATE_DONE,
}

_NOTHING_TO_RUN = JobDescription("")
_LONGEST_FAULT = 1000


def request_to_wire(call: RequestJobs) -> matcher_service_pb2.RequestJobsRequest:
    """Return the message of a request for jobs."""
    return matcher_service_pb2.RequestJobsRequest(
        request_id=call.request_id,
        slots=[slot_offer_to_wire(slot) for slot in call.slots],
        reports=[report_to_wire(report) for report in call.reports],
        wait_s=call.wait_s,
        pool_ids=call.pool_ids,
        ad_parts=[ad_part_to_wire(part) for part in call.ad_parts],
        node_attributes_version=call.node_attributes_version,
    )


def report_to_wire(report: Report) -> jobs_pb2.JobReport:
    """Return the message of a report."""
    return jobs_pb2.JobReport(
        job_id=report.key.job_id,
        attempt=report.key.attempt,
        state=STATES[report.state],
        outcome=outcome_to_wire(report.outcome),
        exit_code=report.exit_code,
        signal=report.signal,
        reason=report.reason,
        started=time_to_wire(report.started),
        ended=time_to_wire(report.ended),
        cpu_s=report.usage.cpu_s,
        wall_s=report.wall_s,
        suspended_s=report.suspended_s,
        peak_memory_mib=report.usage.peak_memory_mib,
        memory_limit_mib=report.memory_limit_mib,
        output_files=[output_to_wire(file) for file in report.output_files],
        hold=job_hold_to_wire(report.hold),
        plugged=report.state is ReportedState.PLUGGED,
        system_cpu_s=report.usage.system_cpu_s,
        peak_disk_mib=report.usage.peak_disk_mib,
        traceparent=report.traceparent if is_sampled(report.traceparent) else "",
    )


def heartbeat_to_wire(call: SendHeartbeat, node: NodeDescription) -> matcher_service_pb2.ReportStateRequest:
    """Return the message of a heartbeat; it has the node if it reports the slots."""
    return matcher_service_pb2.ReportStateRequest(
        request_id=call.request_id,
        leases=[held_lease_to_wire(key) for key in call.leases],
        reports=[report_to_wire(report) for report in call.reports],
        node=_node_to_wire(call, call.slots, node) if call.slots is not None else None,
        ending=call.ending,
        ending_reason=call.ending_reason,
        node_attributes_version=call.node_attributes_version,
        came_back_empty=call.came_back_empty,
        usages=[_usage_to_wire(key, usage) for key, usage in call.usages.items()],
    )


def _usage_to_wire(key: AttemptKey, usage: Usage) -> matcher_service_pb2.RunningUsage:
    return matcher_service_pb2.RunningUsage(
        job_id=key.job_id,
        attempt=key.attempt,
        cpu_s=usage.cpu_s,
        system_cpu_s=usage.system_cpu_s,
        peak_memory_mib=usage.peak_memory_mib,
        peak_disk_mib=usage.peak_disk_mib,
    )


def _node_to_wire(call: SendHeartbeat, slots: Iterable[Slot], node: NodeDescription) -> matcher_service_pb2.NodeState:
    message = matcher_service_pb2.NodeState(
        name=node.name,
        amounts=amounts_to_wire(node.amounts),
        ends=time_to_wire(node.ends),
        cpu_power=node.cpu_power,
        slots=[_slot_to_wire(slot) for slot in slots],
        pilot_version=node.pilot_version,
        draining=call.draining,
        settable_attributes=call.settable,
        isolation=node.isolation,
    )
    section_to_wire(node.attributes, message.attributes)
    return message


def _slot_to_wire(slot: Slot) -> matcher_service_pb2.SlotState:
    message = matcher_service_pb2.SlotState(
        name=slot.name,
        state=slot.state,
        activity=slot.activity,
        amounts=amounts_to_wire(slot.amounts),
        free=amounts_to_wire(slot.free),
        job_id=slot.key.job_id if slot.key is not None else 0,
        attempt=slot.key.attempt if slot.key is not None else 0,
        since=time_to_wire(slot.since.utc),
        since_state=time_to_wire(slot.since_state.utc),
        load=slot.readings.get("LoadAvg", 0.0),
        partitionable=slot.partitionable,
        ad=slot.ad,
    )
    fault = {POLICY_FAULT: slot.policy_fault} if slot.policy_fault else {}
    section_to_wire({**slot.readings, **fault}, message.attributes)
    return message


def pools_request(queue: QueueId) -> matcher_service_pb2.GetSubmitPoolsForQueueRequest:
    """Return the request for the pools of a queue."""
    return matcher_service_pb2.GetSubmitPoolsForQueueRequest(queues=[queue_to_wire(queue)])


def pools_from_wire(message: matcher_service_pb2.GetSubmitPoolsForQueueResponse) -> ev.PoolsRead:
    """Return the pools of the only queue in the answer."""
    if not message.queues:
        return ev.PoolsRead(known=False)
    return ev.PoolsRead(message.queues[0].known, tuple(message.queues[0].pool_ids))


def granted_from_wire(request_id: str, message: matcher_service_pb2.RequestJobsResponse) -> ev.JobsGranted:
    """Return the answer to a request for jobs; an unreadable description becomes the job's `fault`."""
    return ev.JobsGranted(
        request_id,
        tuple(_job_from_wire(match) for match in message.matches),
        tuple(result_from_wire(result) for result in message.results),
        message.pools_changed,
        tuple(_commands_from_wire(message.commands)),
        tuple(vacate_from_wire(order) for order in message.vacate),
        tuple(message.ad_parts_wanted),
        _node_attributes_from_wire(message),
        dict(message.slot_faults),
        tuple(tail_stream_from_wire(each) for each in message.tails),
    )


def _node_attributes_from_wire(
    message: matcher_service_pb2.RequestJobsResponse | matcher_service_pb2.ReportStateResponse,
) -> ev.NodeAttributes | None:
    if not message.HasField("node_attributes"):
        return None
    message_attributes = message.node_attributes
    return ev.NodeAttributes(message_attributes.version, dict(message_attributes.expressions))


def _job_from_wire(match: matcher_service_pb2.Match) -> GrantedJob:
    description, fault = _NOTHING_TO_RUN, ""
    try:
        description = _description_of(match)
    except InvalidInputError as error:
        fault = f"its description cannot be read: {error!s:.{_LONGEST_FAULT}}"
    return GrantedJob(
        key=AttemptKey(match.job_id, match.attempt),
        slot=match.slot,
        lease_s=match.lease_s,
        description=description,
        amounts=job_amounts_from_wire(match.amounts),
        task_queue=match.task_queue,
        owner=match.owner,
        vo=match.vo,
        group=match.group,
        cluster=match.cluster,
        process=match.process,
        job_ad=match.job_ad,
        fault=fault,
        traceparent=match.traceparent,
    )


def _description_of(match: matcher_service_pb2.Match) -> JobDescription:
    """Return the description of a job; raises InvalidInputError.

    Consecutive jobs are mostly of one array: their descriptions differ only in the numbers in their environment.
    """
    environment = match.description.environment
    numbers = {name: environment.pop(name) for name in NUMBER_VARIABLES if name in environment}
    description = _description(match.description.SerializeToString(deterministic=True))
    return replace(description, environment={**description.environment, **numbers})


@lru_cache(maxsize=128)
def _description(message: bytes) -> JobDescription:
    return description_from_wire(jobs_pb2.JobDescription.FromString(message))


def _commands_from_wire(messages: Iterable[matcher_service_pb2.Command]) -> Iterable[ev.Command]:
    for message in messages:
        # Ignore a command of a later release.
        match message.WhichOneof("action"):
            case "kill":
                yield ev.KillCommanded(AttemptKey(message.kill.job_id, message.kill.attempt), message.kill.reason)
            case "drain":
                yield ev.DrainCommanded(message.drain.reason, message.drain.evict)
            case "report_node":
                yield ev.ReportCommanded()
            case _:
                continue


def answered_from_wire(request_id: str, message: matcher_service_pb2.ReportStateResponse) -> ev.HeartbeatAnswered:
    """Return the answer to a heartbeat."""
    return ev.HeartbeatAnswered(
        request_id,
        tuple(renewed_from_wire(each) for each in message.renewed),
        tuple(lost_from_wire(each) for each in message.lost),
        tuple(result_from_wire(result) for result in message.results),
        tuple(_commands_from_wire(message.commands)),
        message.next_s,
        message.node_wanted,
        time_from_wire(message.server_time) if message.HasField("server_time") else None,
        _node_attributes_from_wire(message),
        tuple(tail_stream_from_wire(each) for each in message.tails),
    )
