"""The ads of slots and jobs in which a policy's expressions are evaluated, as HTCondor's startd shows them.

Rules
-----
An ad says what is so; what it means is the policy's. Attributes that a policy publishes come after the slot's own
facts and may replace them; what an operator sets comes last. Names are those of HTCondor's ads, the older
VirtualMachineID and vmN_ among them, so that texts of all its releases run unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pilotage.classad_evaluation import CURRENT_TIME
from pilotage.classads import AdValue, Expression, expression_from_old_syntax
from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.policy import SHARING, Policy
from pilotage_pilot.core.slot_layout import Layout, StaticSlot

_VANILLA_UNIVERSE = 5
_JOB_IDLE = 1
_UNTOUCHED_S = 24 * 3600
"""How long nobody has touched the keyboard of a quiet node, in seconds."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as its policy sees it: its real size, what is laid out on it, and the time, in seconds since 1970."""

    name: str
    size: Amounts
    layout: Layout
    now_s: int


def quiet_slot_ad(policy: Policy, slot: StaticSlot, node: NodeView) -> dict[str, AdValue]:
    """Return the ad of a slot that has just become idle, on a node where every slot is idle and nobody works.

    Raises
    ------
    InvalidInputError
        When the policy publishes an attribute that is no expression.
    """
    ad = _facts(slot, node)
    ad |= {name: Expression(expression_from_old_syntax(text)) for name, text in policy.expressions(slot.key).items()}
    ad |= {name: Expression(expression_from_old_syntax(text)) for name, text in policy.published(slot.key).items()}
    ad["IsOwner"] = Expression("IS_OWNER")
    for other in node.layout.slots:
        if other != slot:
            facts = _facts(other, node)
            ad |= _shown_to_others(policy, other.key.slot_id, facts)
    # The slot's own show what its ad says now, also where an operator set it.
    mirrored: dict[str, AdValue] = {name: Expression(name) for name in policy.listed(SHARING)}
    return ad | _shown_to_others(policy, slot.key.slot_id, mirrored)


def _facts(slot: StaticSlot, node: NodeView) -> dict[str, AdValue]:
    slot_id = slot.key.slot_id
    return {
        "MyType": "Machine",
        "Name": f"slot{slot_id}@{node.name}",
        "Machine": node.name,
        "SlotID": slot_id,
        "VirtualMachineID": slot_id,
        "SlotTypeID": slot.key.type_id or 0,
        "SlotType": "Partitionable" if slot.is_partitionable else "Static",
        "PartitionableSlot": slot.is_partitionable,
        "DynamicSlot": False,
        "State": "Unclaimed",
        "Activity": "Idle",
        "EnteredCurrentState": node.now_s,
        "EnteredCurrentActivity": node.now_s,
        CURRENT_TIME: node.now_s,
        "Cpus": slot.cpus,
        "Memory": slot.memory_mib,
        "TotalSlotCpus": slot.cpus,
        "TotalSlotMemory": slot.memory_mib,
        "TotalCpus": node.layout.total.cpus,
        "TotalMemory": node.layout.total.memory_mib,
        "TotalSlots": len(node.layout.slots),
        "DetectedCpus": node.size.cpus,
        "DetectedMemory": node.size.memory_mib,
        "LoadAvg": 0.0,
        "CondorLoadAvg": 0.0,
        "TotalLoadAvg": 0.0,
        "TotalCondorLoadAvg": 0.0,
        "KeyboardIdle": _UNTOUCHED_S,
        "ConsoleIdle": _UNTOUCHED_S,
        "CurrentRank": 0.0,
    }


def _shown_to_others(policy: Policy, slot_id: int, facts: Mapping[str, AdValue]) -> dict[str, AdValue]:
    by_folded_name = {name.lower(): value for name, value in facts.items()}
    return {
        f"{prefix}{slot_id}_{name}": by_folded_name[name.lower()]
        for name in policy.listed(SHARING)
        if name.lower() in by_folded_name
        for prefix in ("slot", "vm")
    }


def new_job_ad(now_s: int) -> dict[str, AdValue]:
    """Return what every job's ad says that has just been queued: one core, vanilla, never run."""
    return {
        "MyType": "Job",
        "JobUniverse": _VANILLA_UNIVERSE,
        "JobStatus": _JOB_IDLE,
        "JobPrio": 0,
        "RequestCpus": 1,
        "RemoteWallClockTime": 0.0,
        "NumJobStarts": 0,
        "QDate": now_s,
        "EnteredCurrentStatus": now_s,
    }


def overlaid(ad: Mapping[str, AdValue], changes: Mapping[str, AdValue]) -> dict[str, AdValue]:
    """Return `ad` with `changes` made, whatever the case of their names."""
    folded = {name.lower() for name in changes}
    return {name: value for name, value in ad.items() if name.lower() not in folded} | dict(changes)
