"""Which nodes are told what, so that multicore jobs have as many cores as is wanted."""

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
    number: int, free: int = 0, single: int = 0, wide: int = 0, *, draining: bool = False, can_be_told: bool = True
) -> FarmNode:
    """Return a node with so many free cores, single-core jobs and multicore jobs."""
    part = NodePart(free, {1: single, WIDTH: wide})
    return FarmNode(NodeName("CERN", f"n{number}"), (part,), can_be_told, draining)


def a_farm(*nodes: FarmNode, waiting: dict[int, int] | None = None) -> Farm:
    """Return a farm of one queue for which jobs wait, by their cores."""
    counts = BOTH if waiting is None else waiting
    return Farm(nodes, tuple(FarmDemand(cores, jobs, frozenset({0})) for cores, jobs in counts.items()))


def plan(*nodes: FarmNode, setpoint: int = 0, waiting: dict[int, int] | None = None, now: bool = True) -> DrainPlan:
    """Return the plan for these nodes; `now` = those with room were so a while ago too."""
    farm = a_farm(*nodes, waiting=waiting)
    return plan_drains(farm, Goal(setpoint, WIDTH), drained_nodes(farm, WIDTH) if now else ())


def told(made: DrainPlan) -> list[tuple[str, bool]]:
    return [(each.node.node, each.only_multicore) for each in made.decisions]


@pytest.mark.parametrize(("setpoint", "jobs"), [(0, 0), (3, 0), (4, 1), (20, 3), (300, 38), (350, 44), (250, 31)])
def test_a_setpoint_is_a_number_of_jobs_with_halves_rounded_up(setpoint: int, jobs: int) -> None:
    assert Goal(setpoint).jobs == jobs


def test_as_many_nodes_begin_to_drain_as_jobs_are_missing_the_nearest_to_drained_first() -> None:
    nodes = a_node(1, free=0, single=16), a_node(2, free=6, single=10), a_node(3, free=3, single=5)
    assert told(plan(*nodes, setpoint=16)) == [("n2", True), ("n3", True)]


def test_of_nodes_with_as_many_free_cores_the_one_with_more_jobs_that_may_end_is_nearer() -> None:
    nodes = a_node(1, free=4, single=4), a_node(2, free=4, single=12)
    assert told(plan(*nodes, setpoint=8)) == [("n2", True)]


def test_running_jobs_and_nodes_that_drain_already_are_not_counted_again() -> None:
    nodes = a_node(1, wide=2), a_node(2, free=2, single=14, draining=True), a_node(3, single=16), a_node(4, single=16)
    made = plan(*nodes, setpoint=32)
    assert told(made) == [("n3", True)]
    assert made.reason == "32 cores are 4 multicore jobs; 2 run and 1 nodes drain for one: 1 missing"


def test_nothing_is_done_at_the_setpoint_and_no_job_stopped_above_it() -> None:
    assert told(plan(a_node(1, wide=2), a_node(2, single=16), setpoint=16)) == []
    assert told(plan(a_node(1, wide=2), a_node(2, single=16), setpoint=8)) == []


def test_where_too_many_drain_the_furthest_from_drained_take_all_jobs_again_first() -> None:
    nodes = [a_node(number, free=number, single=16 - number, draining=True) for number in (5, 1, 3)]
    assert told(plan(*nodes, setpoint=8)) == [("n1", False), ("n3", False)]


@pytest.mark.parametrize(
    ("waiting", "why"),
    [
        ({}, "no multicore jobs wait"),
        ({1: 5}, "no multicore jobs wait"),
        ({8: 5}, "no single-core jobs wait"),
        ({1: 0, 8: 5}, "no single-core jobs wait"),
    ],
)
def test_while_jobs_of_one_kind_wait_or_none_every_node_takes_all_jobs(waiting: dict[int, int], why: str) -> None:
    nodes = a_node(1, free=2, single=14, draining=True), a_node(2, single=16), a_node(3, free=16, draining=True)
    made = plan(*nodes, setpoint=800, waiting=waiting)
    assert sorted(told(made)) == [("n1", False), ("n3", False)]
    assert made.reason == why


def test_a_job_of_any_other_number_of_cores_than_one_is_a_multicore_job() -> None:
    nodes = FarmNode(NodeName("CERN", "n1"), (NodePart(0, {1: 8, 2: 2, 4: 1}),)), a_node(2, single=16)
    assert told(plan(*nodes, setpoint=24, waiting={1: 1, 2: 1})) == []
    assert told(plan(*nodes, setpoint=32, waiting={1: 1, 2: 1})) == [("n2", True)]


def test_a_drained_node_is_put_back_also_when_a_job_has_taken_the_room_meanwhile() -> None:
    before = a_farm(a_node(1, free=8, single=8, draining=True))
    after = a_farm(a_node(1, free=0, single=8, wide=1, draining=True))
    made = plan_drains(after, Goal(8, WIDTH), drained_nodes(before, WIDTH))
    assert told(made) == [("n1", False)]


def test_a_node_that_has_just_got_room_waits_for_its_job_and_counts_as_in_progress() -> None:
    nodes = a_node(1, free=8, single=8, draining=True), a_node(2, single=16)
    assert told(plan(*nodes, setpoint=8, now=False)) == []
    assert told(plan(*nodes, setpoint=0, now=False)) == [], "though one too many drains"


@pytest.mark.parametrize("waiting", [{}, {1: 5}, {8: 5}, BOTH])
def test_a_node_that_has_just_got_room_is_put_back_after_its_delay_whatever_waits(waiting: dict[int, int]) -> None:
    just_drained = a_node(1, free=8, single=8, draining=True)
    assert told(plan(just_drained, setpoint=8, waiting=waiting, now=False)) == []
    assert told(plan(just_drained, setpoint=8, waiting=waiting)) == [("n1", False)]


def others(node: FarmNode) -> FarmNode:
    """Return the node as one that another controller has told."""
    return replace(node, set_by="drain controller of lyon/*/*")


def test_what_another_controller_lets_drain_is_left_to_it_and_counts_as_in_progress() -> None:
    drains, has_room = (others(a_node(number, free=number, single=8, draining=True)) for number in (2, 8))
    made = plan(drains, has_room, a_node(3, single=16), a_node(4, single=16), setpoint=24)
    assert told(made) == [("n3", True)]
    assert made.reason == "24 cores are 3 multicore jobs; 0 run and 2 nodes drain for one: 1 missing"
    assert draining_for_others(a_farm(drains, has_room)) == {"drain controller of lyon/*/*": 2}


@pytest.mark.parametrize("waiting", [BOTH, {1: 5}])
def test_only_its_own_drains_are_cancelled_or_put_back(waiting: dict[int, int]) -> None:
    own = a_node(1, free=2, single=8, draining=True)
    assert told(plan(own, others(a_node(2, single=8, draining=True)), waiting=waiting)) == [("n1", False)]


def test_a_node_that_another_controller_has_put_back_is_anybodys() -> None:
    assert told(plan(others(a_node(1, single=16)), setpoint=8)) == [("n1", True)]
    assert draining_for_others(a_farm(others(a_node(1, single=16)))) == {}


def test_a_node_with_room_that_does_not_drain_is_left_alone() -> None:
    assert told(plan(a_node(1, free=16), setpoint=80)) == []


def test_a_node_that_could_never_have_room_does_not_drain() -> None:
    assert told(plan(a_node(1, free=2, single=5), a_node(2, wide=2), setpoint=80)) == []


def test_a_node_with_a_multicore_job_can_drain_for_another() -> None:
    assert told(plan(a_node(1, single=8, wide=1), setpoint=80)) == [("n1", True)]


def test_nodes_that_cannot_be_told_are_told_nothing_but_their_jobs_count() -> None:
    nodes = (
        a_node(1, wide=2, can_be_told=False),
        a_node(2, single=16, can_be_told=False),
        a_node(3, free=2, single=14, draining=True, can_be_told=False),
    )
    assert told(plan(*nodes, setpoint=24)) == []
    assert told(plan(*nodes, a_node(4, single=16), a_node(5, single=16), setpoint=24)) == [("n4", True)]


def test_cores_in_different_parts_of_a_node_make_no_room_together() -> None:
    halves = FarmNode(NodeName("CERN", "n1"), (NodePart(4, {1: 3}), NodePart(4, {1: 3})))
    assert told(plan(halves, setpoint=8)) == []
    uneven = FarmNode(NodeName("CERN", "n1"), (NodePart(4, {1: 3}), NodePart(5, {1: 3})))
    assert told(plan(uneven, setpoint=8)) == [("n1", True)]


def test_a_part_that_can_never_have_room_makes_its_node_no_nearer() -> None:
    narrow = NodePart(5, {1: 1})
    mixed = FarmNode(NodeName("CERN", "n1"), (narrow, NodePart(1, {1: 7})))
    assert told(plan(mixed, a_node(2, free=2, single=6), setpoint=8)) == [("n2", True)]
    assert plan(mixed, setpoint=8).decisions[0].reason.startswith("it has 1 cores free beside 7 single-core jobs")
    draining = replace(mixed, only_multicore=True), a_node(2, free=2, single=6, draining=True)
    assert told(plan(*draining, setpoint=8)) == [("n1", False)]


def test_cores_where_no_job_can_come_are_no_room_but_the_jobs_there_count() -> None:
    closed = NodePart(8, {1: 8, WIDTH: 1}, None)
    assert told(plan(FarmNode(NodeName("CERN", "n1"), (closed,)), setpoint=16)) == []
    draining = FarmNode(NodeName("CERN", "n1"), (closed, NodePart(2, {1: 6})), only_multicore=True)
    assert told(plan(draining, a_node(2, single=16), setpoint=16)) == []


HERE, THERE = (frozenset({number}) for number in range(2))


def at(queue: int, number: int, free: int = 0, *, draining: bool = False) -> FarmNode:
    """Return a node of a queue with so many free cores, all others in use by single-core jobs."""
    part = NodePart(free, {1: 16 - free}, queue)
    return FarmNode(NodeName("CERN", f"n{number}"), (part,), only_multicore=draining)


def planned(nodes: Sequence[FarmNode], setpoint: int, *waiting: tuple[int, int, frozenset[int]]) -> DrainPlan:
    farm = Farm(tuple(nodes), tuple(FarmDemand(*each) for each in waiting))
    return plan_drains(farm, Goal(setpoint, WIDTH), drained_nodes(farm, WIDTH))


def test_nodes_of_queues_that_the_waiting_multicore_jobs_cannot_reach_take_all_jobs() -> None:
    nodes = at(0, 1, 6), at(0, 2, 6, draining=True), at(1, 3), at(1, 4)
    made = planned(nodes, 800, (1, 9, HERE | THERE), (8, 5, THERE))
    assert told(made) == [("n2", False), ("n3", True), ("n4", True)]
    assert made.decisions[0].reason == "no multicore jobs wait for it"


def test_nodes_drain_only_where_single_core_jobs_would_take_the_cores() -> None:
    nodes = at(0, 1, 6, draining=True), at(1, 2)
    made = planned(nodes, 800, (1, 9, THERE), (8, 5, HERE | THERE))
    assert told(made) == [("n1", False), ("n2", True)]
    assert made.decisions[0].reason == "no single-core jobs wait for it"
    assert planned(nodes, 800, (1, 9, THERE), (8, 5, HERE)).reason == "no single-core jobs wait"


def test_each_waiting_multicore_job_gets_a_node_before_any_gets_a_second() -> None:
    nodes = at(0, 1, 7), at(0, 2, 6), at(0, 3, 5), at(1, 4, 2), at(1, 5, 1)
    waiting = (1, 99, HERE | THERE), (8, 1, HERE), (8, 2, THERE)
    assert told(planned(nodes, 24, *waiting)) == [("n1", True), ("n4", True), ("n5", True)]
    assert told(planned(nodes, 32, *waiting)) == [("n1", True), ("n2", True), ("n4", True), ("n5", True)]


def test_a_node_that_drains_already_is_for_the_job_that_has_the_fewest_other_ways() -> None:
    nodes = at(0, 1, 7, draining=True), at(0, 2, 6), at(1, 3, 1)
    waiting = (1, 99, HERE | THERE), (8, 1, HERE | THERE), (8, 1, HERE)
    assert told(planned(nodes, 16, *waiting)) == [("n2", True)]
    assert told(planned(nodes, 16, *waiting[:2], (8, 1, THERE))) == [("n3", True)]


def test_every_decision_says_why() -> None:
    nodes = a_node(1, free=6, single=10), a_node(2, free=8, draining=True)
    assert [each.reason for each in plan(*nodes, setpoint=8).decisions] == [
        "it has had room for 8 cores",
        "it has 6 cores free beside 10 single-core jobs, and is nearest to room for 8",
    ]
