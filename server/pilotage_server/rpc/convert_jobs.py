"""Wire ↔ domain for JobService: descriptions in; jobs, events and explanations out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pilotage.description_wire import description_from_wire
from pilotage.errors import InvalidInputError, InvalidJobError, Violation
from pilotage.faults import Faults
from pilotage.job_description import JobDescription
from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage.wire import enum_from_wire, enum_to_wire, queue_to_wire, section_to_wire, text_from_wire, time_to_wire
from pilotage_server.core.alike import Alike, Own
from pilotage_server.core.explain import Exclusion, QueueOutlook
from pilotage_server.core.job_changes import JobChange
from pilotage_server.core.job_events import JobEvent
from pilotage_server.core.job_files import OutputFile, is_checksum
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobState
from pilotage_server.operations.change_jobs import ChangeResult
from pilotage_server.operations.explain import Explanation
from pilotage_server.operations.query_jobs import JobFilter
from pilotage_server.rpc.convert_values import Fields, each, not_too_many

DEFAULT_PAGE, LARGEST_PAGE = 1000, 10_000

LARGEST_DESCRIPTION = 2 * 1024 * 1024
"""Bytes of a description on the wire: as many input files as a job may bring, with names of a hundred characters.

No process could be started with as much in its arguments and environment (Linux: a quarter of a stack of 8 MiB).
"""


def submission_from_wire(messages: Sequence[jobs_pb2.JobDescription]) -> tuple[Alike, ...]:
    """Return the descriptions of a submission, those that are alike together.

    Raises
    ------
    InvalidJobError
        With the faults of all of them.
    """
    faults = Faults()
    faults.unless(bool(messages), "descriptions", "names nothing")
    alike: dict[bytes, tuple[JobDescription, list[Own]]] = {}
    for place, message in enumerate(messages):
        with faults.within(f"descriptions[{place}]"):
            _not_too_large(message)
            kind = _kind(message)
            if kind not in alike:
                alike[kind] = (description_from_wire(message), [])
            alike[kind][1].append(_own(place, message))
    faults.raise_any(InvalidJobError)
    return tuple(Alike(model, own) for model, own in alike.values())


def submitted_from_wire(message: jobs_pb2.JobDescription) -> JobDescription:
    """Return a description that somebody wants to run; raises InvalidJobError with every fault of it."""
    _not_too_large(message)
    return description_from_wire(message)


def _not_too_large(message: jobs_pb2.JobDescription) -> None:
    size = message.ByteSize()
    if size > LARGEST_DESCRIPTION:
        why = f"takes {size} bytes, and at most {LARGEST_DESCRIPTION} are allowed: let large texts be input files"
        raise InvalidJobError(Violation("", why))


def _kind(message: jobs_pb2.JobDescription) -> bytes:
    """Return what descriptions that differ in nothing but arguments and name have in common."""
    kind = jobs_pb2.JobDescription()
    kind.CopyFrom(message)
    kind.ClearField("arguments")
    kind.ClearField("name")
    return kind.SerializeToString(deterministic=True)


def _own(place: int, message: jobs_pb2.JobDescription) -> Own:
    fields = Fields(message)
    own = Own(place, fields.text("arguments"), fields.text("name"))
    fields.done()
    return own


def checksums_from_wire(checksums: Sequence[str]) -> tuple[str, ...]:
    """Return the checksums that a call names."""
    faults = Faults()
    with faults.within("checksums"):
        not_too_many(checksums)
        each(checksums, checksum_from_wire)
    faults.raise_any()
    return tuple(checksums)


def checksum_from_wire(text: str) -> str:
    """Return a checksum."""
    if not is_checksum(text):
        raise InvalidInputError(Violation("", f'"{text[:80]}" is not a SHA-256 of 64 hex digits'))
    return text


def filter_from_wire(message: job_service_pb2.ListJobsRequest) -> tuple[JobFilter, int]:
    """Return which jobs are listed, and how many a page has."""
    fields = Fields(message)
    states = fields("states", lambda numbers: each(numbers, _state_from_wire))
    page_size = fields("page_size", page_size_from_wire)
    for name in ("owner", "pool", "page_token"):
        fields(name, text_from_wire)
    fields.done()
    wanted = JobFilter(frozenset(states), message.owner, message.pool, message.newest_first, message.copies)
    return wanted, page_size


def page_size_from_wire(number: int) -> int:
    """Return how many a page has; 0 = as usual."""
    if not 0 <= number <= LARGEST_PAGE:
        raise InvalidInputError(Violation("", f"{number} is not the size of a page (1 to {LARGEST_PAGE})"))
    return number or DEFAULT_PAGE


def _state_from_wire(number: int) -> JobState:
    name = enum_from_wire(jobs_pb2.JobState, number)
    if not name:
        raise InvalidInputError(Violation("", "is not said"))
    return JobState(name)


def change_from_wire(number: int) -> JobChange:
    """Return what is to happen to jobs."""
    name = enum_from_wire(job_service_pb2.JobChange, number)
    if not name:
        raise InvalidInputError(Violation("", "is not said"))
    return JobChange[name]


def job_to_wire(job: JobRecord) -> jobs_pb2.Job:
    """Return the message of a job."""
    return jobs_pb2.Job(
        id=job.id,
        state=state_to_wire(job.state),
        reason=job.reason,
        owner=job.owner,
        vo=job.vo,
        group=job.group,
        pool=job.pool_id,
        queue=None if job.queue is None else queue_to_wire(job.queue),
        node=job.node,
        slot=job.slot,
        pilot_stamp=job.pilot_stamp,
        attempt=job.attempt,
        exit_code=job.exit_code,
        submitted=time_to_wire(job.submitted),
        started=time_to_wire(job.started),
        ended=time_to_wire(job.ended),
        name=job.name,
        cluster=job.cluster,
        process=job.process,
        priority=job.priority,
        signal=job.signal,
        hold_code=job.hold_code,
        hold_subcode=job.hold_subcode,
        starts=job.starts,
        wall_clock_s=job.wall_clock.total_seconds(),
        race=job.race,
    )


def state_to_wire(state: JobState) -> jobs_pb2.JobState.ValueType:
    """Return the number of a state."""
    number: jobs_pb2.JobState.ValueType = enum_to_wire(jobs_pb2.JobState, state.value)
    return number


def event_to_wire(event: JobEvent) -> jobs_pb2.JobEvent:
    """Return the message of an event."""
    message = jobs_pb2.JobEvent(
        position=event.position,
        job_id=event.job_id,
        time=time_to_wire(event.time),
        to=state_to_wire(event.to_state),
        cause=event.cause.value,
        reason=event.reason,
        attempt=event.attempt,
        actor=event.actor,
    )
    setattr(message, "from", state_to_wire(event.from_state))  # the field's name is a word of Python's
    return message


def change_result_to_wire(result: ChangeResult) -> job_service_pb2.JobChangeResult:
    """Return what happened to one job."""
    state = enum_to_wire(jobs_pb2.JobState, result.state.value if result.state else "")
    return job_service_pb2.JobChangeResult(job_id=result.job_id, state=state, refusal=result.refusal)


def output_files_to_wire(files: Iterable[OutputFile]) -> list[jobs_pb2.OutputFile]:
    """Return the files that an attempt left, without content."""
    return [
        jobs_pb2.OutputFile(name=file.name, checksum=file.checksum, size=file.size, truncated=file.truncated)
        for file in files
    ]


def explanation_to_wire(explanation: Explanation) -> job_service_pb2.ExplainJobResponse:
    """Return why a job is where it is."""
    message = job_service_pb2.ExplainJobResponse(
        job=job_to_wire(explanation.job),
        summary=explanation.summary,
        queues_total=explanation.queues_total,
        queues_of_vo=explanation.queues_of_vo,
        exclusions=[_exclusion(exclusion) for exclusion in explanation.exclusions],
        eligible_queues=[_outlook(outlook) for outlook in explanation.eligible_queues],
        jobs_ahead=explanation.jobs_ahead,
        order=explanation.order,
        pool_mapped=time_to_wire(explanation.pool_mapped),
        tree_version=explanation.tree_version,
    )
    section_to_wire(explanation.requirements, message.requirements)
    return message


def _exclusion(exclusion: Exclusion) -> job_service_pb2.Exclusion:
    return job_service_pb2.Exclusion(
        parameter=exclusion.parameter,
        asked=exclusion.asked,
        queues=exclusion.queues,
        queues_alone=exclusion.queues_alone,
        example=exclusion.example,
    )


def _outlook(outlook: QueueOutlook) -> job_service_pb2.QueueOutlook:
    return job_service_pb2.QueueOutlook(
        queue=queue_to_wire(outlook.queue),
        pilots=outlook.pilots,
        pilots_waiting=outlook.pilots_waiting,
        free_slots=outlook.free_slots,
        obstacle=outlook.obstacle,
    )
