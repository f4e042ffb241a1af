"""Builders of resource trees that say only what matters."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pilotage.resources.inheritance import EffectiveQueue, effective_queues
from pilotage.resources.requirements import Requirements, read_requirements
from pilotage.resources.tree import QueueId, ResourceTree
from pilotage.resources.tree_reader import tree_from_mapping

Section = Mapping[str, object]
NOTHING: Section = MappingProxyType({})

THE_QUEUE = QueueId("CERN", "ce01", "long")


def a_tree(**top_level: object) -> ResourceTree:
    """Return the tree of this plain data, which must be free of faults."""
    return tree_from_mapping({"sites": {}, **top_level})[0]


def a_tree_of_one_queue(
    queue: Section = NOTHING, *, ce: Section = NOTHING, site: Section = NOTHING, **top_level: object
) -> ResourceTree:
    """Return a tree with `THE_QUEUE` alone, of which each level states what is given."""
    queues = {THE_QUEUE.queue: dict(queue)}
    ces = {THE_QUEUE.ce: {**ce, "queues": queues}}
    return a_tree(**{"sites": {THE_QUEUE.site: {**site, "ces": ces}}, **top_level})


def effective_queue(tree: ResourceTree, queue: QueueId, vo: str | None) -> EffectiveQueue:
    """Return one queue as `vo` sees it."""
    (found,) = (each for each in effective_queues(tree, vo) if each.id == queue)
    return found


def a_queue(vo: str | None = "cms", **parameters: object) -> EffectiveQueue:
    """Return `THE_QUEUE` as `vo` sees it, with these parameters of its own."""
    return effective_queue(a_tree_of_one_queue(parameters), THE_QUEUE, vo)


def asking(vo: str = "cms", **section: object) -> Requirements:
    """Return the requirements of a section under the shipped declarations."""
    return read_requirements(section, vo)
