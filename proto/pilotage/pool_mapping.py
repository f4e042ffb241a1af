"""Which queues each submit pool can run on, for many pools at once.

Rules
-----
The decisions are those of `pilotage.eligibility`; what is added here is that equal offers are compared once
for all queues that make them. A set of queues is an int with one bit per queue, in the order of the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pilotage.comparisons import as_text, elements_of, why_not
from pilotage.effective import EffectiveQueue, effective_queues
from pilotage.eligibility import asked_tags
from pilotage.folding import fold
from pilotage.job_description import Value
from pilotage.requirements import PoolId, Requirement, Requirements
from pilotage.resource_tree import REQUIRED_TAGS, TAGS, VOS, QueueId, ResourceTree

Queues = int
"""A set of queues, one bit per queue."""

_REMEMBERED = 4096


class PoolMapper:
    """Finds the queues of pools in one version of the tree; kept as long as that version is in force."""

    def __init__(self, tree: ResourceTree) -> None:
        self._tree = tree
        self._own_views = tree.vos_with_overlays()
        self._views: dict[str | None, _View] = {}
        self._order = tuple(tree.queue_ids())

    def queues_of(self, requirements: Requirements) -> tuple[QueueId, ...]:
        """Return the queues that are eligible for a pool, in the order of the tree."""
        return self._listed(self._view(requirements.vo).eligible(requirements.vo, requirements.items))

    def queues_without_requirements(self, vo: str) -> tuple[QueueId, ...]:
        """Return the queues that jobs of `vo` without a Requirements section may go to."""
        return self._listed(self._view(vo).eligible(vo, ()))

    def _view(self, vo: str) -> _View:
        # A VO that no overlay names sees what everyone sees.
        key = fold(vo) if fold(vo) in self._own_views else None
        if key not in self._views:
            self._views[key] = _View(effective_queues(self._tree, vo if key else None))
        return self._views[key]

    def _listed(self, queues: Queues) -> tuple[QueueId, ...]:
        return tuple(self._order[position] for position in _positions(queues))


def map_pools(pools: Mapping[PoolId, Requirements], tree: ResourceTree) -> dict[PoolId, tuple[QueueId, ...]]:
    """Return for each pool the queues that it can run on, in the order of the tree."""
    mapper = PoolMapper(tree)
    return {pool: mapper.queues_of(requirements) for pool, requirements in pools.items()}


class _View:
    """What the VOs that see the same values are offered, with the queues grouped by what they offer."""

    def __init__(self, queues: tuple[EffectiveQueue, ...]) -> None:
        self._groups = _grouped(queues)
        self._satisfy = lru_cache(_REMEMBERED)(self._satisfy_anew)
        self._admitting: dict[str, Queues] = {}
        self._enabled = _where(queues, EffectiveQueue.is_enabled)
        self._all = (1 << len(queues)) - 1

    def eligible(self, vo: str, asked: tuple[Requirement, ...]) -> Queues:
        """Return the queues that admit `vo` and satisfy all that is asked."""
        queues = self._enabled & self._admit(fold(vo)) & self._take_tags(asked)
        for requirement in asked:
            if not queues:
                break
            queues &= self._satisfy(requirement)
        return queues

    def _satisfy_anew(self, requirement: Requirement) -> Queues:
        return sum(
            group.queues
            for group in self._groups.get(fold(requirement.name), ())
            if why_not(requirement.declaration, requirement.normal, group.value) is None
        )

    def _admit(self, vo: str) -> Queues:
        if vo not in self._admitting:
            shut = sum(
                group.queues
                for group in self._groups.get(fold(VOS), ())
                if elements_of(group.value) and vo not in map(as_text, elements_of(group.value))
            )
            self._admitting[vo] = self._all & ~shut
        return self._admitting[vo]

    def _take_tags(self, asked: tuple[Requirement, ...]) -> Queues:
        present = asked_tags(next((item for item in asked if fold(item.name) == fold(TAGS)), None))
        shut = sum(
            group.queues
            for group in self._groups.get(fold(REQUIRED_TAGS), ())
            if not present.issuperset(map(as_text, elements_of(group.value)))
        )
        return self._all & ~shut


@dataclass(frozen=True, slots=True)
class _Group:
    """The queues that offer one and the same value of a parameter; no two groups of it share a queue."""

    value: Value
    queues: Queues


def _grouped(queues: tuple[EffectiveQueue, ...]) -> dict[str, tuple[_Group, ...]]:
    # True == 1 == 1.0 in Python, but not to a flag and a capacity: the types belong to the key.
    members: dict[str, dict[object, _Group]] = {}
    for position, queue in enumerate(queues):
        for name, offered in queue.values.items():
            groups = members.setdefault(name, {})
            key = (offered.value, *map(type, elements_of(offered.value)), isinstance(offered.value, tuple))
            before = groups.get(key)
            groups[key] = _Group(offered.value, (before.queues if before else 0) | 1 << position)
    return {name: tuple(groups.values()) for name, groups in members.items()}


def _where(queues: tuple[EffectiveQueue, ...], holds: Callable[[EffectiveQueue], bool]) -> Queues:
    return sum(1 << position for position, queue in enumerate(queues) if holds(queue))


def _positions(queues: Queues) -> Iterator[int]:
    while queues:
        lowest = queues & -queues
        yield lowest.bit_length() - 1
        queues ^= lowest
