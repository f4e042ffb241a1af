"""Wire → domain for the reports of pilots: how attempts go on and how they ended."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from pilotage.errors import InvalidInputError, Violation
from pilotage.report_bounds import LATEST_S
from pilotage.v1 import jobs_pb2
from pilotage.wire import enum_from_wire
from pilotage_server.core.job_files import ReportedOutput, fault_of_name, is_checksum
from pilotage_server.core.jobs import JobState
from pilotage_server.core.reports import HoldWish, JobReport, Outcome
from pilotage_server.rpc.convert_values import Fields, each, job_id_from_wire, reason_from_wire

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANOS_IN_S = 1_000_000_000
_NANOS_IN_US = 1000
_OUTCOMES: dict[int, Outcome] = {jobs_pb2.Outcome.Value(f"OUTCOME_{each.name}"): each for each in Outcome}
_STATES: dict[int, JobState] = {
    jobs_pb2.JobState.Value(f"JOB_STATE_{each.name}"): each
    for each in (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)
}


def job_report_from_wire(message: jobs_pb2.JobReport) -> JobReport:
    """Return what a pilot says of one attempt; raises InvalidInputError with every fault of it."""
    if not _is_sound(message):
        _check_report(message)
    outcome = message.outcome
    return JobReport(  # by place, as this is done tens of thousands of times a second
        message.job_id,
        message.attempt,
        JobState.DONE if outcome else _STATES[message.state],
        _OUTCOMES[outcome] if outcome else None,
        message.exit_code if message.HasField("exit_code") else None,
        message.signal if message.HasField("signal") else None,
        reason_from_wire(message.reason) if message.reason else "",
        _time(message.started) if message.HasField("started") else None,
        _time(message.ended) if message.HasField("ended") else None,
        message.cpu_s,
        message.wall_s,
        message.suspended_s,
        message.peak_memory_mib,
        each(message.output_files, _output_file),
        _hold_wish(message.hold) if message.HasField("hold") else None,
        message.plugged,
    )


def _is_sound(message: jobs_pb2.JobReport) -> bool:
    """Whether a look is enough to see that a report has no fault; `_check_report` tells for sure."""
    return (
        message.job_id > 0
        and message.attempt >= 0
        and (message.outcome in _OUTCOMES if message.outcome else message.state in _STATES)
        and _is_time(message.started)
        and _is_time(message.ended)
        and 0.0 <= message.cpu_s < math.inf
        and 0.0 <= message.wall_s < math.inf
        and 0.0 <= message.suspended_s < math.inf
        and message.peak_memory_mib >= 0
        and not (message.reason or message.output_files or message.HasField("hold"))
    )


def _is_time(message: Timestamp) -> bool:
    return 0 <= message.seconds <= LATEST_S and 0 <= message.nanos < _NANOS_IN_S


def _time(message: Timestamp) -> datetime:
    """Return the time of a message without a fault, as `time_from_wire` does."""
    return _EPOCH + timedelta(0, message.seconds, message.nanos // _NANOS_IN_US)


def _check_report(message: jobs_pb2.JobReport) -> None:
    """Raise InvalidInputError with every fault of a report."""
    fields = Fields(message)
    outcome = fields("outcome", lambda number: enum_from_wire(jobs_pb2.Outcome, number))
    if not outcome:
        fields("state", _reported_state)
    fields("job_id", job_id_from_wire)
    fields("reason", reason_from_wire)
    for name in ("attempt", "peak_memory_mib"):
        fields.count(name)
    for name in ("started", "ended"):
        fields.time(name)
    for name in ("cpu_s", "wall_s", "suspended_s"):
        fields.amount(name)
    fields("output_files", lambda files: each(files, _output_file))
    fields.if_set("hold", _hold_wish)
    fields.done()


def _hold_wish(message: jobs_pb2.HoldWish) -> HoldWish:
    fields = Fields(message)
    wish = HoldWish(fields("reason", reason_from_wire), message.subcode)
    fields.done()
    return wish


def _reported_state(number: int) -> None:
    name = enum_from_wire(jobs_pb2.JobState, number)
    if number not in _STATES:
        why = f"{name or 'nothing'} is not a state that a pilot has an attempt in, and no outcome is told"
        raise InvalidInputError(Violation("", why))


def _output_file(message: jobs_pb2.OutputFile) -> ReportedOutput:
    fields = Fields(message)
    fault = fault_of_name(message.name)
    fields.faults.unless(not fault, "name", fault)
    fields.faults.unless(is_checksum(message.checksum), "checksum", "is not 64 hex digits")
    content = fields.if_set("content", bytes)
    size = fields.count("size")
    fields.faults.unless(content is None or len(content) == size, "content", f"has not {size} bytes")
    fields.done()
    return ReportedOutput(message.name, message.checksum, size, content, message.truncated)
