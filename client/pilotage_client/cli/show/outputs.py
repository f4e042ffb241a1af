"""The JSON objects that commands print: their keys and types, from which `make reference` writes the schemas.

Keys change only with an entry under "Breaking" in the changes. None = the value is missing. Here are the objects of
jobs, which most commands print; other modules have those of explanations, of the grid and of operators.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypeAlias

from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from pilotage_client.models import STATES


class _Schema:
    """Marks a text of which its schema says more; pydantic reads it when it makes a schema."""

    def __init__(self, **more: object) -> None:
        self.more = more

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """Return the schema of the text with more keywords."""
        return {**handler(schema), **self.more}


Time: TypeAlias = Annotated[str, _Schema(format="date-time")]
"""A time as RFC 3339, in UTC."""
State: TypeAlias = Annotated[str, _Schema(enum=list(STATES))]
"""The state of a job."""


class ViolationJson(TypedDict):
    """A fault of the input, with its place."""

    place: str
    fault: str


class ErrorFactsJson(TypedDict):
    """What went wrong: the kind of the error, its message, and the faults of the input."""

    code: str
    message: str
    violations: list[ViolationJson]


class ErrorJson(TypedDict):
    """The error of a command that failed."""

    error: ErrorFactsJson


class SubmissionJson(TypedDict):
    """A submission: the ids of its jobs, and the workflow that they are."""

    jobs: list[int]
    warnings: list[str]
    trace_id: str | None
    workflow: NotRequired[int]


class UsageJson(TypedDict):
    """What an attempt has used, so far if it runs."""

    attempt: int
    cpus: int
    gpus: int
    wall_s: float
    suspended_s: float
    user_cpu_s: float
    system_cpu_s: float
    peak_memory_mib: int | None
    peak_disk_mib: int | None


class AttemptJson(TypedDict):
    """An attempt of a job: where it ran and how it ended."""

    attempt: int
    outcome: str | None
    reason: str | None
    exit_code: int | None
    signal: int | None
    site: str | None
    ce: str | None
    queue: str | None
    node: str | None
    slot: str | None
    pilot_stamp: str | None
    matched: Time | None
    started: Time | None
    ended: Time | None
    usage: UsageJson


class JobFacts(TypedDict):
    """What all objects with a job have."""

    id: int
    state: State
    reason: str | None
    owner: str | None
    vo: str | None
    pool: str | None
    site: str | None
    ce: str | None
    queue: str | None
    node: str | None
    slot: str | None
    attempt: int
    exit_code: int | None
    submitted: Time | None
    started: Time | None
    ended: Time | None
    cluster: int
    process: int
    ignored: list[str]


class JobJson(JobFacts):
    """A job; `attempts` has those of a job with several."""

    usage: UsageJson | None
    futile: bool
    pool_sites: list[str]
    attempts: NotRequired[list[AttemptJson]]


class JobCountJson(TypedDict):
    """The number of jobs, as far as they were counted, by state and by VO/OWNER; `more` = there are more."""

    jobs: int
    more: bool
    states: dict[State, int]
    owners: dict[str, int]


class ClusterJson(TypedDict):
    """A cluster or a workflow, with the numbers of its jobs by state."""

    id: int
    name: str | None
    owner: str | None
    vo: str | None
    group: str | None
    jobs: int
    submitted: Time | None
    states: dict[State, int]
    workflow: bool


EventJson = TypedDict(
    "EventJson",
    {
        "position": int,
        "job": int,
        "time": "Time | None",
        "from": "State | None",
        "to": "State",
        "cause": str,
        "reason": "str | None",
        "attempt": int,
        "actor": str,
    },
)
EventJson.__doc__ = "A change of a job's state."


class OutputFileJson(TypedDict):
    """An output file of a job."""

    job: NotRequired[int]
    name: str
    size: int
    truncated: bool
    path: NotRequired[str]


class OutputPartJson(TypedDict):
    """A part of the output of a job; bytes that are no UTF-8 are replaced."""

    attempt: int
    offset: int
    text: str
    partial: str | None


class ChangedJobJson(TypedDict):
    """A job after a change, or the reason of the refusal."""

    id: int
    state: State | None
    refusal: str | None


class EditedJobJson(TypedDict):
    """A job whose description was changed."""

    id: int
    state: State
    warnings: list[str]


class NotificationJson(TypedDict):
    """A notification; `due` None = it is delivered or given up."""

    id: int
    occasion: str
    text: str
    made: Time | None
    tries: int
    error: str | None
    delivered: Time | None
    due: Time | None


class SubscriptionJson(TypedDict):
    """A subscription to what happens to jobs."""

    id: int
    owner: str
    vo: str
    first_job: int
    last_job: int
    kind: str
    address: str | None
    on: list[str]
    created: Time | None
    closed: Time | None
    notifications: list[NotificationJson]


class UnsubscribedJson(TypedDict):
    """The subscriptions that were removed."""

    removed: list[int]


class ConvertedJobJson(TypedDict):
    """A job of a job file, or an array of jobs; sizes are in MiB, times in seconds."""

    node: NotRequired[str]
    executable: str
    arguments: str | None
    requirements: dict[str, Any] | None
    requirements_expression: str | None
    site: list[str] | None
    banned_sites: list[str] | None
    platform: list[str] | None
    cpu_time_s: float | None
    request_cpus: int | None
    request_memory_mb: int | None
    request_disk_mb: int | None
    request_gpus: int | None
    input_files: list[str] | None
    output_files: list[str] | None
    stdout: str | None
    stderr: str | None
    environment: dict[str, str] | None
    attributes: dict[str, Any]
    count: int | None
    warnings: list[str]
    after: NotRequired[list[int | str]]
    after_ok: NotRequired[list[int | str]]
    after_any: NotRequired[list[int | str]]
    after_settled: NotRequired[list[int | str]]
    notify: NotRequired[list[dict[str, Any]]]


class RescueJson(TypedDict):
    """The nodes of workflows that are done; `path` = the rescue file that was written."""

    nodes: list[str]
    path: str | None
