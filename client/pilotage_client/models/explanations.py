"""Why a job is in its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pilotage.job_description import Value
from pilotage.resources.queue_id import QueueId
from pilotage.rpc.wire import value_from_wire
from pilotage.v1 import job_service_pb2
from pilotage_client.models.jobs import JobStatus
from pilotage_client.models.reading import AsJson, enum_name, plain, queue_parts, value_of


@dataclass(frozen=True, slots=True)
class QueueExclusion(AsJson):
    """A parameter, keyword or size that excludes queues: how many, how many it alone, and one of them in a text."""

    parameter: str
    asked: str
    queues: int
    queues_alone: int
    example: str


@dataclass(frozen=True, slots=True)
class EligibleQueue(AsJson):
    """A queue that can run the job, with its pilots and free slots; `obstacle` "" = no known one."""

    site: str
    ce: str
    queue: str
    pilots: int
    pilots_waiting: int
    free_slots: int
    obstacle: str


@dataclass(frozen=True, slots=True)
class HelpfulChange(AsJson):
    """A single change of a description that opens `opens` queues and closes `closes`, and one of those it opens.

    `field` is as in job files, or "requirements.NAME", and `value` its new value, in seconds or MiB; None = it is
    removed. `parameter`, `asked` and `relaxed` are for people; "" = not asked.
    """

    field: str
    value: Value | None
    parameter: str
    asked: str
    relaxed: str
    opens: int
    closes: int
    example: QueueId


@dataclass(frozen=True, slots=True)
class ExcludedSlots(AsJson):
    """A clause of an expression, or a size, that excludes slots: how many, how many it alone, and one in a text."""

    clause: str
    slots: int
    slots_alone: int
    example: str


@dataclass(frozen=True, slots=True)
class StartForecast(AsJson):
    """When a job may start, in seconds from now, by `starts` of the jobs of `basis`; 80 % started in early to late.

    `why_none` "" = there is an estimate; else why there is none, and the seconds mean nothing.
    """

    why_none: str
    basis: str
    starts: int
    early_s: float
    median_s: float
    late_s: float

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys; without an estimate the seconds are None."""
        fields = AsJson.as_json(self)
        return fields | dict.fromkeys(("early_s", "median_s", "late_s")) if self.why_none else fields


@dataclass(frozen=True, slots=True)
class UsedResource(AsJson):
    """What a job asks of a resource, and what its last attempt used at most; None = nothing, or unknown."""

    resource: str
    unit: str
    asked: float | None
    used: float | None


@dataclass(frozen=True, slots=True)
class BlockingJob(AsJson):
    """A parent for which its child waits; `kind` is "after", "after_ok", "after_any" or "after_settled"."""

    kind: str
    job: JobStatus

    def as_json(self) -> dict[str, Any]:
        """Return the kind and the keys of the job."""
        return {"kind": self.kind, **_status(self.job)}


@dataclass(frozen=True, slots=True)
class JobExplanation(AsJson):
    """The reasons for a job's state.

    `jobs_ahead` go before it on a slot that fits both, for the reason `order`. `blockers` lead from a blocked job to
    the parent that delays it most: each waits for the next one. `pool_mapped` None = it has no mapped pool.
    `relaxations` are those that open most queues. `slot_exclusions` are over `slots_seen` slots of eligible queues, of
    which nothing excludes `slots_matching`. `start` None = the job does not wait. `resources` are of the last attempt.
    """

    job: JobStatus
    summary: str
    queues_total: int
    queues_of_vo: int
    exclusions: tuple[QueueExclusion, ...]
    eligible_queues: tuple[EligibleQueue, ...]
    jobs_ahead: int
    order: str
    pool_mapped: datetime | None
    tree_version: int
    requirements: Mapping[str, Value]
    relaxations: tuple[HelpfulChange, ...]
    slots_seen: int
    slots_matching: int
    slot_exclusions: tuple[ExcludedSlots, ...]
    start: StartForecast | None
    resources: tuple[UsedResource, ...]
    blockers: tuple[BlockingJob, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys: those of the job, and those of the explanation."""
        return {**_status(self.job), **self.reasons_as_json()}

    def reasons_as_json(self) -> dict[str, Any]:
        """Return the documented keys without those of the job."""
        return {
            "summary": self.summary,
            "requirements": plain(self.requirements),
            "pool_mapped": plain(self.pool_mapped),
            "tree_version": self.tree_version,
            "queues_total": self.queues_total,
            "queues_of_vo": self.queues_of_vo,
            "excluded": plain(self.exclusions),
            "eligible": plain(self.eligible_queues),
            "jobs_ahead": self.jobs_ahead,
            "order": self.order,
            "relaxations": plain(self.relaxations),
            "slots": {
                "seen": self.slots_seen,
                "matching": self.slots_matching,
                "excluded": plain(self.slot_exclusions),
            },
            "start": plain(self.start),
            "resources": plain(self.resources),
            "blockers": plain(self.blockers),
        }


@dataclass(frozen=True, slots=True)
class QuotaOfJobs(AsJson):
    """A limit of jobs that have not ended: the owner or the VO, for people, its jobs now, and the most."""

    holder: str
    jobs: int
    most: int


@dataclass(frozen=True, slots=True)
class SubmissionForecast(AsJson):
    """What awaits `jobs` jobs of the description at index `description`, and of similar ones."""

    description: int
    jobs: int
    explanation: JobExplanation

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys: those of an explanation too, without a job."""
        return {"description": self.description, "jobs": self.jobs, **self.explanation.reasons_as_json()}


@dataclass(frozen=True, slots=True)
class SubmissionDryRun(AsJson):
    """What a submission would do: warnings, quotas, and what awaits the jobs of the first descriptions that differ."""

    warnings: tuple[str, ...]
    quotas: tuple[QuotaOfJobs, ...]
    outlooks: tuple[SubmissionForecast, ...]


def _status(job: JobStatus) -> dict[str, Any]:
    """Return the keys of a job, without those that an explanation does not have."""
    status = job.as_json()
    del status["usage"], status["futile"]  # `resources` compares the use with what was asked
    return status


def job_explanation(answer: job_service_pb2.ExplainJobResponse) -> JobExplanation:
    """Convert an explanation from the wire."""
    return value_of(
        JobExplanation,
        answer,
        relaxations=tuple(
            value_of(HelpfulChange, each, value=value_from_wire(each.value) if each.HasField("value") else None)
            for each in answer.relaxations
        ),
        eligible_queues=tuple(
            value_of(EligibleQueue, each, **queue_parts(each.queue)) for each in answer.eligible_queues
        ),
        blockers=tuple(
            value_of(BlockingJob, each, kind=enum_name(each, "kind", "DEPENDENCY_KIND_")) for each in answer.blockers
        ),
    )


def submission_dry_run(answer: job_service_pb2.SubmitJobsResponse) -> SubmissionDryRun:
    """Convert the answer to a dry run from the wire."""
    outlooks = (
        SubmissionForecast(each.description, each.jobs, job_explanation(each.explanation)) for each in answer.outlooks
    )
    return value_of(SubmissionDryRun, answer, outlooks=tuple(outlooks))
