"""The graph of a workflow: its steps, and which of them wait for which.

Rules
-----
Descriptions in a row are one step if they have the same parents and the same children, and are of one cluster; so are
more than MANY_ALIKE clusters in a row. So an array is one step, and a wide fan-out too. A step never waits for itself.
A graph that is too large for people is not kept: then nothing of it is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage.values.selections import JobSelection
from pilotage_server.core.jobs.descriptions import DescriptionGroup

MAX_STEPS = 400
MAX_EDGES = 1_000
"""The most steps, with parents outside, and edges of a graph that is kept: at most some 15 kB in the database."""

_MOST_GROUPS = len(DependencyKind) * MAX_STEPS
"""Descriptions with different parents of one kind are different steps, so more groups need too many steps."""

MANY_ALIKE = 20
"""More clusters in a row that differ in no edge are one step."""

_Range = tuple[int, int]
"""The first and the last index of descriptions."""


class StepEdge(NamedTuple):
    """A step waits for another one; both are places in `WorkflowGraph.all_jobs`."""

    kind: DependencyKind
    parent: int
    child: int


@dataclass(frozen=True, slots=True)
class WorkflowGraph:
    """The jobs of each step by their distances to the first job of the workflow, and the edges between steps.

    `outside` = ids of jobs of other submissions that steps wait for; as parents they have the places behind the steps.
    """

    steps: tuple[range, ...]
    edges: tuple[StepEdge, ...] = ()
    outside: tuple[range, ...] = ()

    def all_jobs(self, workflow: int) -> list[range]:
        """Return the ids of the jobs of all steps, then of those outside, of the workflow with this id."""
        return [range(workflow + each.start, workflow + each.stop) for each in self.steps] + list(self.outside)


class _Shape(NamedTuple):
    """The jobs of each description, and whether it begins a cluster."""

    counts: Sequence[int]
    begins: Sequence[bool]


def graph_of(
    descriptions: Iterable[DescriptionGroup],
    dependencies: Iterable[Dependency],
    parents: Mapping[JobSelection, range],
) -> WorkflowGraph | None:
    """Return the graph of a submission, None = it is too large; `parents` = the ids of its existing parents."""
    shape = _shape(descriptions)
    inner, outer = _children_by_parents(dependencies, parents)
    if max(len(inner), len(outer)) > _MOST_GROUPS:
        return None
    cuts = {0, len(shape.counts)}
    for _, ranges in inner:
        cuts.update(_ends(ranges))
    for children in (*inner.values(), *outer.values()):
        cuts.update(_ends(_runs(children)))
    starts = list(_starts(shape, sorted(cuts)))
    outside = list(dict.fromkeys(ids for _, ids in outer))
    if len(starts) + len(outside) > MAX_STEPS:
        return None
    places = {ids: [place] for place, ids in enumerate(outside, len(starts))}
    groups = [
        *((kind, _steps_of(starts, ranges), children) for (kind, ranges), children in inner.items()),
        *((kind, places[ids], children) for (kind, ids), children in outer.items()),
    ]
    edges: list[StepEdge] = []
    for kind, parent_steps, children in groups:
        child_steps = _steps_of(starts, _runs(children))
        if len(edges) + len(parent_steps) * len(child_steps) > MAX_EDGES:
            return None
        edges += (StepEdge(kind, parent, child) for child in child_steps for parent in parent_steps)
    return WorkflowGraph(_jobs_of(shape.counts, starts), tuple(edges), tuple(outside))


def _children_by_parents(
    dependencies: Iterable[Dependency], parents: Mapping[JobSelection, range]
) -> tuple[dict[tuple[DependencyKind, tuple[_Range, ...]], list[int]], dict[tuple[DependencyKind, range], list[int]]]:
    """Return the descriptions that wait for the same descriptions, and those that wait for the same jobs outside.

    Once there are more groups than a graph may have, the others are left out.
    """
    inner: dict[tuple[DependencyKind, tuple[_Range, ...]], list[int]] = {}
    outer: dict[tuple[DependencyKind, range], list[int]] = {}
    for (child, kind), same in _by_child(dependencies).items():
        ranges = [(index, index) for each in same for index in each.descriptions]
        if own := _joined([*ranges, *(pair for each in same for pair in each.ranges)]):
            inner.setdefault((kind, own), []).append(child)
        for ids in dict.fromkeys(parents[name] for each in same for name in each.parents):
            outer.setdefault((kind, ids), []).append(child)
        if max(len(inner), len(outer)) > _MOST_GROUPS:
            break
    return inner, outer


def _shape(descriptions: Iterable[DescriptionGroup]) -> _Shape:
    rows = sorted(
        (overrides.submission_index, each.model.count or 1, not overrides.continues_cluster)
        for each in descriptions
        for overrides in each.overrides
    )
    return _Shape([count for _, count, _ in rows], [begins for _, _, begins in rows])


def _by_child(dependencies: Iterable[Dependency]) -> dict[tuple[int, DependencyKind], list[Dependency]]:
    found: dict[tuple[int, DependencyKind], list[Dependency]] = {}
    for each in dependencies:
        found.setdefault((each.description, each.kind), []).append(each)
    return found


def _joined(ranges: list[_Range]) -> tuple[_Range, ...]:
    """Return ranges in order, with neighbours and overlapping ones joined."""
    joined: list[_Range] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def _runs(indexes: Iterable[int]) -> tuple[_Range, ...]:
    return _joined([(index, index) for index in indexes])


def _ends(ranges: Iterable[_Range]) -> Iterator[int]:
    for first, last in ranges:
        yield from (first, last + 1)


def _starts(shape: _Shape, cuts: Sequence[int]) -> Iterator[int]:
    """Yield the first description of each step, given where edges differ."""
    for start, stop in pairwise(cuts):
        clusters = [index for index in range(start + 1, stop) if shape.begins[index]]
        yield start
        if len(clusters) < MANY_ALIKE:
            yield from clusters


def _steps_of(starts: Sequence[int], ranges: Iterable[_Range]) -> list[int]:
    """Return the steps whose descriptions are in the ranges, which cut no step."""
    return [step for first, last in ranges for step in range(bisect_left(starts, first), bisect_right(starts, last))]


def _jobs_of(counts: Sequence[int], starts: Sequence[int]) -> tuple[range, ...]:
    """Return the jobs of each step by their distances to the first job."""
    ranges: list[range] = []
    end = 0
    for start, stop in pairwise([*starts, len(counts)]):
        jobs = sum(counts[start:stop])
        ranges.append(range(end, end + jobs))
        end += jobs
    return tuple(ranges)
