"""The version of the resource tree that decides at present, with what is computed from it once and kept.

Rules
-----
One object per version, replaced whole. Version 0 is the empty tree before any was brought: all is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pilotage.effective import EffectiveQueue, effective_queues
from pilotage.folding import fold
from pilotage.parameters import ParameterDeclarations
from pilotage.pool_mapping import PoolMapper
from pilotage.resource_tree import QueueId, ResourceTree

_VIEWS_KEPT = 64
"""VOs whose view is remembered; beyond that the one that was made first is made again when it is asked for."""


class TreeInForce:
    """A tree version: its queues, as each VO sees them, and the mapper that finds the queues of pools."""

    __slots__ = ("_views", "mapper", "queues", "tree", "version")

    def __init__(self, version: int, tree: ResourceTree) -> None:
        self.version = version
        self.tree = tree
        self.queues: tuple[QueueId, ...] = tuple(tree.queue_ids())
        self.mapper = PoolMapper(tree)
        self._views: dict[str | None, Mapping[QueueId, EffectiveQueue]] = {None: _view(tree, None)}

    @property
    def declarations(self) -> ParameterDeclarations:
        """The types of the parameters, shipped and declared by the tree."""
        return self.tree.declarations

    def knows(self, queue: QueueId) -> bool:
        """Return whether the tree has the queue, enabled or not."""
        return queue in self._views[None]

    def effective(self, queue: QueueId, vo: str | None) -> EffectiveQueue | None:
        """Return a queue as `vo` sees it (None = as operators do); None = the tree does not have it."""
        return self.as_seen_by(vo).get(queue)

    def as_seen_by(self, vo: str | None) -> Mapping[QueueId, EffectiveQueue]:
        """Return all queues in the order of the tree, also those that are not enabled or do not admit `vo`."""
        key = None if vo is None else fold(vo)
        view = self._views.get(key)
        if view is None:
            view = _view(self.tree, vo)
            if len(self._views) >= _VIEWS_KEPT:
                oldest = next(name for name in list(self._views) if name is not None)
                self._views.pop(oldest, None)
            self._views[key] = view
        return view


def _view(tree: ResourceTree, vo: str | None) -> Mapping[QueueId, EffectiveQueue]:
    return MappingProxyType({queue.id: queue for queue in effective_queues(tree, vo)})


NO_TREE = TreeInForce(0, ResourceTree())
"""What is in force before any tree was brought."""
