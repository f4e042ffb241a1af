"""Attempts ↔ wire: outcomes, holds, output files, leases, results of reports."""

from __future__ import annotations

from pilotage.jobs.file_names import fault_of_name, is_checksum
from pilotage.rpc.wire import length_from_wire
from pilotage.v1 import jobs_pb2, matcher_service_pb2
from pilotage.values.attempts import (
    AttemptKey,
    JobHold,
    LostLease,
    Outcome,
    RenewedLease,
    ReportedOutput,
    ReportResult,
    TailStream,
)
from pilotage.values.wire.fields import Fields, job_id_from_wire, reason_from_wire

OUTCOMES: dict[int, Outcome] = {jobs_pb2.Outcome.Value(f"OUTCOME_{each.name}"): each for each in Outcome}
"""Outcomes by their numbers on the wire."""

_NUMBERS: dict[Outcome, jobs_pb2.Outcome.ValueType] = {
    each: jobs_pb2.Outcome.Value(f"OUTCOME_{each.name}") for each in Outcome
}


def outcome_to_wire(outcome: Outcome | None) -> jobs_pb2.Outcome.ValueType:
    """Return the number of an outcome; None = the attempt has not ended."""
    return _NUMBERS[outcome] if outcome is not None else jobs_pb2.OUTCOME_UNSPECIFIED


def held_lease_to_wire(key: AttemptKey) -> matcher_service_pb2.HeldLease:
    """Return the message of an attempt whose lease a pilot holds."""
    return matcher_service_pb2.HeldLease(job_id=key.job_id, attempt=key.attempt)


def held_lease_from_wire(message: matcher_service_pb2.HeldLease) -> AttemptKey:
    """Return the attempt whose lease a pilot holds."""
    fields = Fields(message)
    key = AttemptKey(fields("job_id", job_id_from_wire), fields.count("attempt"))
    fields.done()
    return key


def job_hold_to_wire(hold: JobHold | None) -> jobs_pb2.HoldWish | None:
    """Return the message of a hold; None stays None, which message constructors take as unset."""
    return None if hold is None else jobs_pb2.HoldWish(reason=hold.reason, subcode=hold.subcode)


def job_hold_from_wire(message: jobs_pb2.HoldWish) -> JobHold:
    """Return the hold that a policy wants."""
    fields = Fields(message)
    hold = JobHold(fields("reason", reason_from_wire), message.subcode)
    fields.done()
    return hold


def output_to_wire(file: ReportedOutput) -> jobs_pb2.OutputFile:
    """Return the message of a file that an attempt left."""
    return jobs_pb2.OutputFile(
        name=file.name, checksum=file.checksum, size=file.size, content=file.content, truncated=file.truncated
    )


def output_from_wire(message: jobs_pb2.OutputFile) -> ReportedOutput:
    """Return an output file; its name stays inside the job's folder, and its content has the stated size."""
    fields = Fields(message)
    fault = fault_of_name(message.name)
    fields.faults.unless(not fault, "name", fault)
    fields.faults.unless(is_checksum(message.checksum), "checksum", "is not 64 hex digits")
    content = fields.if_set("content", bytes)
    size = fields.count("size")
    fields.faults.unless(content is None or len(content) == size, "content", f"has not {size} bytes")
    fields.done()
    return ReportedOutput(message.name, message.checksum, size, content, message.truncated)


def renewed_to_wire(lease: RenewedLease) -> matcher_service_pb2.RenewedLease:
    """Return the message of a renewed lease."""
    return matcher_service_pb2.RenewedLease(
        job_id=lease.job_id, attempt=lease.attempt, lease_s=lease.lease.total_seconds()
    )


def renewed_from_wire(message: matcher_service_pb2.RenewedLease) -> RenewedLease:
    """Return a renewed lease."""
    return RenewedLease(message.job_id, message.attempt, length_from_wire(message.lease_s))


def lost_to_wire(lost: LostLease) -> matcher_service_pb2.LostLease:
    """Return the message of a lost lease."""
    return matcher_service_pb2.LostLease(job_id=lost.job_id, attempt=lost.attempt, reason=lost.reason)


def lost_from_wire(message: matcher_service_pb2.LostLease) -> LostLease:
    """Return a lost lease."""
    return LostLease(message.job_id, message.attempt, message.reason)


def result_to_wire(result: ReportResult) -> matcher_service_pb2.ReportResult:
    """Return the message of a report's result."""
    return matcher_service_pb2.ReportResult(
        job_id=result.job_id, attempt=result.attempt, accepted=result.accepted, refusal=result.refusal
    )


def result_from_wire(message: matcher_service_pb2.ReportResult) -> ReportResult:
    """Return the result of a report; a refusal always has a reason."""
    refusal = "" if message.accepted else message.refusal or "refused"
    return ReportResult(message.job_id, message.attempt, refusal)


def tail_stream_to_wire(stream: TailStream) -> matcher_service_pb2.TailStream:
    """Return the message of a followed stream."""
    return matcher_service_pb2.TailStream(job_id=stream.job_id, attempt=stream.attempt, error=stream.is_error)


def tail_stream_from_wire(message: matcher_service_pb2.TailStream) -> TailStream:
    """Return a followed stream."""
    fields = Fields(message)
    stream = TailStream(fields("job_id", job_id_from_wire), fields.count("attempt"), message.error)
    fields.done()
    return stream
