"""The JSON objects that commands print: their keys and types, from which `make reference` writes the schemas.

Keys change only with an entry under "Breaking" in the changes. None = the value is missing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

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


class _JobFacts(TypedDict):
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


class JobJson(_JobFacts):
    """A job; `attempts` has those of a job with several."""

    usage: UsageJson | None
    futile: bool
    pool_sites: list[str]
    attempts: NotRequired[list[AttemptJson]]


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


class BlockerJson(_JobFacts):
    """A parent that a job waits for."""

    kind: Literal["after", "after_ok", "after_any", "after_settled"]
    pool_sites: list[str]


class ExplanationJson(_JobFacts):
    """The reasons for the state of a job."""

    pool_sites: list[str]
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
    blockers: list[BlockerJson]


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


class PoolJson(TypedDict):
    """A submit pool; `queues` are those that can run its jobs."""

    id: str
    vo: str
    requirements: dict[str, Any]
    waiting: int
    running: int
    queues: list[str]
    mapped: Time | None
    tree_version: int
    created: Time | None


class QueueJson(TypedDict):
    """A batch queue with its effective values and its jobs."""

    site: str
    ce: str
    queue: str
    params: dict[str, Any]
    origins: dict[str, str]
    enabled: bool
    banned: str | None
    pilots: int
    pools: int
    waiting: int
    matched: int
    running: int
    pilot_problem: str | None
    health: str | None
    downtime: str | None


class PilotJson(TypedDict):
    """A pilot; `queue_set` are the patterns of the queues that it may land on."""

    stamp: str
    site: str | None
    ce: str | None
    queue: str | None
    state: str
    reason: str | None
    alarm: str | None
    glidein_id: str | None
    node: str | None
    jobs: int
    jobs_ended: int
    vos: list[str]
    isolation: str | None
    registered: Time | None
    last_seen: Time | None
    ends: Time | None
    credential_ends: Time | None
    queue_set: list[str]


class PilotLogJson(TypedDict):
    """The end of the output of a pilot that died."""

    stamp: str
    text: str


class SlotJson(TypedDict):
    """A slot of a live pilot."""

    name: str
    node: str
    pilot: str
    site: str
    ce: str
    queue: str
    state: str
    activity: str
    cpus: int
    memory_mib: int
    disk_mib: int
    gpus: int
    free_cpus: int
    load: float
    isolation: str | None
    policy_fault: str | None
    job: int | None
    since: Time | None
    since_state: Time | None
    last_seen: Time | None
    answered: Time | None


class NodeAttributeJson(TypedDict):
    """An attribute that was set on a node."""

    expression: str
    set: Time | None
    by: str


class NodeJson(TypedDict):
    """A node with the attributes that were set on it."""

    site: str
    node: str
    settings: dict[str, NodeAttributeJson]


class GroupShareJson(TypedDict):
    """The use and the entitlement of a group."""

    vo: str
    group: str
    quota: str
    quota_is_set: bool
    entitled_cores: float
    entitled_part: float
    used_core_s: float
    used_part: float
    cores: float
    waiting: int
    sort_value: float | None
    goes_last: str


class AccountShareJson(TypedDict):
    """The use and the priority of an account."""

    vo: str
    group: str
    owner: str
    user_priority: float
    priority_factor: float
    priority_factor_is_set: bool
    used_core_s: float
    cores: float
    waiting: int


class SharesJson(TypedDict):
    """The shares of groups and accounts; accounts are in the order of matching."""

    time: Time | None
    half_life_s: float
    pie_cores: float
    surplus_accepted: bool
    group_sort_expression: str
    groups: list[GroupShareJson]
    accounts: list[AccountShareJson]


class ShareJson(TypedDict):
    """A row of `shares`: a group, or below it an account; `is_set` = an operator has set its quota or factor."""

    name: str
    priority: float | None
    factor: float | None
    quota: str | None
    entitled_cores: float | None
    used_core_h: float
    cores: float
    waiting: int
    is_set: bool


class UsageSumJson(TypedDict):
    """A sum of what ended attempts have used; the keys of --by come first."""

    day: NotRequired[str]
    month: NotRequired[str]
    vo: NotRequired[str]
    group: NotRequired[str]
    owner: NotRequired[str]
    site: NotRequired[str]
    done: int
    failed: int
    interrupted: int
    core_h: float
    failed_core_h: float
    interrupted_core_h: float
    cpu_h: float
    efficiency: float | None
    gpu_h: float


class IdentityJson(TypedDict):
    """The identity of the caller at the server."""

    owner: str
    vo: str | None
    groups: list[str]
    roles: list[str]
    expires: Time | None
    server: str
    server_version: str


class RaceCopyJson(TypedDict):
    """A copy of a job in a race."""

    id: int
    state: State
    site: str | None
    reason: str | None
    submitted: Time | None
    started: Time | None
    ended: Time | None


class RaceJson(TypedDict):
    """A race of a job with its copies."""

    job: int
    state: State
    site: str | None
    owner: str
    vo: str
    reason: str
    began: Time | None
    ended: Time | None
    winner: int | None
    outcome: str | None
    lost_core_s: float
    copies: list[RaceCopyJson]


class RaceCostJson(TypedDict):
    """The costs of an account's ended races."""

    vo: str
    group: str
    owner: str
    races: int
    won_by_copies: int
    lost_core_s: float


class RouteJson(TypedDict):
    """A route of a job router; `copies` counts its routed jobs."""

    route: str
    target: str | None
    requirements: str | None
    constraint: str | None
    copies: int
    max_jobs: int | None
    idle: int
    max_idle_jobs: int | None
    throttled: str | None
    closed: str | None
    left_out: str | None
    router: str
    told: Time | None


class RoutedJobJson(TypedDict):
    """A job that a route has taken to its target."""

    job: int
    attempt: int
    route: str
    target: str
    reference: str | None
    routed: Time | None
    router: str
    state: State | None


class ObstacleJson(TypedDict):
    """A reason why a route does not take a job."""

    kind: str
    why: str


class VerdictJson(TypedDict):
    """Whether a route takes a job: it does without obstacles."""

    route: str
    target: str
    obstacles: list[ObstacleJson]
    router: str


class RoutesOfJobJson(TypedDict):
    """The verdict of each route on a job, and its last routed job."""

    job: int
    obstacle: str | None
    copy: RoutedJobJson | None
    routes: list[VerdictJson]


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
