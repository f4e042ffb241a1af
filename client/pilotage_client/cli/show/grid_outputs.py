"""The JSON objects about pools, queues, pilots, shares, races and routes that commands print; see `outputs`."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from pilotage_client.cli.show.outputs import State, Time


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


class SiteJson(TypedDict):
    """A site with the sums of its queues; `waiting` is that of the queue with most, and `usable` queues take jobs."""

    site: str
    queues: int
    usable: int
    waiting: int
    matched: int
    running: int
    pilots: int
    problem: str


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
