"""Maps submit pools to eligible queues, for many pools at once.

The decisions are those of `pilotage.resources.eligibility`. Here each offer is read once for all pools, into an
index, which answers a requirement for all queues together. Sort keys and labels are those of
`pilotage.resources.comparisons`.

A set of queues is an integer with one bit per queue. The number of a queue is its position in a `QueueOrder`; sets
of one order are combined in single operations. Between orders a set behaves as a set of queue ids.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_, or_
from typing import Protocol

from pilotage.job_description import Value
from pilotage.pacing import Pace, at_once
from pilotage.resources.comparisons import (
    ORDERED,
    Label,
    NormalForm,
    SortKey,
    as_text,
    elements_of,
    offered_key,
    offered_labels,
    required_key,
)
from pilotage.resources.eligibility import SIZES, asked_tags
from pilotage.resources.inheritance import EffectiveQueue, effective_queues, largest_amount
from pilotage.resources.parameters import ParameterDeclaration, ParameterDeclarations, ParameterType
from pilotage.resources.requirements import PoolId, Requirement, Requirements
from pilotage.resources.tree import REQUIRED_TAGS, TAGS, VOS, QueueId, ResourceTree
from pilotage.text import fold
from pilotage.units import Amount

Bits = int
"""A set of queues: bit n stands for queue n of an order."""


class QueueOrder:
    """Queues with their numbers, from 0."""

    __slots__ = ("_by_site", "_numbers", "queues")

    def __init__(self, queues: Iterable[QueueId] = ()) -> None:
        self.queues = tuple(queues)
        self._numbers = {queue: number for number, queue in enumerate(self.queues)}
        self._by_site: Mapping[str, Bits] | None = None

    def number(self, queue: object) -> int | None:
        """Return the number of a queue; None = it is not in this order."""
        return self._numbers.get(queue)  # type: ignore[call-overload, no-any-return]

    def by_site(self) -> Mapping[str, Bits]:
        """Return the queues of each site, the sites in the order of their first queues."""
        if self._by_site is None:
            found: dict[str, Bits] = {}
            for number, queue in enumerate(self.queues):
                found[queue.site] = found.get(queue.site, 0) | 1 << number
            self._by_site = found
        return self._by_site

    def queue_set(self, queues: Iterable[QueueId]) -> QueueSet:
        """Return the set of those of `queues` that are in this order."""
        bits = 0
        for queue in queues:
            number = self._numbers.get(queue)
            bits |= 0 if number is None else 1 << number
        return QueueSet(self, bits)

    def extended(self, queues: Iterable[QueueId]) -> QueueOrder:
        """Return this order with the missing ones of `queues` appended; present queues keep their numbers."""
        return QueueOrder((*self.queues, *(queue for queue in queues if queue not in self._numbers)))

    def extends(self, other: QueueOrder) -> bool:
        """Return whether all queues of `other` have the same numbers here."""
        return self.queues[: len(other.queues)] == other.queues


class QueueSet(Set[QueueId]):
    """A set of queues that are in `order`."""

    __slots__ = ("_octets", "bits", "order")

    def __init__(self, order: QueueOrder, bits: Bits) -> None:
        self.order = order
        self.bits = bits
        self._octets: bytes | None = None

    def __contains__(self, queue: object) -> bool:
        number = self.order.number(queue)
        return number is not None and bool(self.octets()[number >> 3] >> (number & 7) & 1)

    def __iter__(self) -> Iterator[QueueId]:
        queues = self.order.queues
        for place, octet in enumerate(self.octets()):
            rest = octet
            while rest:
                lowest = rest & -rest
                yield queues[8 * place + lowest.bit_length() - 1]
                rest ^= lowest

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __bool__(self) -> bool:
        return self.bits != 0

    def is_same(self, other: QueueSet) -> bool:
        """Return whether both have the same order and bits; fast, unlike `==`, which may list the queues."""
        return self.order is other.order and self.bits == other.bits

    def in_order(self, order: QueueOrder) -> QueueSet:
        """Return the same queues as a set in `order`, which extends this set's order."""
        return self if self.order is order else QueueSet(order, self.bits)

    def sites(self) -> Iterator[str]:
        """Yield the sites of the queues; faster than by the queues."""
        return (site for site, queues in self.order.by_site().items() if queues & self.bits)

    def octets(self) -> bytes:
        """Return the bits as bytes, the lowest first, as many as the order needs.

        The bytes are cached: reading one bit of them is faster than of a long integer.
        """
        if self._octets is None:
            self._octets = self.bits.to_bytes((len(self.order.queues) + 7) // 8, "little")
        return self._octets

    def __sub__(self, other: Set[QueueId]) -> QueueSet:
        if not self.bits:
            return self
        away = other if isinstance(other, QueueSet) and other.order is self.order else self.order.queue_set(other)
        return QueueSet(self.order, self.bits & ~away.bits)

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, QueueSet) and self.is_same(other)) or super().__eq__(other)

    def __hash__(self) -> int:
        return self._hash()

    def __repr__(self) -> str:
        return f"QueueSet({', '.join(map(str, self))})"

    @classmethod
    def _from_iterable(cls, queues: Iterable[QueueId]) -> frozenset[QueueId]:  # type: ignore[override]
        return frozenset(queues)


NO_QUEUES = QueueSet(QueueOrder(), 0)


@dataclass(frozen=True, slots=True)
class OfferGroup:
    """The queues that offer equal values of a parameter; groups of one parameter are disjoint."""

    value: Value
    queues: Bits


class OfferIndex(Protocol):
    """An index of the offers of one parameter under one declaration."""

    def satisfying(self, normal: NormalForm) -> Bits:
        """Return the queues whose offer satisfies a requirement, given in normal form."""


def offer_index(declaration: ParameterDeclaration, groups: Iterable[OfferGroup]) -> OfferIndex:
    """Return the index of the offers of the declared parameter."""
    return _OrderedIndex(declaration, groups) if declaration.type in ORDERED else _LabelIndex(declaration, groups)


class _OrderedIndex:
    """`_at_least[i]` are the queues with the sort key `_keys[i]` or a higher one."""

    def __init__(self, declaration: ParameterDeclaration, groups: Iterable[OfferGroup]) -> None:
        self._declaration = declaration
        by_key: dict[SortKey, Bits] = {}
        for group in groups:
            key = offered_key(declaration, group.value)
            if key is not None:
                by_key[key] = by_key.get(key, 0) | group.queues
        self._keys = sorted(by_key)
        self._at_least = [0] * (len(by_key) + 1)
        for place in reversed(range(len(by_key))):
            self._at_least[place] = self._at_least[place + 1] | by_key[self._keys[place]]

    def satisfying(self, normal: NormalForm) -> Bits:
        return self._at_least[bisect_left(self._keys, required_key(self._declaration, normal))]


class _LabelIndex:
    def __init__(self, declaration: ParameterDeclaration, groups: Iterable[OfferGroup]) -> None:
        self._needs_all = declaration.type is ParameterType.TAGS
        self._by_label: dict[Label, Bits] = {}
        for group in groups:
            for label in offered_labels(declaration, group.value):
                self._by_label[label] = self._by_label.get(label, 0) | group.queues

    def satisfying(self, normal: NormalForm) -> Bits:
        assert isinstance(normal, tuple), "labels are asked as a tuple"
        return reduce(and_ if self._needs_all else or_, (self._by_label.get(label, 0) for label in normal))


_FOLDED_TAGS = fold(TAGS)

_MAX_CACHED = 20_000
"""The number of requirements whose satisfying queues are cached."""


class PoolMapper:
    """Finds the queues of pools in one version of the tree; used while that version is active.

    `order` numbers the queues, and may have more than the tree; None = the order of the tree. `operator_view` are the
    queues as operators see them, None = computed when needed. They are indexed at the given `pace`.
    """

    def __init__(
        self,
        tree: ResourceTree,
        order: QueueOrder | None = None,
        operator_view: Iterable[EffectiveQueue] | None = None,
        pace: Pace = at_once,
    ) -> None:
        self.order = order or QueueOrder(tree.queue_ids())
        self._tree = tree
        self._vos_with_overlays = tree.vos_with_overlays()
        self._views: dict[str | None, _View] = {}
        if operator_view is not None:
            self._views[None] = _View(operator_view, self.order, pace)

    def queues_of(self, requirements: Requirements) -> QueueSet:
        """Return the queues that are eligible for a pool."""
        eligible = self._view(requirements.vo).eligible(requirements.vo, requirements.items)
        return QueueSet(self.order, eligible)

    def queues_without_requirements(self, vo: str) -> QueueSet:
        """Return the queues for jobs of `vo` without a Requirements section."""
        return QueueSet(self.order, self._view(vo).eligible(vo, ()))

    def stated_names(self, vo: str) -> Collection[str]:
        """Return the names of the parameters that queues state, as `vo` sees them."""
        return self._view(vo).names.values()

    @cached_property
    def site_names(self) -> Mapping[str, str]:
        """The names of all sites by their folded form."""
        return {fold(site.name): site.name for site in self._tree.sites}

    def largest_sizes(self, vo: str) -> Mapping[str, Amount]:
        """Return the largest amounts of those sizes that all queues of `vo` state."""
        return self._view(vo).largest_sizes(vo, self._tree.declarations)

    def _view(self, vo: str) -> _View:
        # All VOs without an overlay share one view.
        key = fold(vo) if fold(vo) in self._vos_with_overlays else None
        if key not in self._views:
            self._views[key] = _View(effective_queues(self._tree, vo if key else None), self.order)
        return self._views[key]


def map_pools(pools: Mapping[PoolId, Requirements], tree: ResourceTree) -> dict[PoolId, QueueSet]:
    """Return the eligible queues of each pool."""
    mapper = PoolMapper(tree)
    return {pool: mapper.queues_of(requirements) for pool, requirements in pools.items()}


class _View:
    """The offers to the VOs that see the same values, with the queues grouped by offer."""

    def __init__(self, queues: Iterable[EffectiveQueue], order: QueueOrder, pace: Pace = at_once) -> None:
        self.names: dict[str, str] = {}
        self._groups = _grouped(pace(queues), order, self.names)
        self._largest: dict[str, Mapping[str, Amount]] = {}
        self._indexes: dict[tuple[str, ParameterType, str | None], OfferIndex] = {}
        self._by_vo: dict[str, Bits] = {}
        required = (elements_of(group.value) for group in self._groups.get(fold(REQUIRED_TAGS), ()))
        self._required = frozenset(as_text(tag) for tags in required for tag in tags)
        self._by_requirement: dict[object, Bits] = {}
        self._by_tags: dict[frozenset[str], Bits] = {}
        self._all = order.queue_set(queue.id for queue in pace(queues)).bits
        self._enabled = order.queue_set(queue.id for queue in pace(queues) if queue.is_enabled()).bits

    def eligible(self, vo: str, asked: tuple[Requirement, ...]) -> Bits:
        """Return the queues that admit `vo` and satisfy all requirements."""
        queues = self._enabled & self._admitting_queues(fold(vo)) & self._accepting_queues(asked)
        for requirement in asked:
            if not queues:
                break
            queues &= self._satisfying_queues(requirement)
        return queues

    def largest_sizes(self, vo: str, declarations: ParameterDeclarations) -> Mapping[str, Amount]:
        """Return the largest amounts of those sizes that all open queues state; cached, as every job may ask."""
        if vo not in self._largest:
            largest: dict[str, Amount] = {}
            queues = self._enabled & self._admitting_queues(fold(vo))
            for name in SIZES:
                groups = [group for group in self._groups.get(fold(name), ()) if group.queues & queues]
                amounts = [largest_amount(group.value, declarations.get(name)) for group in groups]
                stating = reduce(or_, (group.queues for group in groups), 0)
                numbers = [amount for amount in amounts if amount is not None]
                if queues and not queues & ~stating and len(numbers) == len(amounts):
                    largest[name] = max(numbers)
            self._largest[vo] = largest
        return self._largest[vo]

    def _satisfying_queues(self, requirement: Requirement) -> Bits:
        """Return the queues that satisfy one requirement; cached, as many pools share requirements."""
        declaration = requirement.declaration
        key = (requirement.name, declaration.type, declaration.unit, requirement.normal)
        found = self._by_requirement.get(key)
        if found is None:
            if len(self._by_requirement) >= _MAX_CACHED:
                self._by_requirement.clear()
            found = self._by_requirement[key] = self._index(requirement).satisfying(requirement.normal)
        return found

    def _index(self, requirement: Requirement) -> OfferIndex:
        declaration = requirement.declaration
        key = (fold(requirement.name), declaration.type, declaration.unit)
        index = self._indexes.get(key)
        if index is None:
            index = self._indexes[key] = offer_index(declaration, self._groups.get(key[0], ()))
        return index

    def _admitting_queues(self, vo: str) -> Bits:
        if vo not in self._by_vo:
            self._by_vo[vo] = self._except_refused(
                VOS, lambda value: bool(elements_of(value)) and vo not in map(as_text, elements_of(value))
            )
        return self._by_vo[vo]

    def _accepting_queues(self, asked: tuple[Requirement, ...]) -> Bits:
        if not self._required:
            return self._all
        # Only tags that some queue requires change the result, so the cache stays small.
        tags = next((item for item in asked if fold(item.name) == _FOLDED_TAGS), None)
        present = asked_tags(tags) & self._required
        if present not in self._by_tags:
            self._by_tags[present] = self._except_refused(
                REQUIRED_TAGS, lambda value: not present.issuperset(map(as_text, elements_of(value)))
            )
        return self._by_tags[present]

    def _except_refused(self, name: str, refuses: Callable[[Value], bool]) -> Bits:
        """Return the queues whose value of `name` does not shut them."""
        shut = 0
        for group in self._groups.get(fold(name), ()):
            shut |= group.queues if refuses(group.value) else 0
        return self._all & ~shut


def _grouped(
    queues: Iterable[EffectiveQueue], order: QueueOrder, names: dict[str, str]
) -> dict[str, tuple[OfferGroup, ...]]:
    """Return the values by folded name, with their queues; one spelling of each name is added to `names`."""
    members: dict[str, dict[object, tuple[Value, list[int]]]] = {}
    for queue in queues:
        number = order.number(queue.id)
        assert number is not None, "the order holds all queues of the tree"
        for name, offered in queue.values.items():
            if name not in members:
                names[name] = offered.name
            groups = members.setdefault(name, {})
            groups.setdefault(_type_key(offered.value), (offered.value, []))[1].append(number)
    return {
        name: tuple(OfferGroup(value, _bits(numbers)) for value, numbers in groups.values())
        for name, groups in members.items()
    }


def _type_key(value: Value) -> object:
    # True == 1 == 1.0 in Python, but a flag differs from a capacity: the key includes the types.
    return (value, *map(type, value)) if isinstance(value, tuple) else (type(value), value)


def _bits(numbers: Iterable[int]) -> Bits:
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits
