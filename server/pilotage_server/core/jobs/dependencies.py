"""Dependencies between jobs: checks of a submission, when a parent satisfies its children, and texts for people.

Rules
-----
A dependency is met or unmet, by the present state of its parents; a cluster meets it when all its jobs do. A met
dependency is removed: a parent that is rescheduled later does not block its children again. A parent that does not end
as DONE leaves `after_ok` unmet. Its children stay blocked until it is rescheduled and ends as DONE: they are futile,
and so are those that wait for them. Only `after_settled` is met by futile parents, once they are settled: when nothing
is left that they wait for with `after_settled` themselves. So each takes its turn in a lane, also if it cannot run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pilotage.errors import Violation
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import FINAL, JobState

MAX_DEPENDENCIES = 100_000
"""The most dependencies of one submission; a parent that is a cluster or a range of descriptions counts once."""
MAX_IN_RANGES = 1_000_000
"""The most descriptions that all different ranges of a submission have together: steps in the search for cycles."""

_Vertex = int | tuple[int, int]
"""A description, or a range of them, which waits for its descriptions: children share it."""


def faults_of(dependencies: Sequence[Dependency]) -> list[Violation]:
    """Return the faults that the submission has in itself: too many dependencies, and cycles."""
    count = sum(len(each.parents) + len(each.descriptions) + len(each.ranges) for each in dependencies)
    if count > MAX_DEPENDENCIES:
        hint = "let a cluster, or one job between, stand for many parents"
        return [Violation("dependencies", f"{count} are more than the {MAX_DEPENDENCIES} of one call: {hint}")]
    ranges = {each for dependency in dependencies for each in dependency.ranges}
    in_ranges = sum(last - first + 1 for first, last in ranges)
    if in_ranges > MAX_IN_RANGES:
        why = f"their ranges have {in_ranges} descriptions in all, more than the {MAX_IN_RANGES} of one call"
        return [Violation("dependencies", why)]
    found = _cycle(_parents_by_child(dependencies, ranges))
    cycle = [vertex for vertex in found if isinstance(vertex, int)]
    if found and found[0] not in cycle:
        cycle.append(cycle[0])
    if not cycle:
        return []
    shown = " → ".join(f"descriptions[{index}]" for index in cycle[:_SHOWN])
    more = f" → … ({len(cycle) - 1} descriptions)" if len(cycle) > _SHOWN else ""
    return [Violation("dependencies", f"wait for each other in a circle: {shown}{more}")]


_SHOWN = 10


def _parents_by_child(
    dependencies: Iterable[Dependency], ranges: Iterable[tuple[int, int]]
) -> dict[_Vertex, Sequence[_Vertex]]:
    parents: dict[_Vertex, list[_Vertex]] = {}
    for each in dependencies:
        parents.setdefault(each.description, []).extend((*each.descriptions, *each.ranges))
    return {**parents, **{(first, last): range(first, last + 1) for first, last in ranges}}


def _cycle(parents: Mapping[_Vertex, Sequence[_Vertex]]) -> list[_Vertex]:
    """Return a cycle, its first node repeated at the end; empty = there is none."""
    done: set[_Vertex] = set()
    for start in parents:
        path: list[_Vertex] = []
        places: dict[_Vertex, int] = {}
        iterators: list[Iterator[_Vertex]] = [iter((start,))]
        while iterators:
            node = next(iterators[-1], None)
            if node is None:
                iterators.pop()
                if path:
                    done.add(path[-1])
                    del places[path.pop()]
            elif node in places:
                return [*path[places[node] :], node]
            elif node not in done:
                places[node] = len(path)
                path.append(node)
                iterators.append(iter(parents.get(node, ())))
    return []


def is_met(kind: DependencyKind, state: JobState, starts: int, *, is_settled: bool) -> bool:
    """Whether a parent in this state, with so many starts, has done what its children wait for.

    `is_settled` = it has not ended, but is futile and settled.
    """
    match kind:
        case DependencyKind.AFTER:
            return starts > 0 or state in FINAL
        case DependencyKind.AFTER_OK:
            return state is JobState.DONE
        case DependencyKind.AFTER_ANY:
            return state in FINAL
        case DependencyKind.AFTER_SETTLED:
            return state in FINAL or is_settled


class BlockStatus(NamedTuple):
    """How many parents a block has, how many of its dependencies are unmet, and one parent that did not end well."""

    parents: int
    unmet: int
    failed: tuple[int, str] | None = None


def blocked_reason(status: BlockStatus) -> str:
    """Return why the jobs of a block are blocked, for people."""
    waits = f"waits for {status.unmet} of {status.parents} parent{'s' if status.parents != 1 else ''}"
    if status.failed is None:
        return waits
    job_id, state = status.failed
    return f"parent {job_id} is {state}; {waits}"


class Blocker(NamedTuple):
    """A parent that has not done yet what its child waits for."""

    kind: DependencyKind
    job: JobRecord
