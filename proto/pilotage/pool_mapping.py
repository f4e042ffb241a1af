"""Which queues each submit pool can run on, for many pools at once.

Rules
-----
The decisions are those of `pilotage.eligibility`; what is added here is that each offer is read once for all
pools, into an index, and that what one pool asks is found there for all queues together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pilotage.comparisons import as_text, elements_of
from pilotage.effective import EffectiveQueue, effective_queues
from pilotage.eligibility import asked_tags
from pilotage.folding import fold
from pilotage.job_description import Value
from pilotage.offer_index import Group, OfferIndex, offer_index
from pilotage.pacing import Pace, at_once
from pilotage.parameters import ParameterType
from pilotage.queue_sets import Bits, QueueOrder, QueueSet
from pilotage.requirements import PoolId, Requirement, Requirements
from pilotage.resource_tree import REQUIRED_TAGS, TAGS, VOS, ResourceTree

_FOLDED_TAGS = fold(TAGS)

_MOST_REMEMBERED = 20_000
"""Of so many requirements it is remembered which queues satisfy them."""


class PoolMapper:
    """Finds the queues of pools in one version of the tree; kept as long as that version is in force.

    `order` numbers the queues, and may hold more than those of the tree; None = as the tree has them. `seen` are the
    queues as operators see them, where they are known already; what they offer is looked through at the `pace` given.
    """

    def __init__(
        self,
        tree: ResourceTree,
        order: QueueOrder | None = None,
        seen: Iterable[EffectiveQueue] | None = None,
        pace: Pace = at_once,
    ) -> None:
        self.order = order or QueueOrder(tree.queue_ids())
        self._tree = tree
        self._own_views = tree.vos_with_overlays()
        self._views: dict[str | None, _View] = {}
        if seen is not None:
            self._views[None] = _View(seen, self.order, pace)

    def queues_of(self, requirements: Requirements) -> QueueSet:
        """Return the queues that are eligible for a pool."""
        eligible = self._view(requirements.vo).eligible(requirements.vo, requirements.items)
        return QueueSet(self.order, eligible)

    def queues_without_requirements(self, vo: str) -> QueueSet:
        """Return the queues that jobs of `vo` without a Requirements section may go to."""
        return QueueSet(self.order, self._view(vo).eligible(vo, ()))

    def _view(self, vo: str) -> _View:
        # A VO that no overlay names sees what everyone sees.
        key = fold(vo) if fold(vo) in self._own_views else None
        if key not in self._views:
            self._views[key] = _View(effective_queues(self._tree, vo if key else None), self.order)
        return self._views[key]


def map_pools(pools: Mapping[PoolId, Requirements], tree: ResourceTree) -> dict[PoolId, QueueSet]:
    """Return for each pool the queues that it can run on."""
    mapper = PoolMapper(tree)
    return {pool: mapper.queues_of(requirements) for pool, requirements in pools.items()}


class _View:
    """What the VOs that see the same values are offered, with the queues grouped by what they offer."""

    def __init__(self, queues: Iterable[EffectiveQueue], order: QueueOrder, pace: Pace = at_once) -> None:
        self._groups = _grouped(pace(queues), order)
        self._indexes: dict[tuple[str, ParameterType, str | None], OfferIndex] = {}
        self._admitting: dict[str, Bits] = {}
        required = (elements_of(group.value) for group in self._groups.get(fold(REQUIRED_TAGS), ()))
        self._required = frozenset(as_text(tag) for tags in required for tag in tags)
        self._satisfying: dict[object, Bits] = {}
        self._taking: dict[frozenset[str], Bits] = {}
        self._all = order.of(queue.id for queue in pace(queues)).bits
        self._enabled = order.of(queue.id for queue in pace(queues) if queue.is_enabled()).bits

    def eligible(self, vo: str, asked: tuple[Requirement, ...]) -> Bits:
        """Return the queues that admit `vo` and satisfy all that is asked."""
        queues = self._enabled & self._admit(fold(vo)) & self._take_tags(asked)
        for requirement in asked:
            if not queues:
                break
            queues &= self._satisfy(requirement)
        return queues

    def _satisfy(self, requirement: Requirement) -> Bits:
        """Return the queues that satisfy one requirement; many pools share it."""
        declaration = requirement.declaration
        key = (requirement.name, declaration.type, declaration.unit, requirement.normal)
        found = self._satisfying.get(key)
        if found is None:
            if len(self._satisfying) >= _MOST_REMEMBERED:
                self._satisfying.clear()
            found = self._satisfying[key] = self._index(requirement).satisfying(requirement.normal)
        return found

    def _index(self, requirement: Requirement) -> OfferIndex:
        declaration = requirement.declaration
        key = (fold(requirement.name), declaration.type, declaration.unit)
        index = self._indexes.get(key)
        if index is None:
            index = self._indexes[key] = offer_index(declaration, self._groups.get(key[0], ()))
        return index

    def _admit(self, vo: str) -> Bits:
        if vo not in self._admitting:
            self._admitting[vo] = self._all_but(
                VOS, lambda value: bool(elements_of(value)) and vo not in map(as_text, elements_of(value))
            )
        return self._admitting[vo]

    def _take_tags(self, asked: tuple[Requirement, ...]) -> Bits:
        if not self._required:
            return self._all
        # Only tags that some queue requires tell the answers apart, so that few are remembered.
        tags = next((item for item in asked if fold(item.name) == _FOLDED_TAGS), None)
        present = asked_tags(tags) & self._required
        if present not in self._taking:
            self._taking[present] = self._all_but(
                REQUIRED_TAGS, lambda value: not present.issuperset(map(as_text, elements_of(value)))
            )
        return self._taking[present]

    def _all_but(self, name: str, shuts: Callable[[Value], bool]) -> Bits:
        """Return the queues whose value of `name` does not shut them."""
        shut = 0
        for group in self._groups.get(fold(name), ()):
            shut |= group.queues if shuts(group.value) else 0
        return self._all & ~shut


def _grouped(queues: Iterable[EffectiveQueue], order: QueueOrder) -> dict[str, tuple[Group, ...]]:
    members: dict[str, dict[object, tuple[Value, list[int]]]] = {}
    for queue in queues:
        number = order.number(queue.id)
        assert number is not None, "the order holds all queues of the tree"
        for name, offered in queue.values.items():
            groups = members.setdefault(name, {})
            groups.setdefault(_kind(offered.value), (offered.value, []))[1].append(number)
    return {
        name: tuple(Group(value, _bits(numbers)) for value, numbers in groups.values())
        for name, groups in members.items()
    }


def _kind(value: Value) -> object:
    # True == 1 == 1.0 in Python, but not to a flag and a capacity: the types belong to the key.
    return (value, *map(type, value)) if isinstance(value, tuple) else (type(value), value)


def _bits(numbers: Iterable[int]) -> Bits:
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits
