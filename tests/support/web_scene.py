"""Nodes with slots in all states, as their pilots report them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from pilotage import clock
from pilotage.resources.tree import QueueId
from pilotage.rpc.wire import time_to_wire
from pilotage.v1 import matcher_service_pb2, values_pb2
from support.wire_grid import WireGrid, WirePilot

_STATES = {
    ("Claimed", "Busy"): 70,
    ("Unclaimed", "Idle"): 14,
    ("Claimed", "Idle"): 4,
    ("Claimed", "Suspended"): 4,
    ("Claimed", "Retiring"): 3,
    ("Preempting", "Vacating"): 2,
    ("Owner", "Idle"): 3,
}
"""States and activities of slots with their shares."""


def a_slot(name: str, state: str, activity: str, **facts: Any) -> matcher_service_pb2.SlotState:
    """Return a slot of one core."""
    amounts = values_pb2.Amounts(cpus=1, memory_mib=2000)
    free = amounts if state == "Unclaimed" else values_pb2.Amounts()
    given: dict[str, Any] = {"name": name, "state": state, "activity": activity, "amounts": amounts, "free": free}
    return matcher_service_pb2.SlotState(**(given | facts))


def show_slots(pilot: WirePilot, node: str, slots: Iterable[matcher_service_pb2.SlotState], **facts: Any) -> None:
    """Report a node with these slots."""
    pilot.heartbeat(node=matcher_service_pb2.NodeState(name=node, slots=slots, **facts))


def show_farm(grid: WireGrid, nodes_of_queues: Mapping[QueueId, int]) -> None:
    """Start a pilot on each of some nodes of these queues; some nodes drain."""
    chance = random.Random(5)
    states, weights = list(_STATES), list(_STATES.values())
    for queue, nodes in nodes_of_queues.items():
        for number in range(nodes):
            drains = number % 7 == 4
            since = time_to_wire(clock.now() - timedelta(minutes=chance.randrange(2, 600)))
            slots = [
                a_slot(f"slot{slot}", *(("Drained", "Idle") if drains and slot % 3 else found), since=since, load=0.97)
                for slot, found in enumerate(chance.choices(states, weights, k=chance.choice((16, 32, 64))), 1)
            ]
            node = f"wn{number + 101}.{queue.site.lower()}.example"
            show_slots(grid.start_pilot(queue), node, slots, draining=drains)
