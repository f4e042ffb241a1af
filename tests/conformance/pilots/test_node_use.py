"""Use of nodes and the jobs that wait for them, which the drain controller reads."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import insert

from pilotage.resources.eligibility import Ban
from pilotage.resources.tree import QueueId
from pilotage.values.amounts import Amounts
from pilotage.values.leadership import Leadership
from pilotage_server.core.attempts.reports import ReportedSlot
from pilotage_server.core.pilots.node_use import FarmUse, NodeUse, PartUse, WaitingByCpus
from pilotage_server.core.pilots.nodes import NodeId, NodeSettings
from pilotage_server.operations.leadership import take_leadership
from pilotage_server.operations.pilots.nodes import get_node_use, set_node_attributes
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.pilots import load_node_settings, store_node_settings
from support.grid import LONG, Grid, Pilot, a_busy_slot, an_idle_slot
from support.jobs import an_operator
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

OTHER = "Lyon/ce1/q"
SHORT = LONG + "er"
FLAG = "OnlyMulticore"


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock, LONG, OTHER, SHORT)


def node_use(grid: Grid, *queues: str) -> FarmUse:
    chosen = [QueueId.parse(queue) for queue in queues]
    return grid.read(lambda transaction, state: get_node_use(transaction, state, chosen, FLAG))


def node_of(pilot: Pilot, site: str = "CERN") -> NodeId:
    return NodeId(site, f"node-of-{pilot.stamp}")


def a_partitionable_slot(free: int, ad: str = "", name: str = "slot1") -> ReportedSlot:
    return replace(an_idle_slot(name, 16), partitionable=True, free=Amounts(free), ad=ad)


def set_flag(grid: Grid, value: str, *nodes: NodeId) -> None:
    grid.write(
        lambda transaction, state: set_node_attributes(transaction, state, an_operator(), nodes, ({FLAG: value}, ()))
    )


def test_node_shows_free_cores_and_jobs_by_cores(grid: Grid) -> None:
    pilot = grid.start_pilot()
    dynamic = a_busy_slot("slot1_1"), a_busy_slot("slot1_2"), a_busy_slot("slot1_3", 8)
    pilot.show(a_partitionable_slot(6), *dynamic, settable_attributes=(FLAG,))
    parts = (PartUse(6, {1: 2, 8: 1}, 0),)
    assert node_use(grid).nodes == (NodeUse(node_of(pilot), parts, settable=True, is_true=False),)


def test_claimed_cores_are_used_and_idle_static_slots_free(grid: Grid) -> None:
    claimed, held = (replace(a_busy_slot(name), activity="Idle", job_id=0) for name in ("slot1_1", "slot4"))
    static = an_idle_slot("slot2", 4), a_busy_slot("slot3", 4), held
    grid.start_pilot().show(a_partitionable_slot(15), claimed, *static)
    (node,) = node_use(grid).nodes
    assert node.parts == tuple(PartUse(*part, 0) for part in ((15, {1: 1}), (4, {}), (0, {4: 1}), (0, {1: 1})))


def test_draining_pilots_and_banned_queues_take_no_jobs(grid: Grid, clock: VirtualClock) -> None:
    drained, banned, other = grid.start_pilot(), grid.start_pilot(OTHER), grid.start_pilot()
    for pilot in (drained, banned, other):
        pilot.show(a_partitionable_slot(8), a_busy_slot("slot1_1", 8))
    grid.drain(drained)
    grid.state.bans = (Ban("Lyon", None, None, "power cut", clock() + timedelta(hours=1)),)
    found = node_use(grid)
    assert [node.parts for node in found.nodes] == [
        (PartUse(0, {8: 1}, None),),
        (PartUse(8, {8: 1}, 0),),
        (PartUse(8, {8: 1}, None),),
    ]
    assert found.queues == (QueueId.parse(LONG),)


def test_pilots_of_one_host_are_parts_of_one_node(grid: Grid) -> None:
    first, second = grid.start_pilot(), grid.start_pilot()
    first.show(a_partitionable_slot(3))
    second.show(a_partitionable_slot(5), name=node_of(first).node)
    (node,) = node_use(grid).nodes
    assert [part.free_cpus for part in node.parts] == [3, 5]


@pytest.mark.parametrize(
    ("ad", "value", "holds"),
    [
        ("", None, False),
        ("[OnlyMulticore = true]", None, True),
        ("[OnlyMulticore = true]", "False", False),
        ("[OnlyMulticore = false]", "True", True),
        ("[Busy = true]", "Busy", True),
        ("", '"True"', False),
        ("", "1", False),
    ],
)
def test_set_attribute_overrides_policy_and_holds_if_true(grid: Grid, ad: str, value: str | None, holds: bool) -> None:
    pilot = grid.start_pilot()
    pilot.show(a_partitionable_slot(1, ad), settable_attributes=("onlymulticore",))
    if value is not None:
        set_flag(grid, value, node_of(pilot))
    (node,) = node_use(grid).nodes
    assert (node.settable, node.is_true) == (True, holds)


def test_unknown_attribute_or_draining_pilot_makes_node_not_settable(grid: Grid) -> None:
    other, drained = grid.start_pilot(), grid.start_pilot()
    other.show(a_partitionable_slot(1), settable_attributes=("StartJobs",))
    drained.show(a_partitionable_slot(1), settable_attributes=(FLAG,))
    grid.drain(drained)
    assert [node.settable for node in node_use(grid).nodes] == [False, False]


def test_waiting_jobs_are_counted_by_cores_for_present_nodes(grid: Grid) -> None:
    grid.submit(count=5, request_cpus=1)
    grid.submit(count=2, request_cpus=8)
    grid.submit(count=3, request_cpus=8, sites=["Lyon"])
    assert node_use(grid).widths == {}, "no node is there"
    grid.start_pilot().show(a_partitionable_slot(0))
    assert node_use(grid).widths == {1: 5, 8: 2}
    grid.start_pilot(OTHER).show(a_partitionable_slot(0))
    assert node_use(grid).widths == {1: 5, 8: 5}
    assert node_use(grid, LONG).widths == {1: 5, 8: 2}


def test_waiting_jobs_are_grouped_by_eligible_queues(grid: Grid) -> None:
    for queue in (LONG, OTHER):
        grid.start_pilot(queue).show(a_partitionable_slot(0))
    grid.submit(count=5, request_cpus=8)
    grid.submit(count=2, request_cpus=8, sites=["Lyon"])
    grid.submit(count=3, request_cpus=8, sites=["Lyon"], request_memory_mib=1)
    found = node_use(grid)
    assert found.queues == (QueueId.parse(LONG), QueueId.parse(OTHER))
    assert found.waiting == (WaitingByCpus(8, 5, (0, 1)), WaitingByCpus(8, 5, (1,)))
    assert [part.queue for node in found.nodes for part in node.parts] == [0, 1]


def test_shared_node_is_settable_for_its_first_queue_only(grid: Grid) -> None:
    first, second = grid.start_pilot(LONG), grid.start_pilot(SHORT)
    for pilot in (first, second):
        pilot.show(a_partitionable_slot(0), name="n1", settable_attributes=(FLAG,))
    assert [
        node.settable for queues in ((LONG,), (SHORT,), (SHORT, LONG), ()) for node in node_use(grid, *queues).nodes
    ] == [
        True,
        False,
        True,
        True,
    ]
    (node,) = node_use(grid, SHORT).nodes
    assert len(node.parts) == 1, "its jobs count all the same"


def test_jobs_do_not_wait_for_nodes_of_a_banned_queue(grid: Grid, clock: VirtualClock) -> None:
    grid.submit(count=5)
    grid.start_pilot().show(a_partitionable_slot(0))
    grid.state.bans = (Ban("CERN", None, None, "power cut", clock() + timedelta(hours=1)),)
    assert node_use(grid).widths == {}
    assert len(node_use(grid).nodes) == 1


def test_only_nodes_of_requested_queues_are_shown(grid: Grid) -> None:
    cern_pilot, lyon_pilot = grid.start_pilot(), grid.start_pilot(OTHER)
    for pilot in (cern_pilot, lyon_pilot):
        pilot.show(a_partitionable_slot(0))
    assert [node.node for node in node_use(grid, OTHER).nodes] == [node_of(lyon_pilot, "Lyon")]
    assert len(node_use(grid).nodes) == 2


def test_one_call_sets_attribute_on_many_nodes(grid: Grid) -> None:
    nodes = [NodeId("CERN", f"n{number}") for number in range(3)]
    for node in nodes:
        grid.start_pilot().show(a_partitionable_slot(0), name=node.node, settable_attributes=(FLAG,))
    set_flag(grid, "True", *nodes)
    set_flag(grid, "False", nodes[0])
    assert [node.is_true for node in node_use(grid).nodes] == [False, True, True]


def test_node_use_names_agent_while_its_leadership_lasts(grid: Grid) -> None:
    pilot, leadership = grid.start_pilot(), Leadership("drain controller of */*/*", "one")
    pilot.show(a_partitionable_slot(0), settable_attributes=(FLAG,))
    node = node_of(pilot)

    def setter() -> str:
        return node_use(grid).nodes[0].set_by

    def set_by(agent: str) -> None:
        attributes = ({FLAG.lower(): "True"}, ())
        grid.write(
            lambda transaction, state: set_node_attributes(transaction, state, an_operator(), [node], attributes, agent)
        )

    grid.write(lambda transaction, _: take_leadership(transaction, leadership, timedelta(seconds=30), "here"))
    set_by(leadership.agent)
    assert setter() == leadership.agent
    grid.pass_time(seconds=31)
    assert setter() == "", "its leadership is over"
    grid.write(lambda transaction, _: take_leadership(transaction, leadership, timedelta(seconds=30), "here"))
    assert setter() == leadership.agent
    set_by("")
    assert setter() == "", "a person has set it since"


def test_settings_without_agent_are_read(grid: Grid) -> None:
    node = NodeId("CERN", "n1")
    text = '[["OnlyMulticore", "True", "olga", "2026-01-31T12:00:00+00:00"]]'
    row = {"site": node.site, "node": node.node, "version": 1, "settings_json": text}
    grid.write(lambda transaction, _: transaction.session.execute(insert(metadata.tables["node_settings"]), row))
    setting = grid.read(lambda transaction, _: load_node_settings(transaction.session))[node].get(FLAG)
    assert setting is not None
    assert (setting.expression, setting.set_by, setting.agent) == ("True", "olga", "")


def test_settings_of_thousands_of_nodes_are_stored_and_loaded(grid: Grid) -> None:
    nodes = [NodeId("CERN", f"n{number:04}") for number in range(2500)]

    def store(flag: str, before: dict[NodeId, NodeSettings]) -> bool:
        changed = [
            before.get(node, NodeSettings(node)).changed({FLAG: flag}, (), "agent", grid.clock()) for node in nodes
        ]
        return grid.write(lambda transaction, _: store_node_settings(transaction.session, changed))

    assert store("True", {})
    first = grid.read(lambda transaction, _: load_node_settings(transaction.session, nodes))
    assert list(first) == nodes
    assert store("False", first)
    assert not store("True", first), "they have been changed since"
    second = grid.read(lambda transaction, _: load_node_settings(transaction.session))
    assert [settings.version for settings in second.values()] == [2] * len(nodes)
