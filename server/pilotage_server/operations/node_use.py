"""GetNodeUse: what a drain controller needs to know of nodes and of the work that waits for them."""

from __future__ import annotations

from collections.abc import Sequence

from pilotage.bans import active_bans
from pilotage.resource_tree import QueueId
from pilotage_server.core.node_use import FarmUse, node_uses, waiting_widths
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.node_settings import load_node_settings
from pilotage_server.storage.slots import load_slots


def get_node_use(unit: Unit, world: World, queues: Sequence[QueueId], attribute: str) -> FarmUse:
    """Return the nodes with live pilots of these queues (none = of all), and the work that could go to them now.

    Its cost grows with slots and task queues, not with the jobs that wait.
    """
    chosen = frozenset(queues)
    slots = [info for info in load_slots(unit.session) if not chosen or info.queue in chosen]
    with world.lock:
        waiting = world.waiting.waiting()
    present = sorted({info.queue for info in slots})
    open_queues = [queue for queue in present if not active_bans(world.bans, queue, unit.now)]
    return FarmUse(
        node_uses(slots, load_node_settings(unit.session), attribute),
        waiting_widths(waiting, open_queues, world.reach),
    )
