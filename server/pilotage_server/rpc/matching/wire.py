"""Wire ↔ domain for MatcherService: offers, reports and node state in; matches, leases and commands out."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

from google.protobuf.timestamp_pb2 import Timestamp

from pilotage.classads.evaluation import Ad
from pilotage.errors import InvalidInputError, Violation
from pilotage.jobs.report_limits import LATEST_S
from pilotage.jobs.wire import description_to_wire
from pilotage.rpc.wire import enum_from_wire, length_from_wire, section_from_wire, time_to_wire
from pilotage.v1 import jobs_pb2, matcher_service_pb2
from pilotage.values.attempts import ReportResult, TailStream
from pilotage.values.offers import SlotOffer
from pilotage.values.wire.amounts import amounts_from_wire, amounts_to_wire
from pilotage.values.wire.attempts import (
    OUTCOMES,
    held_lease_from_wire,
    job_hold_from_wire,
    lost_to_wire,
    output_from_wire,
    renewed_to_wire,
    result_to_wire,
    tail_stream_from_wire,
    tail_stream_to_wire,
)
from pilotage.values.wire.fields import Fields, all_from_wire, job_id_from_wire, name_from_wire, reason_from_wire
from pilotage.values.wire.isolation import isolation_from_wire
from pilotage.values.wire.offers import ad_part_from_wire, is_plain_name, slot_offer_from_wire, vacate_to_wire
from pilotage_server.core.attempts.reports import JobReport, NodeState, ReportedSlot, RunningUsage
from pilotage_server.core.attempts.tails import MAX_PIECE_BYTES
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.pilots.nodes import NodeSettings
from pilotage_server.operations.attempts.heartbeats import HeartbeatAnswer, ReceivedHeartbeat
from pilotage_server.operations.attempts.pilot_calls import DrainPilot, Kill, PilotCommand, ReportNode
from pilotage_server.operations.matching.work import Match, WorkAnswer, WorkRequest
from pilotage_server.rpc.framework.wire_values import check_count

_SHORT_HEAD = 2
"""Bytes before a short name on the wire: the field's key and the length (Protocol Buffers, "Encoding")."""


class OfferReader:
    """Reads the slots of one call; slots that differ only in the name are read once."""

    def __init__(self) -> None:
        self._cache: dict[bytes, SlotOffer] = {}

    def __call__(self, message: matcher_service_pb2.SlotOffer) -> SlotOffer:
        """Return the offer of a slot; raises InvalidInputError with all its faults."""
        name, written = message.name, message.SerializeToString()
        # The name is the first field, but the wire format does not promise that it is written first.
        if not (is_plain_name(name) and written.startswith(name.encode(), _SHORT_HEAD)):
            return slot_offer_from_wire(message)
        key = written[_SHORT_HEAD + len(name) :]
        known = self._cache.get(key)
        if known is not None:
            return SlotOffer(name, *known[1:])
        offer = self._cache[key] = slot_offer_from_wire(message)
        return offer


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANOS_IN_S = 1_000_000_000
_NANOS_IN_US = 1000
_STATES: dict[int, JobState] = {
    jobs_pb2.JobState.Value(f"JOB_STATE_{each.name}"): each
    for each in (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)
}


def job_report_from_wire(message: jobs_pb2.JobReport) -> JobReport:
    """Return the report of one attempt; raises InvalidInputError with all its faults."""
    if not _is_valid_report(message):
        _check_report(message)
    outcome = message.outcome
    return JobReport(  # positional: this runs tens of thousands of times a second
        message.job_id,
        message.attempt,
        JobState.DONE if outcome else _STATES[message.state],
        OUTCOMES[outcome] if outcome else None,
        message.exit_code if message.HasField("exit_code") else None,
        message.signal if message.HasField("signal") else None,
        reason_from_wire(message.reason) if message.reason else "",
        _time(message.started) if message.HasField("started") else None,
        _time(message.ended) if message.HasField("ended") else None,
        message.cpu_s,
        message.wall_s,
        message.suspended_s,
        message.peak_memory_mib,
        all_from_wire(message.output_files, output_from_wire),
        job_hold_from_wire(message.hold) if message.HasField("hold") else None,
        message.plugged,
        message.memory_limit_mib,
        message.system_cpu_s,
        message.peak_disk_mib,
        message.traceparent,
    )


def _is_valid_report(message: jobs_pb2.JobReport) -> bool:
    """Return whether a fast check finds no fault; `_check_report` decides the other cases."""
    return (
        message.job_id > 0
        and message.attempt >= 0
        and (message.outcome in OUTCOMES if message.outcome else message.state in _STATES)
        and _is_time(message.started)
        and _is_time(message.ended)
        and 0.0 <= message.cpu_s < math.inf
        and 0.0 <= message.wall_s < math.inf
        and 0.0 <= message.suspended_s < math.inf
        and message.peak_memory_mib >= 0
        and message.memory_limit_mib >= 0
        and 0.0 <= message.system_cpu_s < math.inf
        and message.peak_disk_mib >= 0
        and not (message.reason or message.output_files or message.HasField("hold"))
    )


def _is_time(message: Timestamp) -> bool:
    return 0 <= message.seconds <= LATEST_S and 0 <= message.nanos < _NANOS_IN_S


def _time(message: Timestamp) -> datetime:
    """Return the time of a valid message, as `time_from_wire` does."""
    return _EPOCH + timedelta(0, message.seconds, message.nanos // _NANOS_IN_US)


def _check_report(message: jobs_pb2.JobReport) -> None:
    """Raise InvalidInputError with all faults of a report."""
    fields = Fields(message)
    outcome = fields("outcome", lambda number: enum_from_wire(jobs_pb2.Outcome, number))
    if not outcome:
        fields("state", _reported_state)
    fields("job_id", job_id_from_wire)
    fields("reason", reason_from_wire)
    for name in ("attempt", "peak_memory_mib", "memory_limit_mib", "peak_disk_mib"):
        fields.count(name)
    for name in ("started", "ended"):
        fields.time(name)
    for name in ("cpu_s", "system_cpu_s", "wall_s", "suspended_s"):
        fields.amount(name)
    fields("output_files", lambda files: all_from_wire(files, output_from_wire))
    fields.if_set("hold", job_hold_from_wire)
    fields.done()


def _reported_state(number: int) -> None:
    name = enum_from_wire(jobs_pb2.JobState, number)
    if number not in _STATES:
        why = f"{name or 'nothing'} is not a state of an attempt at a pilot, and the outcome is missing"
        raise InvalidInputError(Violation("", why))


_POOL_ID = re.compile(r"[0-9a-f]{64}")

MAX_SLOTS = 5000
"""Limit of the slots in one call."""


MAX_AD_CHARACTERS = 4 * 1024 * 1024
"""Limit of all slot ads in one call: they are read while other matches wait."""


def work_request_from_wire(message: matcher_service_pb2.RequestJobsRequest) -> WorkRequest:
    """Return a pilot's request for jobs; raises InvalidInputError with all its faults."""
    if len(message.slots) > MAX_SLOTS:  # before any of them is read
        raise InvalidInputError(Violation("slots", f"offers {len(message.slots)}, and one call may offer {MAX_SLOTS}"))
    ads = sum(len(part.text) for part in message.ad_parts) + sum(len(slot.ad_changes) for slot in message.slots)
    if ads > MAX_AD_CHARACTERS:
        why = f"have ads of {ads} characters, and those of one call may have {MAX_AD_CHARACTERS}"
        raise InvalidInputError(Violation("slots", why))
    fields = Fields(message)
    request = WorkRequest(
        slots=fields("slots", lambda slots: all_from_wire(slots, OfferReader())),
        reports=fields("reports", lambda reports: all_from_wire(reports, job_report_from_wire)),
        pool_ids=fields("pool_ids", lambda ids: all_from_wire(ids, _pool_id)),
        ad_parts=fields("ad_parts", lambda parts: all_from_wire(parts, ad_part_from_wire)),
        node_settings_version=fields.count("node_attributes_version"),
    )
    fields("wait_s", length_from_wire)
    fields("slots", lambda slots: _check_unique_names(request.slots or slots))  # none are read where one has a fault
    fields.done()
    return request


def _check_unique_names(slots: Any) -> None:
    names = [slot.name for slot in slots]
    if len(set(names)) < len(names):
        twice = min(name for name, times in Counter(names).items() if times > 1)
        raise InvalidInputError(Violation("", f"two slots have the name {twice}"))


def _pool_id(text: str) -> str:
    if not _POOL_ID.fullmatch(text):
        raise InvalidInputError(Violation("", f'"{text}" is not the id of a pool (64 hex digits)'))
    return text


def heartbeat_from_wire(message: matcher_service_pb2.ReportStateRequest) -> ReceivedHeartbeat:
    """Return a pilot's heartbeat; raises InvalidInputError with all its faults."""
    fields = Fields(message)
    fields("leases", check_count)
    heartbeat = ReceivedHeartbeat(
        leases=fields("leases", lambda leases: all_from_wire(leases, held_lease_from_wire)),
        reports=fields("reports", lambda reports: all_from_wire(reports, job_report_from_wire)),
        node=fields.if_set("node", _node_state),
        ending=message.ending,
        ending_reason=fields("ending_reason", reason_from_wire),
        node_settings_version=fields.count("node_attributes_version"),
        came_back_empty=message.came_back_empty,
        usages=fields("usages", lambda usages: all_from_wire(usages, _running_usage)),
    )
    fields("usages", check_count)
    fields.done()
    return heartbeat


def _running_usage(message: matcher_service_pb2.RunningUsage) -> RunningUsage:
    fields = Fields(message)
    usage = RunningUsage(
        fields("job_id", job_id_from_wire),
        fields.count("attempt"),
        fields.amount("cpu_s"),
        fields.amount("system_cpu_s"),
        fields.count("peak_memory_mib"),
        fields.count("peak_disk_mib"),
    )
    fields.done()
    return usage


def _node_state(message: matcher_service_pb2.NodeState) -> NodeState:
    fields = Fields(message)
    node = NodeState(
        name=fields("name", name_from_wire),
        amounts=fields("amounts", amounts_from_wire),
        ends=fields.time("ends"),
        cpu_power=fields.amount("cpu_power"),
        attributes=fields("attributes", section_from_wire),
        slots=fields("slots", lambda slots: all_from_wire(slots, _slot_state)),
        pilot_version=fields.text("pilot_version"),
        draining=message.draining,
        settable_attributes=fields("settable_attributes", lambda names: all_from_wire(names, name_from_wire)),
        isolation=fields("isolation", isolation_from_wire),
    )
    fields("slots", _check_unique_names)
    fields.done()
    return node


def _slot_state(message: matcher_service_pb2.SlotState) -> ReportedSlot:
    fields = Fields(message)
    slot = ReportedSlot(
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
    """Return the answer to a request for jobs."""
    return matcher_service_pb2.RequestJobsResponse(
        matches=[match_to_wire(match) for match in answer.matches],
        results=[result_to_wire(result) for result in answer.results],
        pools_changed=answer.pools_changed,
        commands=[_command(command) for command in answer.commands],
        vacate=[vacate_to_wire(vacate) for vacate in answer.vacates],
        ad_parts_wanted=answer.ad_parts_wanted,
        node_attributes=node_attributes_to_wire(answer.node_settings),
        slot_faults=answer.faults,
        tails=[tail_stream_to_wire(stream) for stream in answer.tails],
    )


def results_to_wire(results: Iterable[ReportResult]) -> matcher_service_pb2.RequestJobsResponse:
    """Return the results of reports as a part of an answer."""
    return matcher_service_pb2.RequestJobsResponse(results=[result_to_wire(result) for result in results])


def match_to_wire(match: Match) -> matcher_service_pb2.Match:
    """Return a match with the description of its one job."""
    return matcher_service_pb2.Match(
        slot=match.slot,
        job_id=match.job_id,
        attempt=match.attempt,
        lease_s=match.lease.total_seconds(),
        description=description_to_wire(match.rendered()),
        amounts=amounts_to_wire(match.terms.amounts),
        task_queue=match.task_queue_id,
        owner=match.owner,
        vo=match.vo,
        group=match.group,
        cluster=match.cluster,
        process=match.process,
        job_ad=match.job_ad,
        traceparent=match.terms.traceparent,
    )


def _command(command: PilotCommand) -> matcher_service_pb2.Command:
    match command:
        case Kill(job_id, attempt, reason):
            kill = matcher_service_pb2.KillAttempt(job_id=job_id, attempt=attempt, reason=reason)
            return matcher_service_pb2.Command(kill=kill)
        case DrainPilot(reason, evict):
            return matcher_service_pb2.Command(drain=matcher_service_pb2.Drain(reason=reason, evict=evict))
        case ReportNode():
            return matcher_service_pb2.Command(report_node=matcher_service_pb2.ReportNode())
        case _:
            assert_never(command)


def heartbeat_answer_to_wire(answer: HeartbeatAnswer, now: datetime) -> matcher_service_pb2.ReportStateResponse:
    """Return the answer to a heartbeat, given at `now`."""
    return matcher_service_pb2.ReportStateResponse(
        renewed=[renewed_to_wire(lease) for lease in answer.renewed],
        lost=[lost_to_wire(lost) for lost in answer.lost],
        results=[result_to_wire(result) for result in answer.results],
        commands=[_command(command) for command in answer.commands],
        next_s=answer.next_in.total_seconds(),
        node_wanted=answer.node_wanted,
        server_time=time_to_wire(now),
        node_attributes=node_attributes_to_wire(answer.node_settings),
        tails=[tail_stream_to_wire(stream) for stream in answer.tails],
    )


def tail_from_wire(message: matcher_service_pb2.PostTailRequest) -> tuple[TailStream, int, bytes]:
    """Return a piece of output: its stream, its position, its content."""
    fields = Fields(message)
    stream, offset = fields("stream", tail_stream_from_wire), fields.count("offset")
    size = len(message.content)
    fields.faults.unless(size <= MAX_PIECE_BYTES, "content", f"has {size} bytes, and at most {MAX_PIECE_BYTES} go")
    fields.done()
    return stream, offset, message.content


def heartbeat_answer_to_bytes(answer: HeartbeatAnswer, now: datetime, former: bytes) -> bytes:
    """Return the bytes of the answer to a heartbeat, with the results of a `former` answer to it."""
    message = heartbeat_answer_to_wire(answer, now)
    message.results.extend(matcher_service_pb2.ReportStateResponse.FromString(former).results)
    return message.SerializeToString()


def node_attributes_to_wire(settings: NodeSettings | None) -> matcher_service_pb2.NodeAttributes | None:
    """Return the settings of a pilot's node; None = the pilot has them."""
    if settings is None:
        return None
    return matcher_service_pb2.NodeAttributes(version=settings.version, expressions=settings.expressions)
