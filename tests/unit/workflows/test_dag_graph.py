"""Graphs of random DAG files equal those of a plain oracle, and their lanes keep to the limits."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage_client.workflows import DagWorkflow
from support.dag_texts import dag, parents


@pytest.fixture(autouse=True, scope="module")
def _in_empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("dags"))
        yield


class RandomDag(NamedTuple):
    """Options of each node, statements with the indexes of parents and children, the nodes of a category, its limit."""

    options: list[str]
    edges: list[tuple[set[int], set[int]]]
    limited: set[int]
    limit: int

    def text(self) -> str:
        """Return the DAG file; a node's name has its index."""
        lines = [f"PARENT {_names(above)} CHILD {_names(below)}" for above, below in self.edges]
        lines += [f"JOB N{index} a.sub {option}" for index, option in enumerate(self.options)]
        lines += [f"CATEGORY N{index} few" for index in self.limited]
        return "\n".join([*lines, f"MAXJOBS few {self.limit}\n"])

    def parents_of(self, node: int) -> set[int]:
        """Return the parents with jobs, also those of parents without jobs."""
        above = {each for parents, children in self.edges if node in children for each in parents}
        found = {each for each in above if not self.options[each]}
        return found.union(*(self.parents_of(each) for each in above if self.options[each] == "NOOP"))


def _names(nodes: set[int]) -> str:
    return " ".join(f"N{index}" for index in sorted(nodes))


@st.composite
def random_dags(draw: st.DrawFn) -> RandomDag:
    options = draw(st.lists(st.sampled_from(["", "", "", "NOOP", "DONE"]), min_size=1, max_size=9))
    count = len(options)
    edges = []
    for cut in draw(st.lists(st.integers(1, count - 1), max_size=8)) if count > 1 else ():
        above = draw(st.sets(st.integers(0, cut - 1), min_size=1, max_size=4))
        below = draw(st.sets(st.integers(cut, count - 1), min_size=1, max_size=4))
        edges.append((above, below))
    limited = draw(st.sets(st.integers(0, count - 1)))
    return RandomDag(options, edges, limited, draw(st.integers(1, 3)))


@given(random_dags(), st.booleans())
def test_parents_equal_those_of_the_oracle(random_dag: RandomDag, is_spliced: bool) -> None:
    expected = {f"N{node}": {f"N{each}" for each in random_dag.parents_of(node)} for node in _with_jobs(random_dag)}
    expected = {node: above for node, above in expected.items() if above}
    flow = dag("SPLICE S inner.dag\n" if is_spliced else random_dag.text(), {"inner.dag": random_dag.text()})
    found = {
        node.removeprefix("S+"): {each.removeprefix("S+") for each in above} for node, above in parents(flow).items()
    }
    assert found == expected
    assert {job.name.removeprefix("S+") for job in flow.descriptions} == {f"N{node}" for node in _with_jobs(random_dag)}


def _with_jobs(random_dag: RandomDag) -> list[int]:
    return [node for node, option in enumerate(random_dag.options) if not option]


@given(random_dags(), st.randoms(use_true_random=False))
def test_limit_of_category_holds_and_every_node_ends(random_dag: RandomDag, chance: random.Random) -> None:
    flow = dag(random_dag.text())
    limited = {f"N{node}" for node in random_dag.limited}
    for running in _run(flow, chance, failures=chance.choice([0, 0.2])):
        assert len(running & limited) <= random_dag.limit


@given(
    st.lists(st.tuples(random_dags(), st.sampled_from(["", "FINAL F a.sub\n"])), min_size=2, max_size=4),
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3))),
    st.integers(1, 2),
    st.randoms(use_true_random=False),
)
def test_limit_of_sub_dags_holds_and_every_node_ends(
    parts: list[tuple[RandomDag, str]], pairs: set[tuple[int, int]], limit: int, chance: random.Random
) -> None:
    lines = [f"SUBDAG EXTERNAL S{index} {index}.dag\n" for index in range(len(parts))]
    lines += [f"PARENT S{above} CHILD S{below}\n" for above, below in pairs if above < below < len(parts)]
    files = {f"{index}.dag": part.text() + final for index, (part, final) in enumerate(parts)}
    flow = dag("".join([*lines, f"CATEGORY ALL_NODES few\nMAXJOBS few {limit}\n"]), files)
    for running in _run(flow, chance, failures=chance.choice([0, 0.2])):
        assert len({node.partition("+")[0] for node in running}) <= limit


def _run(flow: DagWorkflow, chance: random.Random, failures: float = 0.0) -> Iterator[set[str]]:
    """Run a workflow in random order on a large farm and yield the running nodes after each step.

    `failures` = the share of nodes that fail.
    """
    after_ok, after_settled = parents(flow), parents(flow, "after_settled")
    left = {job.name for job in flow.descriptions}
    running, done, failed = set[str](), set[str](), set[str]()
    while left or running:
        stuck = _stuck(left, after_ok, failed)
        settled = done | failed
        while more := {node for node in stuck - settled if after_settled.get(node, set()) <= settled}:
            settled |= more
        ready = {
            node
            for node in left - stuck
            if after_ok.get(node, set()) <= done and after_settled.get(node, set()) <= settled
        }
        assert ready or running or left == stuck, "nothing can make progress"
        if left == stuck and not running:
            assert stuck <= settled
            return
        if ready and (not running or chance.random() < 0.7):
            node = chance.choice(sorted(ready))
            left.remove(node)
            running.add(node)
        else:
            node = chance.choice(sorted(running))
            running.remove(node)
            (failed if chance.random() < failures else done).add(node)
        yield running


def _stuck(left: set[str], after_ok: Mapping[str, set[str]], failed: set[str]) -> set[str]:
    """Return the nodes that cannot run, as a node before them has failed."""
    stuck = set[str]()
    while more := {node for node in left - stuck if after_ok.get(node, set()) & (failed | stuck)}:
        stuck |= more
    return stuck


def test_large_groups_are_shared() -> None:
    nodes = "".join(f"JOB {kind}{index} a.sub\n" for kind in "pqr" for index in range(300))
    p, q, r = (" ".join(f"{kind}{index}" for index in range(300)) for kind in "pqr")
    text = f"{nodes}JOB N none NOOP\nPARENT {p} CHILD N {q}\nPARENT N {q} CHILD {r}\n"
    flow = dag(text)
    ranges = {each.ranges for each in flow.dependencies}
    assert ranges == {((0, 299),), ((0, 599),)}


def _many(kind: str) -> str:
    return " ".join(f"{kind}{index}" for index in range(50))


@pytest.mark.parametrize(
    ("edges", "ranges"),
    [
        (f"PARENT {_many('p')} CHILD {_many('r')}\n", 50),
        ("".join(f"PARENT p{index} CHILD Z\n" for index in range(50)), 1),
        ("".join(f"PARENT p{index} CHILD Z r{index}\nPARENT q{index} CHILD Y\n" for index in range(50)), 52),
        (f"PARENT {_many('p')} CHILD {_many('r')}\n" + f"PARENT {_many('p')} {_many('q')} CHILD Z\n", 51),
        (f"PARENT {_many('p')} CHILD N\nPARENT N CHILD {_many('r')}\n", 50),
    ],
)
def test_parents_that_alternate_with_others_are_one_range(edges: str, ranges: int) -> None:
    nodes = "".join(f"JOB {kind}{index} a.sub\n" for index in range(50) for kind in "pqr")
    flow = dag(f"{nodes}JOB Y a.sub\nJOB Z a.sub\nJOB N a.sub NOOP\n{edges}")
    assert sum(len(each.ranges) for each in flow.dependencies) == ranges


def test_nodes_without_common_children_keep_the_order_of_the_file() -> None:
    nodes = "".join(f"JOB {kind}{index} a.sub\n" for index in range(3) for kind in "pq")
    flow = dag(f"{nodes}JOB Z a.sub\nJOB Y a.sub\nPARENT q0 CHILD Z\nPARENT p1 CHILD Y\n")
    assert [job.name for job in flow.descriptions] == ["p0", "q0", "p1", "q1", "p2", "q2", "Z", "Y"]
