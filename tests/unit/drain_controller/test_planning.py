"""Plans of the drain controller: which nodes drain so that multicore jobs reach the setpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pilotage_agents.drain_controller.planning import (
    DrainPlan,
    Farm,
    FarmDemand,
    FarmNode,
    Goal,
    NodeName,
    NodePart,
    drained_nodes,
    draining_for_others,
    plan_drains,
)

BOTH = {1: 100, 8: 100}
WIDTH = 8


def a_node(
    number: int, free: int = 0, single: int = 0, wide: int = 0, *, draining: bool = False, is_settable: bool = True
) -> FarmNode:
    """Return a node with so many free cores, single-core jobs and multicore jobs."""
    part = NodePart(free, {1: single, WIDTH: wide})
    return FarmNode(NodeName("CERN", f"n{number}"), (part,), is_settable, draining)


def a_farm(*nodes: FarmNode, waiting: dict[int, int] | None = None) -> Farm:
    """Return a farm of one queue for which jobs wait, by their cores."""
    counts = BOTH if waiting is None else waiting
    return Farm(nodes, tuple(FarmDemand(cores, jobs, frozenset({0})) for cores, jobs in counts.items()))


def plan(
    *nodes: FarmNode, setpoint: int = 0, waiting: dict[int, int] | None = None, delay_passed: bool = True
) -> DrainPlan:
    """Return the plan for these nodes; `delay_passed` = drained nodes were drained a while ago too."""
    farm = a_farm(*nodes, waiting=waiting)
    return plan_drains(farm, Goal(setpoint, WIDTH), drained_nodes(farm, WIDTH) if delay_passed else ())


def orders(result: DrainPlan) -> list[tuple[str, bool]]:
    return [(decision.node.node, decision.only_multicore) for decision in result.decisions]


@pytest.mark.parametrize(("setpoint", "jobs"), [(0, 0), (3, 0), (4, 1), (20, 3), (300, 38), (350, 44), (250, 31)])
def test_setpoint_is_rounded_to_multicore_jobs(setpoint: int, jobs: int) -> None:
    assert Goal(setpoint).jobs == jobs


def test_drains_nearest_nodes_for_missing_jobs() -> None:
    nodes = a_node(1, free=0, single=16), a_node(2, free=6, single=10), a_node(3, free=3, single=5)
    assert orders(plan(*nodes, setpoint=16)) == [("n2", True), ("n3", True)]


def test_prefers_node_with_more_single_core_jobs_at_equal_free_cores() -> None:
    nodes = a_node(1, free=4, single=4), a_node(2, free=4, single=12)
    assert orders(plan(*nodes, setpoint=8)) == [("n2", True)]


def test_running_jobs_and_draining_nodes_count_towards_setpoint() -> None:
    nodes = a_node(1, wide=2), a_node(2, free=2, single=14, draining=True), a_node(3, single=16), a_node(4, single=16)
    result = plan(*nodes, setpoint=32)
    assert orders(result) == [("n3", True)]
    assert result.reason == "32 cores are 4 multicore jobs; 2 run and 1 nodes drain for one: 1 missing"


def test_no_orders_at_or_above_the_setpoint() -> None:
    assert orders(plan(a_node(1, wide=2), a_node(2, single=16), setpoint=16)) == []
    assert orders(plan(a_node(1, wide=2), a_node(2, single=16), setpoint=8)) == []


def test_cancels_excess_drains_furthest_from_drained_first() -> None:
    nodes = [a_node(number, free=number, single=16 - number, draining=True) for number in (5, 1, 3)]
    assert orders(plan(*nodes, setpoint=8)) == [("n1", False), ("n3", False)]


@pytest.mark.parametrize(
    ("waiting", "why"),
    [
        ({}, "no multicore jobs wait"),
        ({1: 5}, "no multicore jobs wait"),
        ({8: 5}, "no single-core jobs wait"),
        ({1: 0, 8: 5}, "no single-core jobs wait"),
    ],
)
def test_cancels_all_drains_unless_both_kinds_of_jobs_wait(waiting: dict[int, int], why: str) -> None:
    nodes = a_node(1, free=2, single=14, draining=True), a_node(2, single=16), a_node(3, free=16, draining=True)
    result = plan(*nodes, setpoint=800, waiting=waiting)
    assert sorted(orders(result)) == [("n1", False), ("n3", False)]
    assert result.reason == why


def test_job_of_two_or_more_cores_is_multicore() -> None:
    nodes = FarmNode(NodeName("CERN", "n1"), (NodePart(0, {1: 8, 2: 2, 4: 1}),)), a_node(2, single=16)
    assert orders(plan(*nodes, setpoint=24, waiting={1: 1, 2: 1})) == []
    assert orders(plan(*nodes, setpoint=32, waiting={1: 1, 2: 1})) == [("n2", True)]


def test_drained_node_returns_even_if_a_job_took_the_cores() -> None:
    before = a_farm(a_node(1, free=8, single=8, draining=True))
    after = a_farm(a_node(1, free=0, single=8, wide=1, draining=True))
    result = plan_drains(after, Goal(8, WIDTH), drained_nodes(before, WIDTH))
    assert orders(result) == [("n1", False)]


def test_newly_drained_node_keeps_draining_and_counts() -> None:
    nodes = a_node(1, free=8, single=8, draining=True), a_node(2, single=16)
    assert orders(plan(*nodes, setpoint=8, delay_passed=False)) == []
    assert orders(plan(*nodes, setpoint=0, delay_passed=False)) == [], "even though one node too many drains"


@pytest.mark.parametrize("waiting", [{}, {1: 5}, {8: 5}, BOTH])
def test_newly_drained_node_returns_after_the_delay(waiting: dict[int, int]) -> None:
    newly_drained = a_node(1, free=8, single=8, draining=True)
    assert orders(plan(newly_drained, setpoint=8, waiting=waiting, delay_passed=False)) == []
    assert orders(plan(newly_drained, setpoint=8, waiting=waiting)) == [("n1", False)]


def of_another_controller(node: FarmNode) -> FarmNode:
    """Return the node with its present order from another controller."""
    return replace(node, set_by="drain controller of lyon/*/*")


def test_drains_of_another_controller_are_counted_and_kept() -> None:
    draining, drained = (
        of_another_controller(a_node(number, free=number, single=8, draining=True)) for number in (2, 8)
    )
    result = plan(draining, drained, a_node(3, single=16), a_node(4, single=16), setpoint=24)
    assert orders(result) == [("n3", True)]
    assert result.reason == "24 cores are 3 multicore jobs; 0 run and 2 nodes drain for one: 1 missing"
    assert draining_for_others(a_farm(draining, drained)) == {"drain controller of lyon/*/*": 2}


@pytest.mark.parametrize("waiting", [BOTH, {1: 5}])
def test_cancels_only_own_drains(waiting: dict[int, int]) -> None:
    own = a_node(1, free=2, single=8, draining=True)
    assert orders(plan(own, of_another_controller(a_node(2, single=8, draining=True)), waiting=waiting)) == [
        ("n1", False)
    ]


def test_node_returned_by_another_controller_may_drain() -> None:
    assert orders(plan(of_another_controller(a_node(1, single=16)), setpoint=8)) == [("n1", True)]
    assert draining_for_others(a_farm(of_another_controller(a_node(1, single=16)))) == {}


def test_node_with_enough_free_cores_does_not_drain() -> None:
    assert orders(plan(a_node(1, free=16), setpoint=80)) == []


def test_node_that_can_never_have_enough_cores_does_not_drain() -> None:
    assert orders(plan(a_node(1, free=2, single=5), a_node(2, wide=2), setpoint=80)) == []


def test_node_with_a_multicore_job_may_drain_for_another() -> None:
    assert orders(plan(a_node(1, single=8, wide=1), setpoint=80)) == [("n1", True)]


def test_nodes_that_are_not_settable_get_no_orders_but_count() -> None:
    nodes = (
        a_node(1, wide=2, is_settable=False),
        a_node(2, single=16, is_settable=False),
        a_node(3, free=2, single=14, draining=True, is_settable=False),
    )
    assert orders(plan(*nodes, setpoint=24)) == []
    assert orders(plan(*nodes, a_node(4, single=16), a_node(5, single=16), setpoint=24)) == [("n4", True)]


def test_cores_of_different_node_parts_do_not_add_up() -> None:
    halves = FarmNode(NodeName("CERN", "n1"), (NodePart(4, {1: 3}), NodePart(4, {1: 3})))
    assert orders(plan(halves, setpoint=8)) == []
    uneven = FarmNode(NodeName("CERN", "n1"), (NodePart(4, {1: 3}), NodePart(5, {1: 3})))
    assert orders(plan(uneven, setpoint=8)) == [("n1", True)]


def test_part_that_can_never_have_enough_cores_is_ignored() -> None:
    narrow = NodePart(5, {1: 1})
    two_parts = FarmNode(NodeName("CERN", "n1"), (narrow, NodePart(1, {1: 7})))
    assert orders(plan(two_parts, a_node(2, free=2, single=6), setpoint=8)) == [("n2", True)]
    assert plan(two_parts, setpoint=8).decisions[0].reason.startswith("it has 1 cores free beside 7 single-core jobs")
    draining = replace(two_parts, only_multicore=True), a_node(2, free=2, single=6, draining=True)
    assert orders(plan(*draining, setpoint=8)) == [("n1", False)]


def test_closed_part_offers_no_cores_but_its_jobs_count() -> None:
    closed = NodePart(8, {1: 8, WIDTH: 1}, None)
    assert orders(plan(FarmNode(NodeName("CERN", "n1"), (closed,)), setpoint=16)) == []
    draining = FarmNode(NodeName("CERN", "n1"), (closed, NodePart(2, {1: 6})), only_multicore=True)
    assert orders(plan(draining, a_node(2, single=16), setpoint=16)) == []


QUEUE_0, QUEUE_1 = (frozenset({number}) for number in range(2))


def node_of_queue(queue: int, number: int, free: int = 0, *, draining: bool = False) -> FarmNode:
    """Return a node of a queue with so many free cores, all others in use by single-core jobs."""
    part = NodePart(free, {1: 16 - free}, queue)
    return FarmNode(NodeName("CERN", f"n{number}"), (part,), only_multicore=draining)


def plan_by_queue(nodes: Sequence[FarmNode], setpoint: int, *waiting: tuple[int, int, frozenset[int]]) -> DrainPlan:
    farm = Farm(tuple(nodes), tuple(FarmDemand(*demand) for demand in waiting))
    return plan_drains(farm, Goal(setpoint, WIDTH), drained_nodes(farm, WIDTH))


def test_nodes_out_of_reach_of_multicore_jobs_do_not_drain() -> None:
    nodes = node_of_queue(0, 1, 6), node_of_queue(0, 2, 6, draining=True), node_of_queue(1, 3), node_of_queue(1, 4)
    result = plan_by_queue(nodes, 800, (1, 9, QUEUE_0 | QUEUE_1), (8, 5, QUEUE_1))
    assert orders(result) == [("n2", False), ("n3", True), ("n4", True)]
    assert result.decisions[0].reason == "no multicore jobs wait for it"


def test_nodes_out_of_reach_of_single_core_jobs_do_not_drain() -> None:
    nodes = node_of_queue(0, 1, 6, draining=True), node_of_queue(1, 2)
    result = plan_by_queue(nodes, 800, (1, 9, QUEUE_1), (8, 5, QUEUE_0 | QUEUE_1))
    assert orders(result) == [("n1", False), ("n2", True)]
    assert result.decisions[0].reason == "no single-core jobs wait for it"
    assert plan_by_queue(nodes, 800, (1, 9, QUEUE_1), (8, 5, QUEUE_0)).reason == "no single-core jobs wait"


def test_each_waiting_job_gets_a_node_before_any_gets_two() -> None:
    nodes = (
        node_of_queue(0, 1, 7),
        node_of_queue(0, 2, 6),
        node_of_queue(0, 3, 5),
        node_of_queue(1, 4, 2),
        node_of_queue(1, 5, 1),
    )
    waiting = (1, 99, QUEUE_0 | QUEUE_1), (8, 1, QUEUE_0), (8, 2, QUEUE_1)
    assert orders(plan_by_queue(nodes, 24, *waiting)) == [("n1", True), ("n4", True), ("n5", True)]
    assert orders(plan_by_queue(nodes, 32, *waiting)) == [("n1", True), ("n2", True), ("n4", True), ("n5", True)]


def test_draining_node_serves_the_demand_with_fewest_alternatives() -> None:
    nodes = node_of_queue(0, 1, 7, draining=True), node_of_queue(0, 2, 6), node_of_queue(1, 3, 1)
    waiting = (1, 99, QUEUE_0 | QUEUE_1), (8, 1, QUEUE_0 | QUEUE_1), (8, 1, QUEUE_0)
    assert orders(plan_by_queue(nodes, 16, *waiting)) == [("n2", True)]
    assert orders(plan_by_queue(nodes, 16, *waiting[:2], (8, 1, QUEUE_1))) == [("n3", True)]


def test_every_decision_has_a_reason() -> None:
    nodes = a_node(1, free=6, single=10), a_node(2, free=8, draining=True)
    assert [decision.reason for decision in plan(*nodes, setpoint=8).decisions] == [
        "it has had room for 8 cores",
        "it has 6 cores free beside 10 single-core jobs, and is nearest to room for 8",
    ]
