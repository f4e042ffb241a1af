"""What a slot's ad says without any policy: the facts of the node, the slot, its state, its claim and its job.

Rules
-----
Here is the one list of the attributes that a pilot knows by itself, under HTCondor's names, the older
VirtualMachineID among them, so that texts of all its releases run unchanged. Memory is in MiB and disk in KiB there.
What the server knows better (LastHeardFrom, RemoteUserPrio) is not said here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from pilotage.classad_evaluation import CURRENT_TIME
from pilotage.classads import AdValue, Expression
from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.policy import SlotKey
from pilotage_pilot.core.slot_layout import Layout, StaticSlot
from pilotage_pilot.core.slot_states import Activity, SlotState
from pilotage_pilot.core.slot_status import Claim, JobInSlot, Stopwatch

_KIB = 1024
_UNTOUCHED_S = 1200
"""What HTCondor adds to the time since boot where nobody has ever been seen, in seconds."""

_NOTHING: Mapping[str, AdValue] = MappingProxyType({})


UNSEEN: Mapping[str, AdValue] = MappingProxyType(
    {
        "State": SlotState.UNCLAIMED.value,
        "Activity": Activity.IDLE.value,
        "EnteredCurrentState": 0,
        "EnteredCurrentActivity": 0,
        "CurrentRank": 0.0,
    }
)
"""What is said of a slot before anything is told of it."""

READINGS = ("LoadAvg", "CondorLoadAvg", "TotalLoadAvg", "TotalCondorLoadAvg", "KeyboardIdle", "ConsoleIdle")
"""What looks at the node find, and what changes all the time."""


class SlotKind(StrEnum):
    """How a slot came to be."""

    STATIC = "Static"
    PARTITIONABLE = "Partitionable"
    DYNAMIC = "Dynamic"


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """A slot; a dynamic one has its parent's key and its own `number` below it.

    `amounts` is what it has, of a partitionable one what it is made of in all.
    """

    name: str
    key: SlotKey
    amounts: Amounts
    kind: SlotKind
    number: int = 0
    gpu_ids: tuple[str, ...] = ()

    @classmethod
    def of(cls, slot: StaticSlot) -> SlotFacts:
        """Return the facts of a slot of the layout."""
        kind = SlotKind.PARTITIONABLE if slot.is_partitionable else SlotKind.STATIC
        return cls(slot.name, slot.key, slot.amounts, kind, gpu_ids=slot.gpu_ids)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What the names of its attributes begin with in the ads of other slots."""
        if self.kind is SlotKind.DYNAMIC:
            return (f"{self.name}_",)
        return (f"slot{self.key.slot_id}_", f"vm{self.key.slot_id}_")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node: the `size` that the pilot was given, the `total` that its slots are parts of, and what else is known."""

    name: str
    size: Amounts
    total: Amounts
    slots: int
    attributes: Mapping[str, AdValue] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, size: Amounts, layout: Layout, attributes: Mapping[str, AdValue] = _NOTHING) -> NodeFacts:
        """Return the facts of a node with slots laid out so."""
        return cls(name, size, layout.total, len(layout.slots), attributes)


@dataclass(frozen=True, slots=True)
class NodeSample:
    """What a look at the node found, `boot_s` seconds after its boot.

    `load` is the machine's one-minute load, `condor_loads` the cores that each slot's job keeps busy, by slot. Idle
    times in seconds, None = nobody was there since boot; memory and disk are what is free, None = not looked at.
    """

    boot_s: float
    load: float = 0.0
    condor_loads: Mapping[str, float] = field(default_factory=dict)
    keyboard_idle_s: int | None = None
    console_idle_s: int | None = None
    disk_mib: int | None = None
    memory_mib: int | None = None


class ShownSlot(Protocol):
    """What an ad shows of a slot's machine."""

    @property
    def state(self) -> SlotState:
        """Its state."""

    @property
    def activity(self) -> Activity:
        """Its activity."""

    @property
    def entered_state(self) -> Moment:
        """Since when it has its state."""

    @property
    def entered_activity(self) -> Moment:
        """Since when it has its activity."""

    @property
    def claim(self) -> Claim | None:
        """Who holds it."""

    @property
    def job(self) -> JobInSlot | None:
        """What is in it."""


def parent_of(name: str) -> str:
    """Return the name of the layout's slot that a slot of this name is, or is carved from."""
    return name.partition("_")[0]


def seconds(moment: Moment) -> int:
    """Return a moment as ads have it: whole seconds since 1970."""
    return int(moment.utc.timestamp())


def of_node(node: NodeFacts) -> dict[str, AdValue]:
    """Return what is the same in the ads of all of a node's slots."""
    return {
        "MyType": "Machine",
        "Machine": node.name,
        **node.attributes,
        "DetectedCpus": node.size.cpus,
        "DetectedMemory": node.size.memory_mib,
        "DetectedGPUs": node.size.gpus,
        "TotalCpus": node.total.cpus,
        "TotalMemory": node.total.memory_mib,
        "TotalGPUs": node.total.gpus,
        # Those of the layout: a count of dynamic ones too would make every slot's ad another with each job.
        "TotalSlots": node.slots,
    }


def of_slot(slot: SlotFacts, node: NodeFacts) -> dict[str, AdValue]:
    """Return what a slot's ad says as long as it is there."""
    said: dict[str, AdValue] = {
        "Name": f"{slot.name}@{node.name}",
        "SlotID": slot.key.slot_id,
        "VirtualMachineID": slot.key.slot_id,
        "SlotTypeID": slot.key.type_id or 0,
        "SlotType": slot.kind.value,
        "PartitionableSlot": slot.kind is SlotKind.PARTITIONABLE,
        "DynamicSlot": slot.kind is SlotKind.DYNAMIC,
        "TotalSlotCpus": slot.amounts.cpus,
        "TotalSlotMemory": slot.amounts.memory_mib,
        "TotalSlotDisk": slot.amounts.disk_mib * _KIB,
        "TotalSlotGPUs": slot.amounts.gpus,
    }
    if slot.kind is SlotKind.DYNAMIC:
        said["DSlotID"] = slot.number
    if slot.gpu_ids:
        said["AssignedGPUs"] = ",".join(slot.gpu_ids)
    return said if slot.kind is SlotKind.PARTITIONABLE else said | of_amounts(slot.amounts)


def of_amounts(amounts: Amounts) -> dict[str, AdValue]:
    """Return what a slot has to give."""
    return {
        "Cpus": amounts.cpus,
        "Memory": amounts.memory_mib,
        "Disk": amounts.disk_mib * _KIB,
        "GPUs": amounts.gpus,
    }


def of_state(machine: ShownSlot) -> dict[str, AdValue]:
    """Return what a slot does, for whom, and for how long."""
    said: dict[str, AdValue] = {
        "State": machine.state.value,
        "Activity": machine.activity.value,
        "EnteredCurrentState": seconds(machine.entered_state),
        "EnteredCurrentActivity": seconds(machine.entered_activity),
        "CurrentRank": 0.0,
    }
    if machine.claim is not None:
        said |= _of_claim(machine.claim, machine.entered_activity)
    if machine.job is not None:
        said |= _of_run(machine.job, machine.entered_activity)
    return said


def _of_claim(claim: Claim, at: Moment) -> dict[str, AdValue]:
    holder = claim.holder
    said: dict[str, AdValue] = {
        "CurrentRank": claim.rank,
        "RemoteOwner": holder.owner,
        "RemoteUser": f"{holder.owner}@{holder.vo}",
        "ClaimActivations": claim.activations,
        "TotalClaimRunTime": _shown(claim.run, at),
        "TotalClaimSuspendTime": _shown(claim.suspended, at),
    }
    return said | ({"RemoteGroup": holder.group} if holder.group else {})


def _of_run(job: JobInSlot, at: Moment) -> dict[str, AdValue]:
    if job.started is None:
        return {}
    return {
        "JobStart": seconds(job.started),
        "TotalJobRunTime": _shown(job.run, at),
        "TotalJobSuspendTime": _shown(job.suspended, at),
    }


def _shown(watch: Stopwatch, at: Moment) -> AdValue:
    """Return what a stopwatch shows, as an ad that is not written anew while it runs says it."""
    if watch.since_boot_s is None:
        return int(watch.counted_s)
    return Expression(f"{CURRENT_TIME} - {int(at.utc.timestamp() - watch.seconds(at))}")


def of_readings(sample: NodeSample, is_at_keyboard: bool, is_at_console: bool) -> dict[str, int]:
    """Return what a look at the node found, but for loads, for a slot that people's presence counts in or not."""
    never = int(sample.boot_s) + _UNTOUCHED_S
    keyboard = sample.keyboard_idle_s if is_at_keyboard else None
    console = sample.console_idle_s if is_at_console else None
    said = {
        "KeyboardIdle": never if keyboard is None else keyboard,
        "ConsoleIdle": never if console is None else console,
    }
    if sample.disk_mib is not None:
        said["TotalDisk"] = sample.disk_mib * _KIB
    if sample.memory_mib is not None:
        said["TotalVirtualMemory"] = sample.memory_mib * _KIB
    return said
