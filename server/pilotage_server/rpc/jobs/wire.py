"""Wire ↔ domain for JobService: descriptions in; jobs, events and explanations out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pilotage.errors import Faults, InvalidInputError, InvalidJobError, Violation
from pilotage.job_description import JobDescription
from pilotage.jobs.file_names import is_checksum
from pilotage.jobs.wire import description_from_wire
from pilotage.resources.relaxations import Relaxation
from pilotage.rpc.wire import (
    enum_from_wire,
    enum_to_wire,
    queue_to_wire,
    section_to_wire,
    time_to_wire,
    value_to_wire,
)
from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage.values.jobs import JobCondition
from pilotage.values.selections import JobSelection
from pilotage.values.wire.dependencies import kind_to_wire
from pilotage.values.wire.fields import Fields, all_from_wire, job_id_from_wire, name_from_wire
from pilotage.values.wire.selections import selection_from_wire
from pilotage_server.core.attempts.leases import AttemptFacts
from pilotage_server.core.explain import Exclusion, QueueOutlook
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.clusters import ClusterSummary, SelectedJobs
from pilotage_server.core.jobs.descriptions import DescriptionGroup, Overrides
from pilotage_server.core.jobs.files import OutputFile
from pilotage_server.core.jobs.record import FeedEvent, JobRecord
from pilotage_server.core.jobs.states import FINAL, JobState
from pilotage_server.core.jobs.usage import AttemptUsage
from pilotage_server.operations.dry_run import DryRun
from pilotage_server.operations.explain import Explanation
from pilotage_server.operations.jobs.ads import AdFilter
from pilotage_server.operations.jobs.conditions import MOST_EVALUATED, JobsFound
from pilotage_server.operations.jobs.queries import JobDetails
from pilotage_server.operations.jobs.quotas import JobQuota
from pilotage_server.rpc.framework.wire_values import check_count, check_not_empty

DEFAULT_PAGE, LARGEST_PAGE = 1000, 10_000
DEFAULT_CLUSTER_PAGE, LARGEST_CLUSTER_PAGE = 100, 1000

MOST_SELECTIONS = 1000
"""The most selections, and the most runs of ids, in a condition."""

LONGEST_NAME = 255
"""The most characters of the name of a workflow."""

MAX_DESCRIPTION_BYTES = 2 * 1024 * 1024
"""Limit of the bytes of a description.

It allows the maximal number of input files with names of a hundred characters. It also equals Linux's limit of a
process's arguments and environment: a quarter of a stack of 8 MiB.
"""


def submission_from_wire(messages: Sequence[jobs_pb2.JobDescription]) -> tuple[DescriptionGroup, ...]:
    """Return the descriptions of a submission, grouped by equal ones.

    Raises
    ------
    InvalidJobError
        With the faults of all of them.
    """
    faults = Faults()
    faults.unless(bool(messages), "descriptions", "names nothing")
    groups: dict[bytes, tuple[JobDescription, list[Overrides]]] = {}
    for index, message in enumerate(messages):
        with faults.within(f"descriptions[{index}]"):
            _check_size(message)
            faults.unless(bool(index) or not message.continues_cluster, "continues_cluster", "has no cluster before it")
            key = _group_key(message)
            if key not in groups:
                groups[key] = (_description(message), [])
            groups[key][1].append(_overrides(index, message))
    faults.raise_any(InvalidJobError)
    return tuple(DescriptionGroup(model, overrides) for model, overrides in groups.values())


def submitted_from_wire(message: jobs_pb2.JobDescription) -> JobDescription:
    """Return a description without its place in a submission; raises InvalidJobError with all its faults."""
    _check_size(message)
    return _description(message)


def _description(message: jobs_pb2.JobDescription) -> JobDescription:
    return replace(description_from_wire(message), continues_cluster=False)


def _check_size(message: jobs_pb2.JobDescription) -> None:
    size = message.ByteSize()
    if size > MAX_DESCRIPTION_BYTES:
        why = f"takes {size} bytes, and at most {MAX_DESCRIPTION_BYTES} are allowed: put large texts into input files"
        raise InvalidJobError(Violation("", why))


def _group_key(message: jobs_pb2.JobDescription) -> bytes:
    """Return the part of a description that is equal within a group: all but its overrides."""
    common = jobs_pb2.JobDescription()
    common.CopyFrom(message)
    common.ClearField("arguments")
    common.ClearField("name")
    common.ClearField("stdout")
    common.ClearField("stderr")
    common.ClearField("continues_cluster")
    return common.SerializeToString(deterministic=True)


def _overrides(index: int, message: jobs_pb2.JobDescription) -> Overrides:
    if "\0" in f"{message.arguments}{message.name}{message.stdout}{message.stderr}":
        fields = Fields(message)
        for name in ("arguments", "name", "stdout", "stderr"):
            fields.text(name)
        fields.done()
    return Overrides(
        index,
        message.arguments,
        message.name,
        message.continues_cluster,
        message.stdout if message.HasField("stdout") else None,
        message.stderr if message.HasField("stderr") else None,
    )


def checksums_from_wire(checksums: Sequence[str]) -> tuple[str, ...]:
    """Return the checksums of a call, at most `MAX_IDS`."""
    faults = Faults()
    with faults.within("checksums"):
        check_count(checksums)
        all_from_wire(checksums, checksum_from_wire)
    faults.raise_any()
    return tuple(checksums)


def checksum_from_wire(text: str) -> str:
    """Return a checksum; raises InvalidInputError if it is malformed."""
    if not is_checksum(text):
        raise InvalidInputError(Violation("", f'"{text[:80]}" is not a SHA-256 of 64 hex digits'))
    return text


@dataclass(frozen=True, slots=True)
class JobListing:
    """What a list of jobs is asked for."""

    condition: JobCondition
    page_size: int
    page_token: str
    newest_first: bool
    copies: bool


def listing_from_wire(message: job_service_pb2.ListJobsRequest) -> JobListing:
    """Return what a list of jobs is asked for."""
    fields = Fields(message)
    condition = fields("condition", condition_from_wire)
    page_size = fields("page_size", page_size_from_wire)
    page_token = fields.text("page_token")
    fields.done()
    return JobListing(condition, page_size, page_token, message.newest_first, message.copies)


def ad_filter_from_wire(message: job_service_pb2.ListJobAdsRequest) -> tuple[AdFilter, int]:
    """Return the filter of ads, and the page size."""
    fields = Fields(message)
    page_size = fields("page_size", _ad_page_size)
    condition = fields("condition", condition_from_wire)
    fields.text("page_token")
    attributes = fields("attributes", lambda names: all_from_wire(names, name_from_wire))
    fields.done()
    return AdFilter(condition, message.newest_first, attributes), page_size


def _ad_page_size(number: int) -> int:
    if not 0 <= number <= MOST_EVALUATED:
        raise InvalidInputError(Violation("", f"{number} is not the size of a page (1 to {MOST_EVALUATED})"))
    return number or MOST_EVALUATED


def selections_from_wire(
    message: job_service_pb2.FindJobsRequest,
) -> tuple[tuple[JobSelection, ...], frozenset[JobState]]:
    """Return the selections of jobs, and the states of those that a whole cluster stands for."""
    fields = Fields(message)
    fields("selections", check_count)
    fields("selections", check_not_empty)
    selections = fields("selections", lambda messages: all_from_wire(messages, selection_from_wire))
    states = fields("states", lambda numbers: all_from_wire(numbers, _state_from_wire))
    fields.done()
    return selections, frozenset(states)


def condition_from_wire(message: job_service_pb2.JobCondition) -> JobCondition:
    """Return what jobs have in common."""
    fields = Fields(message)
    states = fields("states", lambda numbers: all_from_wire(numbers, _state_from_wire))
    texts = {name: fields.text(name) for name in _CONDITION_TEXTS}
    fields("selections", _check_selections)
    condition = JobCondition(
        frozenset(states or ()),
        since=fields.time("since"),
        until=fields.time("until"),
        selections=fields("selections", lambda messages: all_from_wire(messages, selection_from_wire)),
        runs=fields("runs", runs_from_wire),
        **texts,
    )
    fields.done()
    return condition


_CONDITION_TEXTS = ("site", "ce", "queue", "node", "owner", "vo", "group", "name", "pool", "where")


def _check_selections(selections: Sequence[Any]) -> None:
    if len(selections) > MOST_SELECTIONS:
        raise InvalidInputError(Violation("", f"has {len(selections)} items, at most {MOST_SELECTIONS} are allowed"))


def runs_from_wire(runs: Sequence[job_service_pb2.IdRun]) -> tuple[range, ...]:
    """Return runs of ids; raises InvalidInputError for too many or a malformed one."""
    _check_selections(runs)
    return all_from_wire(runs, _run_from_wire)


def _run_from_wire(run: job_service_pb2.IdRun) -> range:
    if run.count < 1:
        raise InvalidInputError(Violation("count", f"{run.count} is not at least 1"))
    first = job_id_from_wire(run.first)
    return range(first, first + run.count)


def jobs_found_to_wire(found: JobsFound) -> job_service_pb2.SearchJobsResponse:
    """Return the message of the jobs that meet a condition."""
    runs = [job_service_pb2.IdRun(first=run.start, count=len(run)) for run in found.runs]
    owners = [
        job_service_pb2.OwnerCount(owner=holder.owner, vo=holder.vo, jobs=jobs)
        for holder, jobs in sorted(found.owners.items())
    ]
    return job_service_pb2.SearchJobsResponse(
        runs=runs, next_page_token=found.next_page_token, owners=owners, states=counts_to_wire(found.states)
    )


def counts_to_wire(counts: Mapping[JobState, int]) -> list[jobs_pb2.StateCount]:
    """Return the messages of numbers of jobs by state."""
    return [
        jobs_pb2.StateCount(state=state_to_wire(state), jobs=counts[state]) for state in JobState if state in counts
    ]


def selected_to_wire(selected: SelectedJobs) -> job_service_pb2.SelectedJobs:
    """Return the message of selected jobs."""
    runs = [job_service_pb2.IdRun(first=run.start, count=len(run)) for run in selected.runs]
    cluster = None if selected.cluster is None else cluster_to_wire(selected.cluster)
    return job_service_pb2.SelectedJobs(runs=runs, cluster=cluster)


def workflow_from_wire(message: job_service_pb2.SubmitJobsRequest) -> str:
    """Return the name of the workflow that new jobs are, "" = they are none."""
    if not message.HasField("workflow"):
        return ""
    faults = Faults()
    with faults.within("workflow.name"):
        name = name_from_wire(message.workflow.name)
        if len(name) > LONGEST_NAME:
            raise InvalidInputError(Violation("", f"has {len(name)} characters, more than {LONGEST_NAME}"))
    faults.raise_any()
    return message.workflow.name


def cluster_filter_from_wire(message: job_service_pb2.ListClustersRequest) -> tuple[JobCondition, int]:
    """Return what the jobs of listed clusters have in common, and the page size."""
    fields = Fields(message)
    condition = fields("condition", condition_from_wire)
    page_size = fields("page_size", cluster_page_size)
    fields.count("workflow")
    fields.text("page_token")
    fields.done()
    return condition, page_size


def cluster_page_size(number: int) -> int:
    """Return the size of a page of clusters or workflows; 0 = the default."""
    if not 0 <= number <= LARGEST_CLUSTER_PAGE:
        raise InvalidInputError(Violation("", f"{number} is not the size of a page (1 to {LARGEST_CLUSTER_PAGE})"))
    return number or DEFAULT_CLUSTER_PAGE


def cluster_to_wire(cluster: ClusterSummary) -> jobs_pb2.JobCluster:
    """Return the message of a cluster."""
    return jobs_pb2.JobCluster(
        id=cluster.id,
        jobs=cluster.jobs,
        counts=counts_to_wire(cluster.counts),
        owner=cluster.owner,
        vo=cluster.vo,
        group=cluster.group,
        name=cluster.name,
        submitted=time_to_wire(cluster.submitted),
        workflow=cluster.is_workflow,
    )


def page_size_from_wire(number: int) -> int:
    """Return the page size; 0 = the default."""
    if not 0 <= number <= LARGEST_PAGE:
        raise InvalidInputError(Violation("", f"{number} is not the size of a page (1 to {LARGEST_PAGE})"))
    return number or DEFAULT_PAGE


def _state_from_wire(number: int) -> JobState:
    name = enum_from_wire(jobs_pb2.JobState, number)
    if not name:
        raise InvalidInputError(Violation("", "is missing"))
    return JobState(name)


def change_from_wire(number: int) -> JobChange:
    """Return the change of jobs; raises InvalidInputError if it is unspecified."""
    name = enum_from_wire(job_service_pb2.JobChange, number)
    if not name:
        raise InvalidInputError(Violation("", "is missing"))
    return JobChange[name]


def job_to_wire(
    job: JobRecord,
    ignored: Iterable[str] = (),
    usage: AttemptUsage | None = None,
    *,
    futile: bool = False,
    pool_sites: Iterable[str] = (),
) -> jobs_pb2.Job:
    """Return the message of a job.

    `ignored` are the statements of its job file that are not done, `usage` is what its last attempt has used,
    `pool_sites` are the sites of its pool if they are shown.
    """
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
        description_id=job.template_id,
        ignored=ignored,
        usage=None if usage is None else _usage_to_wire(usage),
        futile=futile,
        pool_sites=pool_sites,
    )


def _usage_to_wire(usage: AttemptUsage) -> jobs_pb2.AttemptUsage:
    return jobs_pb2.AttemptUsage(**usage._asdict())


def attempt_to_wire(attempt: AttemptFacts) -> jobs_pb2.Attempt:
    """Return the message of an attempt."""
    record = attempt.record
    return jobs_pb2.Attempt(
        job_id=record.job_id,
        attempt=record.attempt,
        queue=queue_to_wire(record.queue),
        node=record.node,
        slot=record.slot,
        pilot_stamp=record.pilot_stamp,
        matched=time_to_wire(record.matched),
        started=time_to_wire(record.started),
        ended=time_to_wire(record.ended),
        outcome=record.outcome,
        reason=record.reason,
        exit_code=attempt.exit_code,
        signal=attempt.signal,
        usage=_usage_to_wire(attempt.usage),
    )


def jobs_to_wire(jobs: Iterable[JobRecord], details: JobDetails) -> list[jobs_pb2.Job]:
    """Return the messages of jobs."""
    return [
        job_to_wire(
            job,
            details.ignored.get(job.template_id, ()),
            details.usages.get(job.id),
            futile=job.state is JobState.BLOCKED and job.blocked_by in details.futile,
            pool_sites=() if job.state in FINAL else details.pool_sites.get(job.pool_id, ()),
        )
        for job in jobs
    ]


def state_to_wire(state: JobState) -> jobs_pb2.JobState.ValueType:
    """Return the number of a state."""
    number: jobs_pb2.JobState.ValueType = enum_to_wire(jobs_pb2.JobState, state.value)
    return number


def event_to_wire(event: FeedEvent) -> jobs_pb2.JobEvent:
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
    setattr(message, "from", state_to_wire(event.from_state))  # the field's name is a Python keyword
    return message


def output_files_to_wire(files: Iterable[OutputFile]) -> list[jobs_pb2.OutputFile]:
    """Return the output files of an attempt, without content."""
    return [
        jobs_pb2.OutputFile(name=file.name, checksum=file.checksum, size=file.size, truncated=file.truncated)
        for file in files
    ]


def explanation_to_wire(explanation: Explanation) -> job_service_pb2.ExplainJobResponse:
    """Return the message that explains a job's state."""
    message = job_service_pb2.ExplainJobResponse(
        job=job_to_wire(explanation.job, explanation.ignored, explanation.usage, pool_sites=explanation.pool_sites),
        summary=explanation.summary,
        queues_total=explanation.queues_total,
        queues_of_vo=explanation.queues_of_vo,
        exclusions=[_exclusion(exclusion) for exclusion in explanation.exclusions],
        eligible_queues=[_outlook(outlook) for outlook in explanation.eligible_queues],
        jobs_ahead=explanation.jobs_ahead,
        order=explanation.order,
        pool_mapped=time_to_wire(explanation.pool_mapped),
        tree_version=explanation.tree_version,
        blockers=[
            job_service_pb2.Blocker(kind=kind_to_wire(each.kind), job=job_to_wire(each.job))
            for each in explanation.blockers
        ],
        relaxations=map(_relaxation, explanation.relaxations),
        slot_exclusions=[
            job_service_pb2.SlotExclusion(
                clause=each.clause, slots=each.slots, slots_alone=each.slots_alone, example=each.example
            )
            for each in explanation.slots.exclusions
        ],
        slots_seen=explanation.slots.seen,
        slots_matching=explanation.slots.matching,
        start=None if explanation.start is None else job_service_pb2.StartEstimate(**asdict(explanation.start)),
        resources=[job_service_pb2.ResourceUse(**asdict(each)) for each in explanation.resources],
        workflow=explanation.workflow,
    )
    section_to_wire(explanation.requirements, message.requirements)
    return message


def _relaxation(relaxation: Relaxation) -> job_service_pb2.Relaxation:
    return job_service_pb2.Relaxation(
        field=relaxation.field,
        value=None if relaxation.value is None else value_to_wire(relaxation.value),
        parameter=relaxation.parameter,
        asked=relaxation.asked,
        relaxed=relaxation.relaxed,
        opens=relaxation.opens,
        closes=relaxation.closes,
        example=queue_to_wire(relaxation.example),
    )


def dry_run_to_wire(
    dry_run: DryRun, warnings: Sequence[str], quotas: Iterable[JobQuota]
) -> job_service_pb2.SubmitJobsResponse:
    """Return the answer to a submission that stores nothing."""
    return job_service_pb2.SubmitJobsResponse(
        warnings=warnings,
        outlooks=[
            job_service_pb2.SubmissionOutlook(
                description=each.description, jobs=each.jobs, explanation=explanation_to_wire(each.explanation)
            )
            for each in dry_run.outlooks
        ],
        quotas=[job_service_pb2.JobQuota(**each._asdict()) for each in quotas],
    )


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
