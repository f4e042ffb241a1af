"""Why a job is in its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pilotage.job_description import Value
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
    blockers: tuple[BlockingJob, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys: those of the job, and those of the explanation."""
        return {
            **_status(self.job),
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
            "blockers": plain(self.blockers),
        }


def _status(job: JobStatus) -> dict[str, Any]:
    """Return the keys of a job, without those that an explanation does not have."""
    status = job.as_json()
    del status["usage"], status["futile"]
    return status


def job_explanation(answer: job_service_pb2.ExplainJobResponse) -> JobExplanation:
    """Convert an explanation from the wire."""
    return value_of(
        JobExplanation,
        answer,
        eligible_queues=tuple(
            value_of(EligibleQueue, each, **queue_parts(each.queue)) for each in answer.eligible_queues
        ),
        blockers=tuple(
            value_of(BlockingJob, each, kind=enum_name(each, "kind", "DEPENDENCY_KIND_")) for each in answer.blockers
        ),
    )
