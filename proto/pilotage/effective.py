"""What a queue offers in effect: inherited along its path, as one VO sees it, with the origin of each value.

Rules
-----
Nearest wins; at each level the VO's overlay goes first. A parameter that is declared `inherit: unite` gathers
what all levels say, the outermost first. The access list is the nearest that is not empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pilotage.comparisons import as_text, elements_of
from pilotage.folding import fold, folded_set
from pilotage.job_description import Scalar, Value
from pilotage.resource_tree import (
    ENABLED,
    PLATFORM,
    VOS,
    Level,
    Origin,
    Parameters,
    QueueId,
    ResourceTree,
    Statement,
)
from pilotage.resources import Amount, NotAnAmount, amount_of


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """A value that holds for a queue, spelled as its nearest origin spells it.

    `origins` has one place, or several when the value was united, the outermost first.
    """

    name: str
    value: Value
    origins: tuple[Origin, ...]


Offer = Mapping[str, EffectiveValue]
"""Effective values by folded name."""


@dataclass(frozen=True, slots=True)
class EffectiveQueue:
    """A queue with all that holds for it, as `vo` sees it (None = as its operators do, without overlays)."""

    id: QueueId
    vo: str | None
    values: Offer
    tree: ResourceTree = field(repr=False, compare=False)

    def get(self, name: str) -> EffectiveValue | None:
        """Return the value of `name`; None = no level states it."""
        return self.values.get(fold(name))

    def parameters(self) -> dict[str, Value]:
        """Return the values by name, as they were written."""
        return {effective.name: effective.value for effective in self.values.values()}

    def is_enabled(self) -> bool:
        """Return whether the queue takes jobs at all."""
        enabled = self.get(ENABLED)
        return enabled is None or enabled.value is not False

    def admits(self) -> bool:
        """Return whether the queue exists for its `vo`; an access list that is absent or empty is open."""
        access = self.get(VOS)
        if self.vo is None or access is None or not elements_of(access.value):
            return True
        return fold(self.vo) in {as_text(vo) for vo in elements_of(access.value)}

    def runs_platforms(self) -> frozenset[str] | None:
        """Return the folded platforms whose jobs the queue runs; None = it states none and runs them all."""
        stated = self.get(PLATFORM)
        own = folded_set(as_text(element) for element in elements_of(stated.value)) if stated else frozenset()
        return own.union(*(self.tree.platforms.get(platform, frozenset()) for platform in own)) or None

    def stated_amount(self, name: str) -> Amount | None:
        """Return the amount that the queue states, in the base unit; None = it states no number."""
        stated = self.get(name)
        declaration = self.tree.declarations.get(name)
        amounts = [
            amount_of(element, declaration.unit if declaration else None)
            for element in (elements_of(stated.value) if stated else ())
        ]
        return max((amount for amount in amounts if not isinstance(amount, NotAnAmount)), default=None)


@dataclass(frozen=True, slots=True)
class EffectiveCE:
    """A computing element with all that holds for it, and its queues."""

    site: str
    name: str
    values: Offer
    queues: tuple[EffectiveQueue, ...]


def effective_ces(tree: ResourceTree, vo: str | None) -> Iterator[EffectiveCE]:
    """Return the computing elements in the order of the tree, with what holds for `vo`."""
    view = _View(vo, tree.declarations.united())
    defaults = view.descend({}, tree.defaults, Level.DEFAULTS)
    for site in tree.sites:
        at_site = view.descend(defaults, site.states, Level.SITE)
        for ce in site.ces:
            at_ce = view.descend(at_site, ce.states, Level.CE)
            queues: list[EffectiveQueue] = []
            for queue in ce.queues:
                values = view.descend(at_ce, queue.states, Level.QUEUE)
                queues.append(EffectiveQueue(QueueId(site.name, ce.name, queue.name), vo, values, tree))
            yield EffectiveCE(site.name, ce.name, at_ce, tuple(queues))


def effective_queues(tree: ResourceTree, vo: str | None) -> tuple[EffectiveQueue, ...]:
    """Return all queues in the order of the tree, also those that are disabled or do not admit `vo`."""
    return tuple(queue for ce in effective_ces(tree, vo) for queue in ce.queues)


@dataclass(frozen=True, slots=True)
class _View:
    """How one VO sees the tree; `united` are the folded names of the parameters that are united."""

    vo: str | None
    united: frozenset[str]

    def descend(self, inherited: Offer, states: Statement, level: Level) -> Offer:
        """Return what holds at a level that inherits `inherited` and states `states`."""
        values = dict(inherited)
        self._lay_over(values, states.parameters, Origin(level))
        overlay = states.for_vo.get(fold(self.vo)) if self.vo is not None else None
        if overlay is not None:
            self._lay_over(values, overlay.parameters, Origin(level, overlay.vo))
        return MappingProxyType(values)

    def _lay_over(self, values: dict[str, EffectiveValue], stated: Parameters, origin: Origin) -> None:
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
