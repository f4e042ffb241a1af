"""Slots of living pilots, for people and for what draws a picture of the nodes."""

from __future__ import annotations

from pilotage.resource_tree import QueueId
from pilotage_server.core.pilots import SlotInfo
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.slots import load_slots


def list_slots(unit: Unit, queue: QueueId | None = None) -> tuple[SlotInfo, ...]:
    """Return the slots of a queue's living pilots (None = of all queues), by node and name."""
    return load_slots(unit.session, queue)
