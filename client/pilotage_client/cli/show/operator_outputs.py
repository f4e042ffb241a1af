"""The JSON objects that commands of operators, and those about this machine, print; see `outputs`."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from typing_extensions import TypedDict  # pydantic needs this one on Python 3.11

from pilotage_client.cli.show.outputs import Time


class FactorJson(TypedDict):
    """The priority factor that was set for an account; None = that of the settings."""

    account: str
    factor: float | None


class QuotaJson(TypedDict):
    """The quota that was set for a group; None = that of the settings."""

    group: str
    quota: str | None


class FindingJson(TypedDict):
    """A finding of `doctor`."""

    server: str
    check: str
    level: str
    text: str
    advice: str | None


class TreeJson(TypedDict):
    """The active tree as it was given."""

    version: int
    format: str | None
    created: Time | None
    created_by: str | None
    text: str


class PoolChangeJson(TypedDict):
    """The queues that a pool gains and loses; the lists may be cut, the counts are whole."""

    pool: str
    gained: list[str]
    gained_count: int
    lost: list[str]
    lost_count: int


class TreeChangesJson(TypedDict):
    """What a new version of the tree changes."""

    version: int
    jobs_runnable: int
    jobs_stuck: int
    pools_changed: int
    pools_rekeyed: int
    changes: list[PoolChangeJson]
    warnings: list[str]


class ResolvedQueueJson(TypedDict):
    """A queue of a tree file with its effective values."""

    ce: str
    params: dict[str, Any]
    queue: str
    site: str


EligibleJson: TypeAlias = dict[str, dict[str, list[str]]] | dict[str, list[str]] | list[str]


"""Sites with their computing elements and queues, down to the wanted level."""


class BanJson(TypedDict):
    """A ban of a site, a computing element or a queue."""

    node: str
    site: str
    ce: str | None
    queue: str | None
    reason: str
    since: Time | None
    until: Time | None
    by: str


class ThrottleJson(TypedDict):
    """A place that is throttled or held, or was opened recently."""

    place: str
    site: str
    ce: str | None
    queue: str | None
    node: str | None
    state: str
    since: Time | None
    failures: int
    attempts: int
    proofs: int
    next_trial: Time | None
    by: str | None
    reason: str


class DrainedJson(TypedDict):
    """The number of pilots that drain, and the stamps that no live pilot has."""

    drained: int
    unknown: list[str]


class RevokedPilotsJson(TypedDict):
    """The number of pilots whose credentials were ended, and the stamps that no live pilot has."""

    revoked: int
    unknown: list[str]


class PilotTokenJson(TypedDict):
    """The enrolment secret of a pilot, and the command that starts it."""

    stamp: str
    token_file: str
    command: list[str]


class TokenJson(TypedDict):
    """A new token, in its file."""

    owner: str
    vo: str | None
    groups: list[str]
    roles: list[str]
    token_file: str


class JoinTokenJson(TypedDict):
    """The command with which machines join a server."""

    server: str
    token: str
    command: list[str]


class RevocationJson(TypedDict):
    """A revocation of a token, of an owner's tokens, or of a pilot."""

    kind: str
    subject: str
    issuer: str | None
    owner: str | None
    vo: str | None
    by: str
    made: Time | None
    expires: Time | None
    reason: str


class AgentJson(TypedDict):
    """A replica of an agent."""

    agent: str
    replica: str
    state: str
    host: str
    owner: str | None
    version: str | None
    queues: list[str]
    ce_types: list[str]
    bounds: list[str]
    since: Time | None
    last_seen: Time | None
    last_cycle: Time | None
    last_success: Time | None
    failures: int
    last_error: str | None
    last_error_time: Time | None


class AuditJson(TypedDict):
    """A change that an operator or an agent has made."""

    id: int
    time: Time | None
    who: str
    vo: str | None
    roles: list[str]
    agent: str | None
    what: str
    subject: str
    difference: str
    reason: str | None


DowntimeJson = TypedDict(
    "DowntimeJson",
    {
        "id": int,
        "place": str,
        "site": str,
        "ce": "str | None",
        "queue": "str | None",
        "state": Literal["planned", "draining", "down"],
        "from": "Time | None",
        "to": "Time | None",
        "drain_s": float,
        "by": str,
        "reason": str,
    },
)


DowntimeJson.__doc__ = "A planned downtime of a site, a computing element or a queue."


class ContextJson(TypedDict):
    """A server that this machine has joined."""

    name: str
    current: bool
    server: str
    authority: str | None
    submits: bool
    queue: str | None


class WrittenJson(TypedDict):
    """A file or a folder that a command has written."""

    path: str
    what: str
