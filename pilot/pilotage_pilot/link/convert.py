"""Between the words of the core and the wire; the only module of the pilot that knows both."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from pilotage.description_wire import description_from_wire
from pilotage.errors import InvalidInputError
from pilotage.job_description import JobDescription
from pilotage.resource_tree import QueueId
from pilotage.v1 import jobs_pb2, matcher_service_pb2, values_pb2
from pilotage.wire import (
    queue_to_wire,
    section_to_wire,
    time_from_wire,
    time_to_wire,
)
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.instructions import Occupied, RequestJobs, SendHeartbeat, SlotOffer
from pilotage_pilot.core.jobs import (
    Account,
    AttemptKey,
    GrantedJob,
    HoldWish,
    Outcome,
    Report,
    ReportedState,
    ReportResult,
    StoredFile,
)
from pilotage_pilot.core.slots import Slot
from pilotage_pilot.link.base import NodeFacts

OUTCOMES = {
    Outcome.EXITED: jobs_pb2.OUTCOME_EXITED,
    Outcome.LIMIT_EXCEEDED: jobs_pb2.OUTCOME_LIMIT_EXCEEDED,
    Outcome.START_FAILED: jobs_pb2.OUTCOME_START_FAILED,
    Outcome.REFUSED_BY_JOB: jobs_pb2.OUTCOME_REFUSED_BY_JOB,
    Outcome.EVICTED: jobs_pb2.OUTCOME_EVICTED,
    Outcome.DECLINED: jobs_pb2.OUTCOME_DECLINED,
    Outcome.KILLED: jobs_pb2.OUTCOME_KILLED,
    Outcome.OUTPUT_LOST: jobs_pb2.OUTCOME_OUTPUT_LOST,
}
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
        slots=[_offer_to_wire(slot) for slot in call.slots],
        reports=[report_to_wire(report) for report in call.reports],
        wait_s=call.wait_s,
        pool_ids=call.pool_ids,
        ad_parts=[matcher_service_pb2.AdPart(key=part.key, text=part.text) for part in call.ad_parts],
        node_attributes_version=call.node_attributes_version,
    )


def _offer_to_wire(offer: SlotOffer) -> matcher_service_pb2.SlotOffer:
    return matcher_service_pb2.SlotOffer(
        name=offer.name,
        free=amounts_to_wire(offer.free),
        partitionable=offer.partitionable,
        time_left_s=offer.time_left_s,
        cpu_power=offer.cpu_power,
        declined_task_queues=offer.declined_task_queues,
        ad_parts=offer.ad_parts,
        ad_changes=offer.ad_changes,
        claim=_account_to_wire(offer.claim) if offer.claim is not None else None,
        occupied=_occupied_to_wire(offer.occupied) if offer.occupied is not None else None,
        job_ad_wanted=offer.job_ad_wanted,
        ahead=offer.ahead,
    )


def _account_to_wire(account: Account) -> matcher_service_pb2.Account:
    return matcher_service_pb2.Account(vo=account.vo, group=account.group, owner=account.owner)


def _occupied_to_wire(occupied: Occupied) -> matcher_service_pb2.Occupied:
    return matcher_service_pb2.Occupied(
        job_id=occupied.key.job_id,
        attempt=occupied.key.attempt,
        current_rank=occupied.rank,
        ordered=occupied.ordered,
    )


def amounts_to_wire(amounts: Amounts) -> values_pb2.Amounts:
    """Return the message of amounts."""
    return values_pb2.Amounts(
        cpus=amounts.cpus, memory_mib=amounts.memory_mib, disk_mib=amounts.disk_mib, gpus=amounts.gpus
    )


def report_to_wire(report: Report) -> jobs_pb2.JobReport:
    """Return the message of a report."""
    return jobs_pb2.JobReport(
        job_id=report.key.job_id,
        attempt=report.key.attempt,
        state=STATES[report.state],
        outcome=OUTCOMES[report.outcome] if report.outcome is not None else jobs_pb2.OUTCOME_UNSPECIFIED,
        exit_code=report.exit_code,
        signal=report.signal,
        reason=report.reason,
        started=time_to_wire(report.started),
        ended=time_to_wire(report.ended),
        cpu_s=report.usage.cpu_s,
        wall_s=report.wall_s,
        suspended_s=report.suspended_s,
        peak_memory_mib=report.usage.peak_memory_mib,
        output_files=[_file_to_wire(file) for file in report.output_files],
        hold=_hold_to_wire(report.hold) if report.hold is not None else None,
        plugged=report.state is ReportedState.PLUGGED,
    )


def _hold_to_wire(hold: HoldWish) -> jobs_pb2.HoldWish:
    return jobs_pb2.HoldWish(reason=hold.reason, subcode=hold.subcode)


def _file_to_wire(file: StoredFile) -> jobs_pb2.OutputFile:
    return jobs_pb2.OutputFile(
        name=file.name, checksum=file.checksum, size=file.size, content=file.content, truncated=file.truncated
    )


def heartbeat_to_wire(call: SendHeartbeat, node: NodeFacts) -> matcher_service_pb2.ReportStateRequest:
    """Return the message of a heartbeat; the node is in it where the slots are."""
    return matcher_service_pb2.ReportStateRequest(
        request_id=call.request_id,
        leases=[matcher_service_pb2.HeldLease(job_id=key.job_id, attempt=key.attempt) for key in call.leases],
        reports=[report_to_wire(report) for report in call.reports],
        node=_node_to_wire(call, call.slots, node) if call.slots is not None else None,
        ending=call.ending,
        ending_reason=call.ending_reason,
        node_attributes_version=call.node_attributes_version,
        came_back_empty=call.came_back_empty,
    )


def _node_to_wire(call: SendHeartbeat, slots: Iterable[Slot], node: NodeFacts) -> matcher_service_pb2.NodeState:
    message = matcher_service_pb2.NodeState(
        name=node.name,
        amounts=amounts_to_wire(node.amounts),
        ends=time_to_wire(node.ends),
        cpu_power=node.cpu_power,
        slots=[_slot_to_wire(slot) for slot in slots],
        pilot_version=node.pilot_version,
        draining=call.draining,
        settable_attributes=call.settable,
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
    section_to_wire(slot.readings, message.attributes)
    return message


def pools_request(queue: QueueId) -> matcher_service_pb2.GetSubmitPoolsForQueueRequest:
    """Return the message that asks for the pools of a queue."""
    return matcher_service_pb2.GetSubmitPoolsForQueueRequest(queues=[queue_to_wire(queue)])


def pools_from_wire(message: matcher_service_pb2.GetSubmitPoolsForQueueResponse) -> ev.PoolsRead:
    """Return what the server says of the one queue that was asked for."""
    if not message.queues:
        return ev.PoolsRead(known=False)
    return ev.PoolsRead(message.queues[0].known, tuple(message.queues[0].pool_ids))


def granted_from_wire(request_id: str, message: matcher_service_pb2.RequestJobsResponse) -> ev.JobsGranted:
    """Return the answer to a request for jobs; what cannot be read of a job is that job's own fault."""
    return ev.JobsGranted(
        request_id,
        tuple(_job_from_wire(match) for match in message.matches),
        tuple(_result_from_wire(result) for result in message.results),
        message.pools_changed,
        tuple(_commands_from_wire(message.commands)),
        tuple(ev.VacateOrder(order.slot, order.reason) for order in message.vacate),
        tuple(message.ad_parts_wanted),
        _node_attributes_from_wire(message),
    )


def _node_attributes_from_wire(
    message: matcher_service_pb2.RequestJobsResponse | matcher_service_pb2.ReportStateResponse,
) -> ev.NodeAttributes | None:
    if not message.HasField("node_attributes"):
        return None
    said = message.node_attributes
    return ev.NodeAttributes(said.version, dict(said.expressions))


def _job_from_wire(match: matcher_service_pb2.Match) -> GrantedJob:
    description, fault = _NOTHING_TO_RUN, ""
    try:
        description = _description(match.description.SerializeToString())
    except InvalidInputError as error:
        fault = f"its description cannot be read: {error!s:.{_LONGEST_FAULT}}"
    return GrantedJob(
        key=AttemptKey(match.job_id, match.attempt),
        slot=match.slot,
        lease_s=match.lease_s,
        description=description,
        amounts=_amounts_from_wire(match.amounts),
        task_queue=match.task_queue,
        owner=match.owner,
        vo=match.vo,
        group=match.group,
        cluster=match.cluster,
        process=match.process,
        job_ad=match.job_ad,
        fault=fault,
    )


@lru_cache(maxsize=128)
def _description(message: bytes) -> JobDescription:
    # The jobs of an array, which come one after the other, are mostly described in the same words.
    return description_from_wire(jobs_pb2.JobDescription.FromString(message))


def _amounts_from_wire(message: values_pb2.Amounts) -> Amounts:
    # A job that says nothing of cores takes one.
    return Amounts(max(1, message.cpus), max(0, message.memory_mib), max(0, message.disk_mib), max(0, message.gpus))


def _result_from_wire(message: matcher_service_pb2.ReportResult) -> ReportResult:
    return ReportResult(AttemptKey(message.job_id, message.attempt), message.accepted, message.refusal)


def _commands_from_wire(messages: Iterable[matcher_service_pb2.Command]) -> Iterable[ev.Command]:
    for message in messages:
        # A command of a later release, which this one does not know, is left out.
        match message.WhichOneof("action"):
            case "kill":
                yield ev.KillCommanded(AttemptKey(message.kill.job_id, message.kill.attempt), message.kill.reason)
            case "drain":
                yield ev.DrainCommanded(message.drain.reason, message.drain.evict)
            case _:
                continue


def answered_from_wire(request_id: str, message: matcher_service_pb2.ReportStateResponse) -> ev.HeartbeatAnswered:
    """Return the answer to a heartbeat."""
    return ev.HeartbeatAnswered(
        request_id,
        tuple(ev.RenewedLease(AttemptKey(each.job_id, each.attempt), each.lease_s) for each in message.renewed),
        tuple(ev.LostLease(AttemptKey(each.job_id, each.attempt), each.reason) for each in message.lost),
        tuple(_result_from_wire(result) for result in message.results),
        tuple(_commands_from_wire(message.commands)),
        message.next_s,
        message.node_wanted,
        time_from_wire(message.server_time) if message.HasField("server_time") else None,
        _node_attributes_from_wire(message),
    )
