"""Which queues satisfy a requirement, without looking at each: an index over what all of them offer.

Rules
-----
Ranks and labels are those of `pilotage.comparisons`. A ranked parameter is a threshold: the queues are kept by
their ranks, the best first, each entry with all that are better. Any other has the queues of each label.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Protocol

from pilotage.comparisons import RANKED, Label, Normal, Rank, labels_offered, rank_asked, rank_offered
from pilotage.job_description import Value
from pilotage.parameters import ParameterDeclaration, ParameterType
from pilotage.queue_sets import Bits


@dataclass(frozen=True, slots=True)
class Group:
    """The queues that offer one and the same value of a parameter; no two groups of it share a queue."""

    value: Value
    queues: Bits


class OfferIndex(Protocol):
    """The offers of one parameter under one declaration."""

    def satisfying(self, normal: Normal) -> Bits:
        """Return the queues whose offer satisfies what is asked, in its normal form."""


def offer_index(declaration: ParameterDeclaration, groups: Iterable[Group]) -> OfferIndex:
    """Return the index over what is offered of the declared parameter."""
    return _Ranked(declaration, groups) if declaration.type in RANKED else _Labelled(declaration, groups)


class _Ranked:
    """`_ranks` ascend; the queues at a rank or above it are those at its place in `_at_least`."""

    def __init__(self, declaration: ParameterDeclaration, groups: Iterable[Group]) -> None:
        self._declaration = declaration
        by_rank: dict[Rank, Bits] = {}
        for group in groups:
            rank = rank_offered(declaration, group.value)
            if rank is not None:
                by_rank[rank] = by_rank.get(rank, 0) | group.queues
        self._ranks = sorted(by_rank)
        self._at_least = [0] * (len(by_rank) + 1)
        for place in reversed(range(len(by_rank))):
            self._at_least[place] = self._at_least[place + 1] | by_rank[self._ranks[place]]

    def satisfying(self, normal: Normal) -> Bits:
        return self._at_least[bisect_left(self._ranks, rank_asked(self._declaration, normal))]


class _Labelled:
    def __init__(self, declaration: ParameterDeclaration, groups: Iterable[Group]) -> None:
        self._needs_all = declaration.type is ParameterType.TAGS
        self._by_label: dict[Label, Bits] = {}
        for group in groups:
            for label in labels_offered(declaration, group.value):
                self._by_label[label] = self._by_label.get(label, 0) | group.queues

    def satisfying(self, normal: Normal) -> Bits:
        assert isinstance(normal, tuple), "labels are asked as a tuple"
        return reduce(and_ if self._needs_all else or_, (self._by_label.get(label, 0) for label in normal))
