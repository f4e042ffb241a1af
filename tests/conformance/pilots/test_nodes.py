"""Slot ads, constraints on slots, and attributes that operators set on nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from pilotage.classads.evaluation import Ad
from pilotage.errors import InvalidInputError, NotFoundError
from pilotage.values.amounts import Amounts
from pilotage_server.core.attempts.reports import ReportedSlot
from pilotage_server.core.pilots.nodes import NodeId, NodeSettings
from pilotage_server.core.pilots.slot_counts import SlotTotal
from pilotage_server.operations.attempts.pilot_calls import ReportNode
from pilotage_server.operations.pilots.nodes import (
    count_slots,
    list_node_attributes,
    list_slots,
    request_reports,
    set_node_attributes,
)
from pilotage_server.storage.database.engine import Database
from support.grid import Grid, Pilot, a_busy_slot, an_idle_slot
from support.jobs import an_operator
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

WHOLE = "[SlotID = 9; CAN_RUN_WHOLE_MACHINE = SlotID == 9; Memory = 16054; Cpus = 8]"


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


@pytest.fixture
def pilot(grid: Grid) -> Pilot:
    """Return a pilot whose policy lets OnlyMulticore be set."""
    pilot = grid.start_pilot()
    pilot.show(an_idle_slot(), settable_attributes=("OnlyMulticore", "StartJobs"))
    return pilot


def node_of(pilot: Pilot) -> NodeId:
    return NodeId("CERN", f"node-of-{pilot.stamp}")


def change(grid: Grid, pilot: Pilot, new: Mapping[str, str], unset: Sequence[str] = ()) -> NodeSettings:
    """Set and unset attributes of a pilot's node and return its settings."""
    nodes = [node_of(pilot)]
    (settings,) = grid.write(
        lambda transaction, state: set_node_attributes(transaction, state, an_operator(), nodes, (new, unset))
    )
    return settings


def with_ad(slot: ReportedSlot, ad: str) -> ReportedSlot:
    return ReportedSlot(slot.name, slot.state, slot.activity, slot.amounts, slot.free, ad=ad)


def names_of(grid: Grid, constraint: str = "") -> list[str]:
    return [
        slot.info.slot.name for slot in grid.read(lambda transaction, _: list_slots(transaction, constraint=constraint))
    ]


def test_constraint_selects_slots_by_their_ads(grid: Grid) -> None:
    grid.start_pilot().show(an_idle_slot("slot1"), with_ad(an_idle_slot("slot9", 8), WHOLE))
    assert names_of(grid) == ["slot1", "slot9"]
    assert names_of(grid, "CAN_RUN_WHOLE_MACHINE =!= True") == ["slot1"]
    assert names_of(grid, "CAN_RUN_WHOLE_MACHINE") == ["slot9"]
    assert names_of(grid, 'State == "Unclaimed" && Cpus == 8 && Site == "CERN"') == ["slot9"]


@pytest.mark.parametrize("constraint", ["1", '"true"', "NoSuchAttribute", "1 / 0"])
def test_only_boolean_true_passes_constraint(grid: Grid, constraint: str) -> None:
    grid.start_pilot().show(an_idle_slot())
    assert names_of(grid, constraint) == []


def test_invalid_constraint_is_refused(grid: Grid) -> None:
    with pytest.raises(InvalidInputError) as caught:
        names_of(grid, "Cpus ==")
    assert [violation.where for violation in caught.value.violations] == ["constraint"]


def test_slot_keeps_its_ad_and_gets_latest_state(grid: Grid) -> None:
    pilot = grid.start_pilot()
    pilot.show(with_ad(an_idle_slot("slot9", 8), WHOLE))
    pilot.show(a_busy_slot("slot9", 8))
    (listed,) = grid.read(lambda transaction, _: list_slots(transaction, ads_wanted=True))
    ad = Ad.read(listed.ad)
    assert (ad.value("SlotID"), ad.value("CAN_RUN_WHOLE_MACHINE")) == (9, True)
    assert (ad.value("State"), ad.value("Activity"), ad.value("JobId")) == ("Claimed", "Busy", "1")


def test_slot_ads_have_node_attributes_and_load(grid: Grid) -> None:
    idle = an_idle_slot("slot9", 8)
    loaded = replace(with_ad(idle, WHOLE), load=0.5, attributes={"LoadAvg": 0.5, "KeyboardIdle": 7})
    grid.start_pilot().show(loaded, attributes={"PolicyFault": "line 3", "Cpus": 99, "ShareFrom": ("a", "b")})
    (listed,) = grid.read(lambda transaction, _: list_slots(transaction, ads_wanted=True))
    ad = Ad.read(listed.ad)
    assert [ad.value(name) for name in ("LoadAvg", "KeyboardIdle", "PolicyFault", "Cpus")] == [0.5, 7, "line 3", 8]
    assert names_of(grid, 'member("b", ShareFrom)') == ["slot9"]


def test_requested_report_is_ordered_until_the_slots_arrive(grid: Grid, pilot: Pilot) -> None:
    def request(node: NodeId) -> tuple[str, ...]:
        return grid.write(lambda transaction, state: request_reports(transaction, state, node))

    def answered() -> list[datetime | None]:
        node = node_of(pilot)
        return [slot.info.answered for slot in grid.read(lambda transaction, _: list_slots(transaction, node=node))]

    other = grid.start_pilot()
    other.show(an_idle_slot("slot2"))
    with pytest.raises(NotFoundError, match="live pilot on node"):
        request(NodeId("CERN", "nowhere"))
    notified: list[str] = []
    grid.state.command_listeners.append(notified.append)
    assert request(node_of(pilot)) == (pilot.stamp,)
    assert notified == [pilot.stamp]
    requested = grid.clock()
    assert pilot.request_jobs().commands == (ReportNode(),)
    grid.pass_time(seconds=3)
    assert pilot.beat().commands == (ReportNode(),)
    assert answered() == [None]
    assert pilot.show(an_idle_slot("slot1"), an_idle_slot("slot3")).commands == ()
    assert answered() == [requested + timedelta(seconds=3)] * 2
    grid.pass_time(seconds=3)
    assert (pilot.show(an_idle_slot("slot1")).commands, other.beat().commands) == ((), ())
    assert answered() == [requested + timedelta(seconds=3)], "later reports answer no request"


def test_node_settings_are_sent_once_to_pilots_of_that_node(grid: Grid, pilot: Pilot) -> None:
    assert change(grid, pilot, {"OnlyMulticore": "True"}).expressions == {"OnlyMulticore": "True"}
    sent = pilot.beat().node_settings
    assert sent is not None
    assert (sent.version, sent.expressions) == (1, {"OnlyMulticore": "True"})
    assert pilot.beat(node_settings_version=1).node_settings is None
    other_pilot = grid.restarted().start_pilot()
    answer = other_pilot.show(an_idle_slot())
    assert answer.node_settings is None, "another node"


def test_unsetting_attributes_increases_version(grid: Grid, pilot: Pilot) -> None:
    change(grid, pilot, {"OnlyMulticore": "True", "StartJobs": "False"})
    remaining = change(grid, pilot, {}, ["onlymulticore"])
    assert (remaining.version, remaining.expressions) == (2, {"StartJobs": "False"})
    change(grid, pilot, {}, ["StartJobs"])
    sent = pilot.beat(node_settings_version=2).node_settings
    assert sent is not None
    assert (sent.version, sent.expressions) == (3, {})
    assert grid.read(lambda transaction, _: list_node_attributes(transaction)) == ()


def test_node_settings_are_listed_with_their_operator(grid: Grid, pilot: Pilot) -> None:
    change(grid, pilot, {"OnlyMulticore": "True"})
    (settings,) = grid.read(lambda transaction, _: list_node_attributes(transaction))
    (setting,) = settings.settings
    assert (settings.node, setting.name, setting.set_by) == (node_of(pilot), "OnlyMulticore", an_operator().owner)


def test_unsettable_attribute_changes_no_node(grid: Grid, pilot: Pilot) -> None:
    other = grid.start_pilot()
    other.show(an_idle_slot())
    nodes = [node_of(pilot), node_of(other)]
    with pytest.raises(InvalidInputError) as caught:
        grid.write(
            lambda transaction, state: set_node_attributes(
                transaction, state, an_operator(), nodes, ({"OnlyMulticore": "True", "START": "False"}, ())
            )
        )
    assert sorted(violation.where for violation in caught.value.violations) == [
        "set.OnlyMulticore",
        "set.START",
        "set.START",
    ]
    assert pilot.beat().node_settings is None


def test_node_without_live_pilot_can_only_be_unset(grid: Grid, pilot: Pilot) -> None:
    change(grid, pilot, {"OnlyMulticore": "True"})
    pilot.beat(ending=True)
    with pytest.raises(NotFoundError):
        change(grid, pilot, {"OnlyMulticore": "False"})
    assert change(grid, pilot, {}, ["OnlyMulticore"]).expressions == {}


@pytest.mark.parametrize("expression", ["True &&", "random(8)", "(" * 60 + "1" + ")" * 60])
def test_invalid_expression_is_refused_with_its_name(grid: Grid, pilot: Pilot, expression: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        change(grid, pilot, {"OnlyMulticore": expression})
    assert [violation.where for violation in caught.value.violations] == ["set.OnlyMulticore"]


def test_slots_are_counted_by_node_and_condition(grid: Grid) -> None:
    divided = replace(an_idle_slot("slot9", 8), free=Amounts(), partitionable=True)
    open_one = replace(an_idle_slot("slot8", 8), free=Amounts(3), partitionable=True)
    first, second = grid.start_pilot(), grid.start_pilot()
    first.show(a_busy_slot("slot1", 2), a_busy_slot("slot2"), divided, name="n2")
    second.show(open_one, name="n1")
    site = node_of(first).site
    here, there = grid.read(lambda transaction, _: count_slots(transaction, site))
    assert (here.node, there.node) == (NodeId(site, "n1"), NodeId(site, "n2"))
    assert here.counts == {("Unclaimed", "Idle", False): SlotTotal(1, 3)}
    assert there.counts == {("Claimed", "Busy", False): SlotTotal(2, 3), ("Unclaimed", "Idle", True): SlotTotal(1, 0)}
    assert not here.draining
    assert grid.read(lambda transaction, _: count_slots(transaction, "NOWHERE")) == ()
