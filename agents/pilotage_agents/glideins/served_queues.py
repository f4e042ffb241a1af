"""From the settings and the tree to the queues that a director serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pilotage.folding import fold
from pilotage.resource_tree import QueueId
from pilotage_agents.core.pilot_shape import QueueFacts, queue_facts
from pilotage_agents.core.serving import ServedQueue, is_named
from pilotage_agents.link import TreeQueue
from pilotage_agents.settings import BatchSystemSettings, SiteDirectorSettings

_FOR_ALL = {"min_idle_pilots", "pilot_bundle", "python"}
"""The director's settings that queues may have otherwise."""


def served_queues(settings: SiteDirectorSettings, tree: Iterable[TreeQueue]) -> tuple[ServedQueue, ...]:
    """Return the queues of the tree that the director serves, in its order."""
    by_ce_type = names_by_ce_type(settings.batch_systems)
    served = []
    for queue in tree:
        facts = queue_facts(queue.parameters)
        batch_system = by_ce_type.get(facts.ce_type)
        if batch_system is not None and is_named(queue.id, settings.queues):
            served.append(_served(settings, queue, batch_system, facts))
    return tuple(served)


def names_by_ce_type(batch_systems: Mapping[str, BatchSystemSettings]) -> dict[str, str]:
    """Return the names of batch systems by the folded CETypes of the queues that they serve; of two the later one."""
    return {fold(ce_type): name for name, each in batch_systems.items() for ce_type in each.ce_types}


def _served(settings: SiteDirectorSettings, queue: TreeQueue, batch_system: str, facts: QueueFacts) -> ServedQueue:
    said: dict[str, Any] = settings.model_dump(include=_FOR_ALL, exclude_none=True)
    pilot = dict(settings.pilot)
    for override in _overrides(settings, queue.id):
        said |= override.model_dump(exclude={"queues", "pilot"}, exclude_none=True)
        pilot |= override.pilot
    bundle = str(said.pop("pilot_bundle", ""))
    return ServedQueue(queue.id, batch_system, facts, queue.enabled, pilot=pilot, pilot_bundle=bundle, **said)


def _overrides(settings: SiteDirectorSettings, queue: QueueId) -> Any:
    return (override for override in settings.overrides if is_named(queue, override.queues))
