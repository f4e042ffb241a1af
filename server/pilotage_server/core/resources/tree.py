"""The active tree: the version of the resource tree that decides now, with values that are computed from it once.

Rules
-----
There is one object per version, replaced as a whole. Version 0 is the empty tree before the first one is loaded. Queues
keep their numbers from version to version, so that mappings of two versions are compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from pilotage.job_description import Value
from pilotage.pacing import Pace, at_once
from pilotage.resources.inheritance import EffectiveQueue, effective_ces
from pilotage.resources.parameters import ParameterDeclarations
from pilotage.resources.pool_mapping import PoolMapper, QueueOrder
from pilotage.resources.requirements import Requirements, read_requirements
from pilotage.resources.tree import QueueId, ResourceTree
from pilotage.text import fold

_VIEWS_KEPT = 64
"""Cached views of VOs; beyond that the oldest one is dropped."""

_POOLS_READ = 50_000
"""Pools whose requirements are cached."""


class ActiveTree:
    """A tree version: its queues, as each VO sees them, and the mapper that finds the queues of pools.

    `order` numbers the queues and may have more than those of the tree; None = the order of the tree.
    """

    __slots__ = ("_requirements", "_views", "mapper", "queues", "sites", "tree", "version", "vos_with_overlays")

    def __init__(self, version: int, tree: ResourceTree, order: QueueOrder | None = None, pace: Pace = at_once) -> None:
        self.version = version
        self.tree = tree
        self.queues: tuple[QueueId, ...] = tuple(tree.queue_ids())
        self.sites: Mapping[str, str] = {fold(queue.site): queue.site for queue in self.queues}
        """The sites that have queues, by folded name."""
        self.vos_with_overlays = tree.vos_with_overlays()
        self._views: dict[str | None, Mapping[QueueId, EffectiveQueue]] = {None: _view(tree, None, pace)}
        self._requirements: dict[str, Requirements] = {}
        self.mapper = PoolMapper(tree, order or QueueOrder(self.queues), self._views[None].values(), pace)

    def successor(self, tree: ResourceTree, pace: Pace = at_once) -> ActiveTree:
        """Return the next version. Queues keep their numbers unless most numbers would belong to no queue."""
        queues = tuple(tree.queue_ids())
        order = self.order.extended(queues)
        kept = order if len(order.queues) <= 2 * len(queues) else QueueOrder(queues)
        after = ActiveTree(self.version + 1, tree, kept, pace)
        if after.declarations == self.declarations:
            after._requirements = self._requirements
        return after

    def requirements_of(self, pool_id: str, section: Mapping[str, Value], vo: str) -> Requirements:
        """Return the requirements of a pool under the tree's declarations; cached, since each new tree maps all pools.

        Raises
        ------
        InvalidRequirementsError
            When the declarations cannot interpret the section.
        """
        read = self._requirements.get(pool_id)
        if read is None:
            if len(self._requirements) >= _POOLS_READ:
                self._requirements.clear()
            read = self._requirements[pool_id] = read_requirements(section, vo, self.declarations)
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
        """Return a queue as `vo` sees it (None = without overlays); None = the tree does not have it."""
        if vo is None or fold(vo) in self.vos_with_overlays:
            return self.view_for(vo).get(queue)
        seen = self._views[None].get(queue)
        return None if seen is None else replace(seen, vo=vo)

    def view_for(self, vo: str | None) -> Mapping[QueueId, EffectiveQueue]:
        """Return all queues as `vo` sees them, in the order of the tree, also disabled and inaccessible ones."""
        key = None if vo is None else fold(vo)
        view = self._views.get(key)
        if view is None:
            view = self._build_view(vo)
            if len(self._views) >= _VIEWS_KEPT:
                oldest = next(name for name in list(self._views) if name is not None)
                self._views.pop(oldest, None)
            self._views[key] = view
        return view

    def _build_view(self, vo: str | None) -> Mapping[QueueId, EffectiveQueue]:
        if vo is None or fold(vo) in self.vos_with_overlays:
            return _view(self.tree, vo)
        # A VO without overlays sees the common values.
        return MappingProxyType({id_: replace(queue, vo=vo) for id_, queue in self._views[None].items()})


def _view(tree: ResourceTree, vo: str | None, pace: Pace = at_once) -> Mapping[QueueId, EffectiveQueue]:
    return MappingProxyType({queue.id: queue for ce in pace(effective_ces(tree, vo)) for queue in ce.queues})


NO_TREE = ActiveTree(0, ResourceTree())
"""The active tree before the first one is loaded."""
