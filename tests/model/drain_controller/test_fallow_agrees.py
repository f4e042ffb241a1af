"""The drain controller decides as Fallow does, which is reimplemented here, on any unchanging farm."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from pilotage_agents.drain_controller.planning import (
    Farm,
    FarmDemand,
    FarmNode,
    Goal,
    NodeName,
    NodePart,
    drained_nodes,
    plan_drains,
)

WIDTH = 8


@dataclass
class Machine:
    """A node as Fallow sees it."""

    name: str
    slack: int
    single: int
    wide: int
    only_multicore: bool

    @property
    def rank(self) -> float:
        return 0.0 if self.slack >= WIDTH else self.slack + self.single / (WIDTH - self.slack)


def fallow(machines: list[Machine], single_queued: int, multi_queued: int, setpoint: int) -> dict[str, bool]:
    """Return the value of OnlyMulticore that Fallow sets, by node."""
    flags = {machine.name: machine.only_multicore for machine in machines}
    for each in machines:
        if flags[each.name] and each.slack >= WIDTH:
            flags[each.name] = False
    if not (single_queued and multi_queued):
        return dict.fromkeys(flags, False)
    in_progress = sum(flags[each.name] and each.slack < WIDTH for each in machines)
    delta = int(setpoint / WIDTH + 0.5) - sum(each.wide for each in machines) - in_progress
    by_name = sorted(machines, key=lambda each: each.name)
    for each in sorted(by_name, key=lambda each: -each.rank):
        if delta > 0 and not flags[each.name] and each.slack < WIDTH <= each.slack + each.single:
            flags[each.name] = True
            delta -= 1
    for each in sorted(by_name, key=lambda each: each.rank):
        if delta < 0 and flags[each.name]:
            flags[each.name] = False
            delta += 1
    return flags


machines = st.lists(
    st.builds(
        Machine,
        name=st.uuids().map(str),
        slack=st.integers(0, 20),
        single=st.integers(0, 20),
        wide=st.integers(0, 3),
        only_multicore=st.booleans(),
    ),
    max_size=12,
    unique_by=lambda each: each.name,
)


@given(machines, st.integers(0, 2), st.integers(0, 2), st.integers(0, 200))
def test_controller_sets_the_same_attributes_as_fallow(
    machines: list[Machine], single_queued: int, multi_queued: int, setpoint: int
) -> None:
    nodes = tuple(
        FarmNode(
            NodeName("SITE", each.name),
            (NodePart(each.slack, {1: each.single, WIDTH: each.wide}),),
            True,
            each.only_multicore,
        )
        for each in machines
    )
    here = frozenset({0})
    farm = Farm(nodes, (FarmDemand(1, single_queued, here), FarmDemand(WIDTH, multi_queued, here)))
    plan = plan_drains(farm, Goal(setpoint, WIDTH), drained_nodes(farm, WIDTH))
    changes = {each.node.node: each.only_multicore for each in plan.decisions}
    before = {machine.name: machine.only_multicore for machine in machines}
    assert {**before, **changes} == fallow(machines, single_queued, multi_queued, setpoint)
    assert len(changes) == len(plan.decisions), "no node is changed twice"
    assert all(before[name] is not value for name, value in changes.items()), "every decision changes its node"
