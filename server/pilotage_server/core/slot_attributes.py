"""The attributes that the ad of every slot has, whatever its policy adds.

Rules
-----
Names only, folded: what they mean is the pilot's business. Source: HTCondor manual, machine ClassAd attributes.
"""

from __future__ import annotations

import re

from pilotage.folding import folded_set

STANDARD = folded_set(
    (
        *("MyType", "Name", "Machine", "SlotID", "SlotType", "SlotTypeID", "VirtualMachineID", "DSlotID"),
        *("SlotDynamic", "DynamicSlot", "PartitionableSlot", "NumDynamicSlots", "SlotWeight"),
        *("Site", "CE", "Queue", "UidDomain", "FileSystemDomain", "CondorVersion", "PilotageVersion"),
        *("State", "Activity", "EnteredCurrentState", "EnteredCurrentActivity", "CurrentRank"),
        *("Arch", "OpSys", "OpSysAndVer", "OpSysMajorVer", "OpSysVer", "OpSysName", "OpSysShortName", "OpSysLongName"),
        *("OpSysLegacy", "Microarch", "KernelVersion", "HasFileTransfer"),
        *("Cpus", "Memory", "Disk", "GPUs", "Gpus", "VirtualMemory", "DetectedCpus", "DetectedMemory", "DetectedGPUs"),
        *("TotalCpus", "TotalMemory", "TotalDisk", "TotalGPUs", "TotalVirtualMemory", "TotalSlots"),
        *("TotalSlotCpus", "TotalSlotMemory", "TotalSlotDisk", "TotalSlotGPUs", "AssignedGPUs"),
        *("LoadAvg", "CondorLoadAvg", "TotalLoadAvg", "TotalCondorLoadAvg", "KeyboardIdle", "ConsoleIdle"),
        *("Mips", "KFlops", "ClockMin", "ClockDay", "MyCurrentTime", "CurrentTime", "LastHeardFrom"),
        *("RemoteUser", "RemoteOwner", "RemoteGroup", "RemoteUserPrio", "ClientMachine", "JobId", "JobStart"),
        *("TotalClaimRunTime", "TotalJobRunTime", "TotalTimeClaimedBusy", "TotalTimeUnclaimedIdle"),
        *("Start", "Rank", "Requirements", "PreemptionRequirements", "IsOwner"),
        *("MaxJobRetirementTime", "MachineMaxVacateTime"),
    )
)
"""Folded names."""

_OF_OTHER_SLOTS = re.compile(r"(slot|vm)\d+_.+")


def is_published(folded: str, published: frozenset[str]) -> bool:
    """Whether some slot has such an attribute; `published` are the folded names seen in slots' ads."""
    return folded in STANDARD or folded in published or _OF_OTHER_SLOTS.fullmatch(folded) is not None
