"""The version of the resource tree that decides at present, with what is computed from it once and kept.

Rules
-----
One object per version, replaced whole. Version 0 is the empty tree before any was brought: all is unknown. Its
queues keep their numbers from version to version, so that the mappings of two versions are compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from pilotage.effective import EffectiveQueue, effective_ces
from pilotage.folding import fold
from pilotage.job_description import Value
from pilotage.pacing import Pace, at_once
from pilotage.parameters import ParameterDeclarations
from pilotage.pool_mapping import PoolMapper
from pilotage.queue_sets import QueueOrder
from pilotage.requirements import Requirements, read_requirements
from pilotage.resource_tree import QueueId, ResourceTree

_VIEWS_KEPT = 64
"""VOs whose view is remembered; beyond that the one that was made first is made again when it is asked for."""

_POOLS_READ = 50_000
"""Pools whose requirements are remembered."""


class TreeInForce:
    """A tree version: its queues, as each VO sees them, and the mapper that finds the queues of pools.

    `order` numbers the queues, and may hold more than those of the tree; None = as the tree has them. It is
    made at the `pace` given.
    """

    __slots__ = ("_own_views", "_read", "_views", "mapper", "queues", "tree", "version")

    def __init__(self, version: int, tree: ResourceTree, order: QueueOrder | None = None, pace: Pace = at_once) -> None:
        self.version = version
        self.tree = tree
        self.queues: tuple[QueueId, ...] = tuple(tree.queue_ids())
        self._own_views = tree.vos_with_overlays()
        self._views: dict[str | None, Mapping[QueueId, EffectiveQueue]] = {None: _view(tree, None, pace)}
        self._read: dict[str, Requirements] = {}
        self.mapper = PoolMapper(tree, order or QueueOrder(self.queues), self._views[None].values(), pace)

    def successor(self, tree: ResourceTree, pace: Pace = at_once) -> TreeInForce:
        """Return the next version, in which queues keep their numbers, unless most of these would be of none."""
        queues = tuple(tree.queue_ids())
        order = self.order.and_also(queues)
        kept = order if len(order.queues) <= 2 * len(queues) else QueueOrder(queues)
        after = TreeInForce(self.version + 1, tree, kept, pace)
        if after.declarations == self.declarations:
            after._read = self._read
        return after

    def requirements_of(self, pool_id: str, section: Mapping[str, Value], vo: str) -> Requirements:
        """Return what a pool asks by the tree's declarations; read once, for each new tree maps all pools again.

        Raises
        ------
        InvalidRequirementsError
            When the section has no meaning under the declarations.
        """
        read = self._read.get(pool_id)
        if read is None:
            if len(self._read) >= _POOLS_READ:
                self._read.clear()
            read = self._read[pool_id] = read_requirements(section, vo, self.declarations)
        return read

    @property
    def order(self) -> QueueOrder:
        """The numbers of the queues."""
        return self.mapper.order

    @property
    def declarations(self) -> ParameterDeclarations:
        """The types of the parameters, shipped and declared by the tree."""
        return self.tree.declarations

    def knows(self, queue: QueueId) -> bool:
        """Return whether the tree has the queue, enabled or not."""
        return queue in self._views[None]

    def effective(self, queue: QueueId, vo: str | None) -> EffectiveQueue | None:
        """Return a queue as `vo` sees it (None = as operators do); None = the tree does not have it."""
        if vo is None or fold(vo) in self._own_views:
            return self.as_seen_by(vo).get(queue)
        seen = self._views[None].get(queue)
        return None if seen is None else replace(seen, vo=vo)

    def as_seen_by(self, vo: str | None) -> Mapping[QueueId, EffectiveQueue]:
        """Return all queues in the order of the tree, also those that are not enabled or do not admit `vo`."""
        key = None if vo is None else fold(vo)
        view = self._views.get(key)
        if view is None:
            view = self._made_for(vo)
            if len(self._views) >= _VIEWS_KEPT:
                oldest = next(name for name in list(self._views) if name is not None)
                self._views.pop(oldest, None)
            self._views[key] = view
        return view

    def _made_for(self, vo: str | None) -> Mapping[QueueId, EffectiveQueue]:
        if vo is None or fold(vo) in self._own_views:
            return _view(self.tree, vo)
        # A VO that no overlay names sees what everyone sees, as itself.
        return MappingProxyType({id_: replace(queue, vo=vo) for id_, queue in self._views[None].items()})


def _view(tree: ResourceTree, vo: str | None, pace: Pace = at_once) -> Mapping[QueueId, EffectiveQueue]:
    return MappingProxyType({queue.id: queue for ce in pace(effective_ces(tree, vo)) for queue in ce.queues})


NO_TREE = TreeInForce(0, ResourceTree())
"""What is in force before any tree was brought."""
