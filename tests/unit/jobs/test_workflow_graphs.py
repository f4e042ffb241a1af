"""The graph of a workflow: which jobs are one step, and which steps wait for which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.job_description import JobDescription
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage.values.selections import JobSelection
from pilotage_server.core.jobs.descriptions import DescriptionGroup, single_groups
from pilotage_server.core.jobs.workflow_graphs import (
    MANY_ALIKE,
    MAX_EDGES,
    MAX_STEPS,
    StepEdge,
    WorkflowGraph,
    graph_of,
)

OK, ANY = DependencyKind.AFTER_OK, DependencyKind.AFTER_ANY
TRUE = JobDescription("/bin/true")


def jobs(count: int) -> tuple[DescriptionGroup, ...]:
    return single_groups([TRUE] * count)


def waits(child: int, *parents: int, kind: DependencyKind = OK) -> Dependency:
    return Dependency(child, kind, descriptions=parents)


def drawn(
    descriptions: Sequence[DescriptionGroup], *dependencies: Dependency
) -> tuple[list[int], list[tuple[int, int]]] | None:
    """Return the sizes of steps, and edges."""
    graph = graph_of(descriptions, dependencies, {})
    if graph is None:
        return None
    return [len(each) for each in graph.steps], sorted((parent, child) for _, parent, child in graph.edges)


def test_diamond_has_a_step_for_each_job() -> None:
    found = drawn(jobs(4), waits(1, 0), waits(2, 0), waits(3, 1, 2))
    assert found == ([1, 1, 1, 1], [(0, 1), (0, 2), (1, 3), (2, 3)])


def test_arrays_are_one_step() -> None:
    descriptions = single_groups([TRUE, replace(TRUE, count=1000), TRUE])
    assert drawn(descriptions, waits(1, 0), waits(2, 1)) == ([1, 1000, 1], [(0, 1), (1, 2)])


def test_descriptions_of_one_cluster_are_one_step_unless_their_edges_differ() -> None:
    more = replace(TRUE, continues_cluster=True)
    whole = Dependency(4, OK, ranges=((0, 3),))
    assert drawn(single_groups([TRUE, more, more, more, TRUE]), whole) == ([4, 1], [(0, 1)])
    found = drawn(single_groups([TRUE, more, more, more, TRUE]), whole, waits(2, 0))
    assert found == ([1, 1, 1, 1, 1], [(0, 2), (0, 4), (1, 4), (2, 4), (3, 4)])


@pytest.mark.parametrize("by_range", [True, False])
@pytest.mark.parametrize(("wide", "steps"), [(MANY_ALIKE, MANY_ALIKE + 2), (MANY_ALIKE + 1, 3)], ids=["few", "many"])
def test_many_clusters_with_the_same_edges_are_one_step(wide: int, steps: int, by_range: bool) -> None:
    last = wide + 1
    merge = Dependency(last, OK, ranges=((1, wide),)) if by_range else waits(last, *range(1, last))
    found = drawn(jobs(wide + 2), *(waits(child, 0) for child in range(1, last)), merge)
    assert found is not None
    assert (len(found[0]), sum(found[0]), len(found[1])) == (steps, wide + 2, 2 * (steps - 2))


def test_kinds_of_edges_and_jobs_outside_are_kept() -> None:
    twelve = JobSelection(12)
    dependencies = [waits(1, 0, kind=ANY), Dependency(0, OK, parents=(twelve,)), Dependency(1, OK, parents=(twelve,))]
    graph = graph_of(jobs(2), dependencies, {twelve: range(12, 22)})
    assert graph == WorkflowGraph(
        (range(1), range(1, 2)), (StepEdge(ANY, 0, 1), StepEdge(OK, 2, 0), StepEdge(OK, 2, 1)), (range(12, 22),)
    )
    assert graph.all_jobs(100) == [range(100, 101), range(101, 102), range(12, 22)]


def test_large_graphs_are_not_kept() -> None:
    chain = [waits(child, child - 1) for child in range(1, 5 * MAX_STEPS)]
    assert drawn(jobs(MAX_STEPS), *chain[: MAX_STEPS - 1]) is not None
    assert drawn(jobs(MAX_STEPS + 1), *chain[:MAX_STEPS]) is None
    assert drawn(jobs(5 * MAX_STEPS), *chain) is None
    side = 2 * int(MAX_EDGES**0.5)
    crossed = [waits(side + child, *range(child % 2, side, 2)) for child in range(side)]
    assert side * side / 2 > MAX_EDGES
    assert drawn(jobs(2 * side), *crossed) is None


@given(st.data())
def test_steps_wait_for_each_other_as_their_jobs_do(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    more = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    descriptions = [replace(TRUE, continues_cluster=index > 0 and each) for index, each in enumerate(more)]
    dependencies: list[Dependency] = []
    for child in range(1, count):
        if data.draw(st.booleans()):
            first = data.draw(st.integers(0, child - 1))
            last = data.draw(st.integers(first, child - 1))
            single = data.draw(st.integers(0, child - 1))
            kind = data.draw(st.sampled_from(DependencyKind))
            dependencies.append(Dependency(child, kind, descriptions=(single,), ranges=((first, last),)))
    graph = graph_of(single_groups(descriptions), dependencies, {})
    assert graph is not None
    assert [job for step in graph.steps for job in step] == list(range(count))
    expected = {
        (each.kind, parent, each.description)
        for each in dependencies
        for parent in (*each.descriptions, *range(each.ranges[0][0], each.ranges[0][1] + 1))
    }
    found = {
        (kind, parent_job, child_job)
        for kind, parent, child in graph.edges
        for parent_job in graph.steps[parent]
        for child_job in graph.steps[child]
    }
    assert found == expected
