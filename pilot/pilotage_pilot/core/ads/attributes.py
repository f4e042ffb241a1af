"""The attributes of a slot's ad that hold without any policy: node, slot, state, claim, job, load and idle times.

Rules
-----
The attributes have HTCondor's names, the old VirtualMachineID included. Memory is in MiB, disk in KiB. Attributes that
the server knows better (LastHeardFrom, RemoteUserPrio) are left out.
Slots show each other their shared attributes as values, as of the last change (HTCondor manual, STARTD_SLOT_ATTRS).
The machine's load is divided over its slots: first the load of their jobs, then the owner's, one core each, for slots
in state Owner first; the last slot takes the rest, so that the sum is the machine's load. The load of a removed dynamic
slot goes to its parent (HTCondor manual, LoadAvg and CondorLoadAvg).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from pilotage.classads.evaluation import CURRENT_TIME
from pilotage.classads.library import AdValue, Expression
from pilotage.resources.parameters import ISOLATION
from pilotage.text import fold, folded_set
from pilotage.values.amounts import Amounts
from pilotage.values.isolation import Isolation
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.policy import SlotKey
from pilotage_pilot.core.slots.layout import Layout, StaticSlot
from pilotage_pilot.core.slots.states import Activity, Claim, JobInSlot, SlotState, Stopwatch

_KIB = 1024
_UNTOUCHED_S = 1200
"""Seconds that HTCondor adds to the time since boot if there was no use since then."""

_NOTHING: Mapping[str, AdValue] = MappingProxyType({})


INITIAL_STATE: Mapping[str, AdValue] = MappingProxyType(
    {
        "State": SlotState.UNCLAIMED.value,
        "Activity": Activity.IDLE.value,
        "EnteredCurrentState": 0,
        "EnteredCurrentActivity": 0,
        "CurrentRank": 0.0,
    }
)
"""The attributes of a slot before its first state."""

LAST_CLAIM_END = "LastClaimEnd"
"""The end of a slot's last claim, in seconds since 1970; HTCondor has no such attribute."""

READINGS = ("LoadAvg", "CondorLoadAvg", "TotalLoadAvg", "TotalCondorLoadAvg", "KeyboardIdle", "ConsoleIdle")
"""Attributes of node samples that change all the time."""


class SlotKind(StrEnum):
    """HTCondor's types of slots."""

    STATIC = "Static"
    PARTITIONABLE = "Partitionable"
    DYNAMIC = "Dynamic"


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """The constant facts of a slot; a dynamic one has its parent's key and its own `number`.

    `amounts` are all its resources, free or not.
    """

    name: str
    key: SlotKey
    amounts: Amounts
    kind: SlotKind
    number: int = 0
    gpu_ids: tuple[str, ...] = ()

    @classmethod
    def of(cls, slot: StaticSlot) -> SlotFacts:
        """Return the facts of a static slot."""
        kind = SlotKind.PARTITIONABLE if slot.is_partitionable else SlotKind.STATIC
        return cls(slot.name, slot.key, slot.amounts, kind, gpu_ids=slot.gpu_ids)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Prefixes of its attributes in the ads of other slots."""
        if self.kind is SlotKind.DYNAMIC:
            return (f"{self.name}_",)
        return (f"slot{self.key.slot_id}_", f"vm{self.key.slot_id}_")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts of a node: the `size` of the pilot's share and the `total` that the layout divides.

    `isolation` is how the pilot isolates payloads.
    """

    name: str
    size: Amounts
    total: Amounts
    slots: int
    attributes: Mapping[str, AdValue] = field(default_factory=dict)
    isolation: Isolation = Isolation.NONE

    @classmethod
    def of(
        cls,
        name: str,
        size: Amounts,
        layout: Layout,
        attributes: Mapping[str, AdValue] = _NOTHING,
        isolation: Isolation = Isolation.NONE,
    ) -> NodeFacts:
        """Return the facts of a node with this layout."""
        return cls(name, size, layout.total, len(layout.slots), attributes, isolation)


@dataclass(frozen=True, slots=True)
class NodeSample:
    """A sample of the node, `boot_s` seconds after its boot.

    `load` is the machine's one-minute load, `condor_loads` the busy cores of each slot's job. Idle times None = no use
    since boot. Memory and disk are free amounts, None = unknown. `utc_offset_s` = how far local time is ahead of UTC.
    """

    boot_s: float
    load: float = 0.0
    condor_loads: Mapping[str, float] = field(default_factory=dict)
    keyboard_idle_s: int | None = None
    console_idle_s: int | None = None
    disk_mib: int | None = None
    memory_mib: int | None = None
    utc_offset_s: int = 0


class ShownSlot(Protocol):
    """The parts of a slot's machine that its ad shows."""

    @property
    def state(self) -> SlotState:
        """Its state."""

    @property
    def activity(self) -> Activity:
        """Its activity."""

    @property
    def entered_state(self) -> Now:
        """When it entered its state."""

    @property
    def entered_activity(self) -> Now:
        """When it entered its activity."""

    @property
    def claim(self) -> Claim | None:
        """Its claim."""

    @property
    def last_claim_end(self) -> datetime | None:
        """When its last claim ended; None = not known."""

    @property
    def job(self) -> JobInSlot | None:
        """Its job."""


def parent_of(name: str) -> str:
    """Return the name of the static slot of a slot with this name."""
    return name.partition("_")[0]


def unix_seconds(now: Now) -> int:
    """Return a time as in ads: whole seconds since 1970."""
    return int(now.utc.timestamp())


def node_attributes(node: NodeFacts) -> dict[str, AdValue]:
    """Return the attributes that are equal for all slots of a node."""
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
        # Static slots only: a count of dynamic ones would change every slot's ad with each job.
        "TotalSlots": node.slots,
        "SlotWeight": Expression("Cpus"),
        ISOLATION: node.isolation.value,
        "CpuBusyValue": False,
        "CpuBusyTime": 0,
    }


_MINUTE_S, _DAY_S = 60, 24 * 3600
_DAY_OF_1970 = 4
"""1 January 1970 was a Thursday; 0 = Sunday."""


def clock_attributes(utc_offset_s: int) -> dict[str, AdValue]:
    """Return the minutes since midnight and the day of the week, in local time.

    They are expressions over the time of the evaluation, so that the ad stays unchanged.
    """
    local = f"({CURRENT_TIME} + {utc_offset_s})"
    return {
        "ClockMin": Expression(f"{local} % {_DAY_S} / {_MINUTE_S}"),
        "ClockDay": Expression(f"({local} / {_DAY_S} + {_DAY_OF_1970}) % 7"),
    }


def cpu_busy_attributes(since: Now | None) -> dict[str, AdValue]:
    """Return whether the policy's CpuBusy is true, and for how many seconds; `since` None = it is not."""
    if since is None:
        return {"CpuBusyValue": False, "CpuBusyTime": 0}
    return {"CpuBusyValue": True, "CpuBusyTime": Expression(f"{CURRENT_TIME} - {unix_seconds(since)}")}


def slot_attributes(slot: SlotFacts, node: NodeFacts) -> dict[str, AdValue]:
    """Return the constant attributes of a slot."""
    attributes: dict[str, AdValue] = {
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
        attributes["DSlotID"] = slot.number
    if slot.gpu_ids:
        attributes["AssignedGPUs"] = ",".join(slot.gpu_ids)
    return attributes if slot.kind is SlotKind.PARTITIONABLE else attributes | amount_attributes(slot.amounts)


def amount_attributes(amounts: Amounts) -> dict[str, AdValue]:
    """Return the attributes of a slot's resources."""
    return {
        "Cpus": amounts.cpus,
        "Memory": amounts.memory_mib,
        "Disk": amounts.disk_mib * _KIB,
        "GPUs": amounts.gpus,
    }


def state_attributes(machine: ShownSlot) -> dict[str, AdValue]:
    """Return the attributes of a slot's state, claim and job."""
    attributes: dict[str, AdValue] = {
        "State": machine.state.value,
        "Activity": machine.activity.value,
        "EnteredCurrentState": unix_seconds(machine.entered_state),
        "EnteredCurrentActivity": unix_seconds(machine.entered_activity),
        "CurrentRank": 0.0,
    }
    if machine.last_claim_end is not None:
        attributes[LAST_CLAIM_END] = int(machine.last_claim_end.timestamp())
    if machine.claim is not None:
        attributes |= _claim_attributes(machine.claim, machine.entered_activity)
    if machine.job is not None:
        attributes |= _run_attributes(machine.job, machine.entered_activity)
    return attributes


def _claim_attributes(claim: Claim, at: Now) -> dict[str, AdValue]:
    holder = claim.holder
    attributes: dict[str, AdValue] = {
        "CurrentRank": claim.rank,
        "RemoteOwner": holder.owner,
        "RemoteUser": f"{holder.owner}@{holder.vo}",
        "ClaimActivations": claim.activations,
        "TotalClaimRunTime": _stopwatch_value(claim.run, at),
        "TotalClaimSuspendTime": _stopwatch_value(claim.suspended, at),
    }
    return attributes | ({"RemoteGroup": holder.group} if holder.group else {})


def _run_attributes(job: JobInSlot, at: Now) -> dict[str, AdValue]:
    if job.started is None:
        return {}
    return {
        "JobStart": unix_seconds(job.started),
        "TotalJobRunTime": _stopwatch_value(job.run, at),
        "TotalJobSuspendTime": _stopwatch_value(job.suspended, at),
    }


def _stopwatch_value(watch: Stopwatch, at: Now) -> AdValue:
    """Return the value of a stopwatch; of a running one an expression, so that the ad stays unchanged."""
    if watch.since_boot_s is None:
        return int(watch.counted_s)
    return Expression(f"{CURRENT_TIME} - {int(at.utc.timestamp() - watch.seconds(at))}")


def reading_attributes(sample: NodeSample, is_at_keyboard: bool, is_at_console: bool) -> dict[str, int]:
    """Return the attributes of a sample except loads, for a slot with or without keyboard and console."""
    never = int(sample.boot_s) + _UNTOUCHED_S
    keyboard = sample.keyboard_idle_s if is_at_keyboard else None
    console = sample.console_idle_s if is_at_console else None
    attributes = {
        "KeyboardIdle": never if keyboard is None else keyboard,
        "ConsoleIdle": never if console is None else console,
    }
    if sample.disk_mib is not None:
        attributes["TotalDisk"] = sample.disk_mib * _KIB
    if sample.memory_mib is not None:
        attributes["TotalVirtualMemory"] = sample.memory_mib * _KIB
    return attributes


_VOLATILE = folded_set(READINGS)


class Neighbours:
    """The attributes, named in `shared`, that slots show each other."""

    def __init__(self, shared: tuple[str, ...]) -> None:
        self.shared = shared
        self.values: dict[str, AdValue] = {}
        """All shown values, by their names in the slots' ads."""

    def show(self, slot: SlotFacts, shown: Mapping[str, AdValue | None]) -> dict[str, AdValue | None]:
        """Store the values that a slot shows, None = undefined; returns the changes in the others' ads."""
        changes = {
            f"{prefix}{attribute}": value
            for attribute, value in shown.items()
            for prefix in slot.prefixes
            if not _same(self.values.get(f"{prefix}{attribute}"), value)
        }
        for name, value in changes.items():
            if value is None:
                del self.values[name]
            else:
                self.values[name] = value
        return changes

    def hide(self, slot: SlotFacts) -> dict[str, AdValue | None]:
        """Remove the values of a slot; returns the changes in the others' ads."""
        return self.show(slot, dict.fromkeys(self.shared))

    def seen_by(self, slot: SlotFacts) -> dict[str, AdValue]:
        """Return the attributes of all slots, including itself, for a slot's own ad."""
        return self.values | {f"{prefix}{name}": Expression(name) for name in self.shared for prefix in slot.prefixes}

    def is_significant(self, slot: SlotFacts, changes: Mapping[str, AdValue | None]) -> bool:
        """Whether any change is more than a load or idle time."""
        volatile = {f"{prefix}{name}" for name in self.shared if fold(name) in _VOLATILE for prefix in slot.prefixes}
        return not changes.keys() <= volatile


def _same(before: AdValue | None, after: AdValue | None) -> bool:
    return type(before) is type(after) and before == after


_PLACES = 2


def load_shares(load: float, condor_loads: Mapping[str, float], slots: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the load attributes of each slot; the owner's load goes to the slots in this order."""
    condor = _loads_by_slot(condor_loads, slots)
    total_condor = sum(condor.values())
    total = max(load, total_condor)  # the kernel's average lags behind what the jobs use
    left = total - total_condor
    shares: dict[str, dict[str, float]] = {}
    for name in slots:
        is_last = len(shares) + 1 == len(slots)
        owner_load = left if is_last else min(1.0, left)
        left -= owner_load
        shares[name] = {
            "LoadAvg": round(owner_load + condor[name], _PLACES),
            "CondorLoadAvg": round(condor[name], _PLACES),
            "TotalLoadAvg": round(total, _PLACES),
            "TotalCondorLoadAvg": round(total_condor, _PLACES),
        }
    return shares


def _loads_by_slot(condor_loads: Mapping[str, float], slots: Sequence[str]) -> dict[str, float]:
    found = dict.fromkeys(slots, 0.0)
    for name, load in condor_loads.items():
        receiver = name if name in found else parent_of(name)
        found[receiver] = found.get(receiver, 0.0) + max(0.0, load)
    return found
