"""GetNodeUse: what a drain controller needs to know of nodes and of the work that waits for them."""

from __future__ import annotations

from collections.abc import Sequence

from pilotage.bans import active_bans
from pilotage.resource_tree import QueueId
from pilotage_server.core.node_use import FarmUse, Question, Told, node_uses, waiting_jobs
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.node_settings import load_node_settings
from pilotage_server.storage.slots import load_slots
from pilotage_server.storage.turns import acting


def get_node_use(unit: Unit, world: World, queues: Sequence[QueueId], attribute: str) -> FarmUse:
    """Return the nodes with live pilots of these queues (none = of all), and the work that could go to them now.

    Its cost grows with slots and task queues, not with the jobs that wait.
    """
    question = Question(attribute, frozenset(queues))
    slots = load_slots(unit.session)
    with world.lock:
        waiting = world.waiting.waiting()
    present = sorted({info.queue for info in slots if question.is_about(info.queue)})
    open_queues = tuple(queue for queue in present if not active_bans(world.bans, queue, unit.now))
    told = Told(load_node_settings(unit.session), acting(unit.session, unit.now))
    return FarmUse(
        node_uses(slots, question, open_queues, told),
        open_queues,
        waiting_jobs(waiting, open_queues, world.reach),
    )
