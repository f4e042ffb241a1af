"""Pools, queues, pilots, slots and nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from pilotage.job_description import Value
from pilotage.resources.queue_id import QueueId
from pilotage.rpc.wire import section_from_wire
from pilotage.v1 import node_service_pb2, pilot_service_pb2, resource_service_pb2
from pilotage.values.offers import POLICY_FAULT
from pilotage_client.models.jobs import time_of
from pilotage_client.models.reading import AsJson, enum_name, plain, queue_parts, value_of

PILOT_STATES = tuple(
    name.removeprefix("PILOT_STATE_") for name, number in pilot_service_pb2.PilotState.items() if number
)
"""The states of pilots."""


@dataclass(frozen=True, slots=True)
class PoolInfo(AsJson):
    """A submit pool: its requirements as first submitted, its jobs, and the queues that can run them.

    `mapped` is the time of the last mapping to queues, None = there was none; `tree_version` that of its tree.
    """

    SHOWN: ClassVar = ("id", "vo", "waiting", "running", "requirements")

    id: str
    vo: str
    requirements: Mapping[str, Value]
    waiting: int
    running: int
    queues: tuple[QueueId, ...]
    mapped: datetime | None
    tree_version: int
    created: datetime | None


@dataclass(frozen=True, slots=True)
class QueueInfo(AsJson):
    """A batch queue with its effective values, and the level of the tree that each comes from.

    `banned`, `health`, `downtime` and `pilot_problem` say why it gets no jobs or has no pilots, "" = nothing is known.
    `matched` jobs were sent there and have not started.
    """

    SHOWN: ClassVar = ("site", "ce", "queue", "enabled", "pilots", "waiting", "running", "problem")

    site: str
    ce: str
    queue: str
    parameters: Mapping[str, Value]
    origins: Mapping[str, str]
    enabled: bool
    banned: str
    pilots: int
    pools: int
    waiting: int
    matched: int
    running: int
    pilot_problem: str
    health: str
    downtime: str

    @property
    def problem(self) -> str:
        """Why the queue gets no jobs, else why it has no pilots; "" = nothing is known."""
        return "; ".join(filter(None, (self.banned, self.health, self.downtime))) or self.pilot_problem

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys; the values are `params`."""
        return self._renamed({"parameters": "params"})


@dataclass(frozen=True, slots=True)
class PilotStatus(AsJson):
    """A pilot; its queue is empty while it may be in any of the patterns `queue_set`.

    `glidein_id` is the batch system's id. `alarm` = why an operator must look at it. `isolation` "" = it has not
    reported yet. `ends` is the end of its glidein, `credential_ends` the time from which the server refuses its calls.
    """

    SHOWN: ClassVar = ("stamp", "site", "ce", "queue", "state", "node", "jobs", "jobs_ended", "last_seen", "reason")

    stamp: str
    site: str
    ce: str
    queue: str
    state: str
    reason: str
    alarm: str
    glidein_id: str
    node: str
    jobs: int
    jobs_ended: int
    vos: tuple[str, ...]
    isolation: str
    registered: datetime | None
    last_seen: datetime | None
    ends: datetime | None
    credential_ends: datetime | None
    queue_set: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlotDetails(AsJson):
    """A slot of a live pilot; `free_` is what a partitionable one has left. `job_id` 0 = it has no job.

    `policy_fault` = why the server gives it no jobs. `since` is the last change of state or activity, `since_state` of
    the state. `answered` is the last report on request. `ad` is its ClassAd in the new syntax, "" = not asked for.
    """

    SHOWN: ClassVar = ("name", "node", "state", "activity", "cpus", "memory_mib", "load", "job_id")

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
    free_memory_mib: int
    free_disk_mib: int
    free_gpus: int
    is_partitionable: bool
    load: float
    isolation: str
    policy_fault: str
    job_id: int
    since: datetime | None
    since_state: datetime | None
    last_seen: datetime | None
    answered: datetime | None
    ad: str = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys, without the ad; `job` is None if there is none."""
        left_out = ("free_memory_mib", "free_disk_mib", "free_gpus", "is_partitionable", "ad")
        fields = self._renamed({"job_id": "job"}) | {"job": self.job_id or None}
        return {name: value for name, value in fields.items() if name not in left_out}


@dataclass(frozen=True, slots=True)
class RequestedReports(AsJson):
    """The stamps of the pilots that report their slots now; a slot `answered` at `requested` or later has done so."""

    pilot_stamps: tuple[str, ...]
    requested: datetime


@dataclass(frozen=True, slots=True)
class NodeAttribute(AsJson):
    """An attribute that `set_by` has set on a node, as a ClassAd expression."""

    name: str
    expression: str
    set_by: str
    set: datetime | None


@dataclass(frozen=True, slots=True)
class NodeAttributeSet(AsJson):
    """A node with the attributes that operators and agents have set on it."""

    site: str
    node: str
    settings: tuple[NodeAttribute, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys; `settings` by name, each with `expression`, `set` and `by`."""
        settings = {
            each.name: {"expression": each.expression, "set": plain(each.set), "by": each.set_by}
            for each in self.settings
        }
        return {"site": self.site, "node": self.node, "settings": settings}


@dataclass(frozen=True, slots=True)
class PilotSecret:
    """The stamp of a registered pilot and its enrolment secret, which works once."""

    stamp: str
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class PilotsChanged:
    """The number of pilots that were drained or revoked, and given stamps of none that lives."""

    count: int
    unknown_stamps: tuple[str, ...]


def queue_info(message: resource_service_pb2.QueueInfo) -> QueueInfo:
    """Convert a queue from the wire."""
    return value_of(QueueInfo, message, **queue_parts(message.queue))


def pilot_info(message: pilot_service_pb2.Pilot) -> PilotStatus:
    """Convert a pilot from the wire."""
    state = enum_name(message, "state", "PILOT_STATE_").upper()
    return value_of(PilotStatus, message, state=state, **queue_parts(message.queue))


def slot_info(message: node_service_pb2.SlotInfo) -> SlotDetails:
    """Convert a slot from the wire."""
    slot = message.slot
    fault = section_from_wire(slot.attributes).get(POLICY_FAULT, "")
    return value_of(
        SlotDetails,
        slot,
        **queue_parts(message.queue),
        node=message.node,
        pilot=message.pilot_stamp,
        cpus=slot.amounts.cpus,
        memory_mib=slot.amounts.memory_mib,
        disk_mib=slot.amounts.disk_mib,
        gpus=slot.amounts.gpus,
        free_cpus=slot.free.cpus,
        free_memory_mib=slot.free.memory_mib,
        free_disk_mib=slot.free.disk_mib,
        free_gpus=slot.free.gpus,
        is_partitionable=slot.partitionable,
        isolation=message.isolation,
        policy_fault=fault if isinstance(fault, str) else "",
        last_seen=time_of(message, "last_seen"),
        answered=time_of(message, "answered"),
        ad=message.ad,
    )


def node_attributes(message: node_service_pb2.NodeSettings) -> NodeAttributeSet:
    """Convert the attributes of a node from the wire."""
    return value_of(NodeAttributeSet, message, site=message.node.site, node=message.node.node)
