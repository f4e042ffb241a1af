"""The JSON objects that explain jobs and say what a submission or a policy would do; see `outputs`."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from pilotage_client.cli.show.outputs import JobFacts, Time


class ExclusionJson(TypedDict):
    """A requirement that excludes queues, and how many it alone excludes."""

    parameter: str
    asked: str
    queues: int
    queues_alone: int
    example: str


class OutlookJson(TypedDict):
    """A queue that can run a job."""

    site: str
    ce: str
    queue: str
    pilots: int
    pilots_waiting: int
    free_slots: int
    obstacle: str | None


class BlockerJson(JobFacts):
    """A parent that a job waits for."""

    kind: Literal["after", "after_ok", "after_any", "after_settled"]
    pool_sites: list[str]


class HelpfulChangeJson(TypedDict):
    """A single change of a description that opens queues; `value` None = the field is removed."""

    field: str
    value: Any
    parameter: str
    asked: str | None
    relaxed: str | None
    opens: int
    closes: int
    example: str


class ExcludedSlotsJson(TypedDict):
    """A clause or a size that excludes slots, and how many it alone excludes."""

    clause: str
    slots: int
    slots_alone: int
    example: str


class SlotCountsJson(TypedDict):
    """The slots at eligible queues that were examined, and those that nothing excludes."""

    seen: int
    matching: int
    excluded: list[ExcludedSlotsJson]


class StartForecastJson(TypedDict):
    """When a job may start, in seconds from now; `why_none` = why there is no estimate."""

    why_none: str | None
    basis: str | None
    starts: int
    early_s: float | None
    median_s: float | None
    late_s: float | None


class UsedResourceJson(TypedDict):
    """What a job asks of a resource, and what its last attempt used."""

    resource: str
    unit: str | None
    asked: float | None
    used: float | None


class _Reasons(TypedDict):
    summary: str
    requirements: dict[str, Any]
    pool_mapped: Time | None
    tree_version: int
    queues_total: int
    queues_of_vo: int
    excluded: list[ExclusionJson]
    eligible: list[OutlookJson]
    jobs_ahead: int
    order: str
    relaxations: list[HelpfulChangeJson]
    slots: SlotCountsJson
    start: StartForecastJson | None
    resources: list[UsedResourceJson]
    blockers: list[BlockerJson]


class ExplanationJson(JobFacts, _Reasons):
    """The reasons for the state of a job."""

    pool_sites: list[str]


class SubmissionForecastJson(_Reasons):
    """What awaits the jobs of a description, and of others that differ in arguments and names only."""

    description: int
    jobs: int


class QuotaOfJobsJson(TypedDict):
    """A limit of jobs that have not ended."""

    holder: str
    jobs: int
    most: int


class SubmissionDryRunJson(TypedDict):
    """What a submission would do; `jobs` is empty."""

    jobs: list[int]
    warnings: list[str]
    trace_id: str | None
    quotas: list[QuotaOfJobsJson]
    outlooks: list[SubmissionForecastJson]


class TriedPolicyJson(TypedDict):
    """What a policy would say of a slot: truths for its job, and how many of `jobs` waiting jobs it starts."""

    slot: str
    node: str
    site: str
    state: str
    activity: str
    job: int | None
    values: dict[str, bool | None]
    jobs: int
    starts: int
    starts_now: int
