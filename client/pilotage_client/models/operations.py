"""The tree, bans, downtimes, black holes, agents, the audit, and the server's diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pilotage.job_description import Value
from pilotage.resources.queue_id import QueueId
from pilotage.v1 import agent_service_pb2, audit_service_pb2, diagnosis_service_pb2, resource_service_pb2
from pilotage_client.models.jobs import time_of
from pilotage_client.models.reading import AsJson, enum_name, value_of


@dataclass(frozen=True, slots=True)
class TreeInfo(AsJson):
    """The active tree as it was given, and when and by whom; `version` 0 = there is none yet."""

    version: int
    format: str
    created: datetime | None
    created_by: str
    text: str = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys; `text` may be empty."""
        return AsJson.as_json(self) | {"text": self.text}


@dataclass(frozen=True, slots=True)
class PoolChanges(AsJson):
    """A pool, its waiting jobs, and the queues that it gains and loses; of many only the first are named."""

    pool_id: str
    vo: str
    requirements: Mapping[str, Value]
    waiting: int
    gained: tuple[QueueId, ...]
    gained_count: int
    lost: tuple[QueueId, ...]
    lost_count: int

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys; the pool is `pool`."""
        return self._renamed({"pool_id": "pool"})


@dataclass(frozen=True, slots=True)
class TreeChanges(AsJson):
    """What a version of the tree changes: pools, and waiting jobs that become runnable or stuck.

    `first_runnable` and `first_stuck` are the ids of the first ones. `changes` are those of the first 1,000 pools,
    `pools_changed` counts all. `pools_rekeyed` have got another id.
    """

    version: int
    jobs_runnable: int
    jobs_stuck: int
    first_runnable: tuple[int, ...]
    first_stuck: tuple[int, ...]
    pools_changed: int
    pools_rekeyed: int
    changes: tuple[PoolChanges, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BanInfo(AsJson):
    """A ban of a site, of a CE (`queue` "") or of a queue; `until` None = until it is removed."""

    id: int
    site: str
    ce: str
    queue: str
    reason: str
    since: datetime | None
    until: datetime | None
    by: str

    @property
    def node(self) -> str:
        """What is banned: "SITE", "SITE/CE" or "SITE/CE/QUEUE"."""
        return _joined(self.site, self.ce, self.queue)

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys, without the id."""
        fields = AsJson.as_json(self)
        del fields["id"]
        return {"node": self.node, **fields}


@dataclass(frozen=True, slots=True)
class DowntimeInfo(AsJson):
    """A planned downtime of a site, of a CE (`queue` "") or of a queue; `drain_s` before it no job starts at all."""

    id: int
    site: str
    ce: str
    queue: str
    start: datetime
    end: datetime
    drain_s: float
    by: str
    reason: str

    @property
    def place(self) -> str:
        """What is down: "SITE", "SITE/CE" or "SITE/CE/QUEUE"."""
        return _joined(self.site, self.ce, self.queue)

    def state_at(self, now: datetime) -> str:
        """Return how far the downtime is: "planned", "draining" or "down"."""
        left_s = (self.start - now).total_seconds()
        if left_s <= 0:
            return "down"
        return "draining" if left_s <= self.drain_s else "planned"

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys; its times are `from` and `to`."""
        return {"place": self.place, **self._renamed({"start": "from", "end": "to"})}


@dataclass(frozen=True, slots=True)
class ThrottleInfo(AsJson):
    """The circuit breaker of a site, a queue or a node: "throttled", "held" or "opened".

    `failures` of `attempts` failed fast. `proofs` are successful trials in a row; `next_trial` None = there is none.
    """

    site: str
    ce: str
    queue: str
    node: str
    state: str
    since: datetime | None
    failures: int
    attempts: int
    proofs: int
    next_trial: datetime | None
    by: str
    reason: str

    @property
    def place(self) -> str:
        """The place: "SITE", "SITE/NODE" or "SITE/CE/QUEUE"."""
        return _joined(self.site, self.ce, self.queue, self.node)

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys."""
        return {"place": self.place, **AsJson.as_json(self)}


@dataclass(frozen=True, slots=True)
class AgentInfo(AsJson):
    """A replica of an agent: "leader", "standby", "silent" or "ended".

    `queues`, `ce_types` and `bounds` limit the queues that it serves; none = all. `last_cycle` to `last_error_time` are
    what it reported last: `failures` are the failed cycles since `last_success`.
    """

    agent: str
    replica: str
    state: str
    host: str
    owner: str
    version: str
    queues: tuple[str, ...]
    ce_types: tuple[str, ...]
    bounds: tuple[str, ...]
    since: datetime | None
    last_seen: datetime | None
    last_cycle: datetime | None
    last_success: datetime | None
    failures: int
    last_error: str
    last_error_time: datetime | None


@dataclass(frozen=True, slots=True)
class AuditRecord(AsJson):
    """A change: when, by `who` in which roles, what kind on which subject, and its `difference`; a later id is higher.

    `agent` is the agent through which it was made, "" = none.
    """

    id: int
    time: datetime
    who: str
    vo: str
    roles: tuple[str, ...]
    agent: str
    what: str
    subject: str
    difference: str
    reason: str

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys; `subject` and `difference` may be empty."""
        return AsJson.as_json(self) | {"who": self.who, "subject": self.subject, "difference": self.difference}


@dataclass(frozen=True, slots=True)
class DiagnosisFinding(AsJson):
    """One finding: what was examined, its level ("ok", "warning" or "fault"), and what to do ("" = nothing)."""

    check: str
    level: str
    text: str
    advice: str


@dataclass(frozen=True, slots=True)
class Diagnosis(AsJson):
    """What a server finds on itself and its surroundings, with its time and release."""

    findings: tuple[DiagnosisFinding, ...]
    server_time: datetime
    server_version: str


def _joined(*names: str) -> str:
    return "/".join(filter(None, names))


def throttle_info(message: resource_service_pb2.Throttle) -> ThrottleInfo:
    """Convert a circuit breaker from the wire."""
    place = message.place
    return value_of(
        ThrottleInfo, message, site=place.site, ce=place.ce, queue=place.queue, node=place.node, attempts=message.ends
    )


def agent_info(message: agent_service_pb2.AgentReplica) -> AgentInfo:
    """Convert a replica of an agent from the wire."""
    status = message.status
    return value_of(
        AgentInfo,
        message,
        agent=message.turn.agent,
        replica=message.turn.holder,
        state=enum_name(message, "state", "AGENT_STATE_"),
        host=message.place,
        version=status.version,
        last_cycle=time_of(status, "last_cycle"),
        last_success=time_of(status, "last_success"),
        failures=status.failures,
        last_error=status.last_error,
        last_error_time=time_of(status, "last_error_time"),
    )


def audit_record(message: audit_service_pb2.AuditEntry) -> AuditRecord:
    """Convert an entry of the audit from the wire."""
    return value_of(AuditRecord, message)


def diagnosis(message: diagnosis_service_pb2.DiagnoseResponse) -> Diagnosis:
    """Convert a diagnosis from the wire."""
    found = (
        value_of(DiagnosisFinding, each, level=enum_name(each, "level", "FINDING_LEVEL_")) for each in message.findings
    )
    return value_of(Diagnosis, message, findings=tuple(found))
