"""The effective values of queues: inherited along the path, as one VO sees them, with their origins.

Rules
-----
The nearest level wins; within a level the VO's overlay comes first. A parameter declared with `inherit: unite`
collects the values of all levels, the outermost first. The access list is the nearest one that is not empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pilotage.job_description import Scalar, Value
from pilotage.resources.comparisons import as_text, elements_of
from pilotage.resources.parameters import ParameterDeclaration
from pilotage.resources.tree import (
    ENABLED,
    PLATFORM,
    VOS,
    Level,
    Origin,
    Parameters,
    QueueId,
    ResourceTree,
    StatedParameters,
)
from pilotage.text import fold, folded_set
from pilotage.units import Amount, NotAnAmount, amount_of


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """An effective value, spelled as by its nearest origin.

    `origins` has one entry, or several for a united value, the outermost first.
    """

    name: str
    value: Value
    origins: tuple[Origin, ...]


Offer = Mapping[str, EffectiveValue]
"""Effective values by folded name."""


@dataclass(frozen=True, slots=True)
class EffectiveQueue:
    """A queue with its effective values, as `vo` sees it (None = the operators' view, without overlays)."""

    id: QueueId
    vo: str | None
    values: Offer
    tree: ResourceTree = field(repr=False, compare=False)

    def get(self, name: str) -> EffectiveValue | None:
        """Return the effective value of `name`; None = no level states it."""
        return self.values.get(fold(name))

    def parameters(self) -> dict[str, Value]:
        """Return the values by name, as written."""
        return {effective.name: effective.value for effective in self.values.values()}

    def is_enabled(self) -> bool:
        """Return whether the queue takes any jobs."""
        enabled = self.get(ENABLED)
        return enabled is None or enabled.value is not False

    def admits(self) -> bool:
        """Return whether `vo` may use the queue; a missing or empty access list admits every VO."""
        access = self.get(VOS)
        if self.vo is None or access is None or not elements_of(access.value):
            return True
        return fold(self.vo) in {as_text(vo) for vo in elements_of(access.value)}

    def runs_platforms(self) -> frozenset[str] | None:
        """Return the folded platforms whose jobs the queue runs; None = it states none and runs all."""
        stated = self.get(PLATFORM)
        own = folded_set(as_text(element) for element in elements_of(stated.value)) if stated else frozenset()
        return own.union(*(self.tree.platforms.get(platform, frozenset()) for platform in own)) or None

    def stated_amount(self, name: str) -> Amount | None:
        """Return the amount that the queue states, in the base unit; None = no number is stated."""
        stated = self.get(name)
        return largest_amount(stated.value, self.tree.declarations.get(name)) if stated else None


def largest_amount(value: Value, declaration: ParameterDeclaration | None) -> Amount | None:
    """Return the largest amount of a stated value, in the base unit; None = no element is a number."""
    unit = declaration.unit if declaration else None
    amounts = (amount_of(element, unit) for element in elements_of(value))
    return max((amount for amount in amounts if not isinstance(amount, NotAnAmount)), default=None)


@dataclass(frozen=True, slots=True)
class EffectiveCE:
    """A computing element with its effective values and its queues."""

    site: str
    name: str
    values: Offer
    queues: tuple[EffectiveQueue, ...]


def effective_ces(tree: ResourceTree, vo: str | None) -> Iterator[EffectiveCE]:
    """Yield the computing elements in the order of the tree, with their effective values for `vo`."""
    view = _View(vo, tree.declarations.united())
    defaults = view.values_at({}, tree.defaults, Level.DEFAULTS)
    for site in tree.sites:
        at_site = view.values_at(defaults, site.stated, Level.SITE)
        for ce in site.ces:
            at_ce = view.values_at(at_site, ce.stated, Level.CE)
            queues: list[EffectiveQueue] = []
            for queue in ce.queues:
                values = view.values_at(at_ce, queue.stated, Level.QUEUE)
                queues.append(EffectiveQueue(QueueId(site.name, ce.name, queue.name), vo, values, tree))
            yield EffectiveCE(site.name, ce.name, at_ce, tuple(queues))


def effective_queues(tree: ResourceTree, vo: str | None) -> tuple[EffectiveQueue, ...]:
    """Return all queues in the order of the tree, including those that are disabled or do not admit `vo`."""
    return tuple(queue for ce in effective_ces(tree, vo) for queue in ce.queues)


@dataclass(frozen=True, slots=True)
class _View:
    """The view of one VO; `united` are the folded names of the parameters that are united."""

    vo: str | None
    united: frozenset[str]

    def values_at(self, inherited: Offer, stated: StatedParameters, level: Level) -> Offer:
        """Return the effective values of a level that inherits `inherited` and states `stated`."""
        values = dict(inherited)
        self._overlay(values, stated.parameters, Origin(level))
        overlay = stated.for_vo.get(fold(self.vo)) if self.vo is not None else None
        if overlay is not None:
            self._overlay(values, overlay.parameters, Origin(level, overlay.vo))
        return MappingProxyType(values)

    def _overlay(self, values: dict[str, EffectiveValue], stated: Parameters, origin: Origin) -> None:
        for name, value in stated.items():
            folded = fold(name)
            before = values.get(folded)
            if before is not None and folded in self.united:
                values[folded] = _united(before, name, value, origin)
            elif before is None or value != () or folded != _FOLDED_VOS:
                values[folded] = EffectiveValue(name, value, (origin,))


_FOLDED_VOS = fold(VOS)


def _united(before: EffectiveValue, name: str, value: Value, origin: Origin) -> EffectiveValue:
    if not elements_of(value):
        return before
    elements: dict[str, Scalar] = {}
    for element in (*elements_of(before.value), *elements_of(value)):
        elements.setdefault(as_text(element), element)
    return EffectiveValue(name, tuple(elements.values()), (*before.origins, origin))
