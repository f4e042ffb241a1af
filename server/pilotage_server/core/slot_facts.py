"""What is so of a slot whatever its ad says: its size and its place, and what it need not say."""

from __future__ import annotations

from pilotage.classads import AdValue
from pilotage.resource_tree import QueueId
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.slots import SlotOffer

_KIB_IN_MIB = 1024


def sizes(amounts: Amounts) -> dict[str, AdValue]:
    """Return what an ad says of a slot of this size: memory in MiB, disk in KiB."""
    return {
        "cpus": amounts.cpus,
        "memory": amounts.memory_mib,
        "disk": amounts.disk_mib * _KIB_IN_MIB,
        "gpus": amounts.gpus,
    }


def place(queue: QueueId) -> dict[str, AdValue]:
    """Return what an ad says of where a slot is, in our words and in those of glideinWMS."""
    return {
        "site": queue.site,
        "ce": queue.ce,
        "queue": queue.queue,
        "glidein_site": queue.site,
        "glidein_gatekeeper": queue.ce,
        "glidein_entry_name": queue.queue,
    }


def unsaid(slot: SlotOffer) -> dict[str, AdValue]:
    """Return what is so of a slot that does not say otherwise."""
    return {
        "mytype": "Machine",
        "name": slot.name,
        "state": "Claimed" if slot.claim or slot.occupied else "Unclaimed",
        "activity": "Busy" if slot.occupied else "Idle",
        "partitionableslot": slot.partitionable,
    }
