"""The pool size that quotas are fractions of: overlapping slots count once, each slot by its weight."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pilotage.resources.tree import QueueId
from pilotage.values.amounts import Amounts
from pilotage.values.offers import SlotOffer
from pilotage_server.core.attempts.reports import ReportedSlot
from pilotage_server.core.matching.slot_policy import SlotPolicies
from pilotage_server.core.pilots.pilots import SlotInfo
from pilotage_server.core.pilots.slot_listing import pool_size
from support.virtual_clock import START

NOT_WHOLE_MACHINE = "CAN_RUN_WHOLE_MACHINE == False"


def a_slot(cpus: int, ad: str = "", state: str = "Unclaimed") -> SlotInfo:
    """Return a static slot with this ad."""
    amounts = Amounts(cpus)
    return SlotInfo(
        ReportedSlot("slot1", state, "Idle", amounts, amounts, ad=ad), "n1", "p1", QueueId("A", "ce", "q"), START
    )


def a_whole_machine_node() -> list[SlotInfo]:
    """Return eight slots of one core each, and one slot of all eight cores."""
    singles = [a_slot(1, "[ CAN_RUN_WHOLE_MACHINE = false ]") for _ in range(8)]
    return [*singles, a_slot(8, "[ CAN_RUN_WHOLE_MACHINE = true ]", "Owner")]


def test_constraint_excludes_whole_machine_slot() -> None:
    assert pool_size(a_whole_machine_node(), "", START) == 16
    assert pool_size(a_whole_machine_node(), NOT_WHOLE_MACHINE, START) == 8
    with_another = [*a_whole_machine_node(), a_slot(4)]
    assert pool_size(with_another, NOT_WHOLE_MACHINE, START) == 8
    assert pool_size(with_another, "CAN_RUN_WHOLE_MACHINE =!= True", START) == 12


def test_slot_policy_applies_without_an_operator_constraint() -> None:
    slot_constraint = f"GroupDynamicMachConstraint = {NOT_WHOLE_MACHINE}"
    single, whole = (
        a_slot(2, f"[ CAN_RUN_WHOLE_MACHINE = {is_whole}; {slot_constraint} ]") for is_whole in ("false", "true")
    )
    assert pool_size([single, whole], "", START) == 2
    assert pool_size([single, whole], "CAN_RUN_WHOLE_MACHINE", START) == 2
    assert pool_size([single, whole, a_slot(3)], "true", START) == 7
    assert (
        pool_size(
            [a_slot(2, f"[ GroupDynamicMachConstraint = {value} ]") for value in ("1", '"true"', "error")], "", START
        )
        == 0
    )


def test_constraint_sees_shared_attributes_of_node_slots() -> None:
    ad = '[ SlotID = 1; SharedSlotAttributes = "State" ]'
    assert pool_size([a_slot(3, ad, "Owner")], 'slot1_State == "Owner"', START) == 3
    assert pool_size([a_slot(3, ad)], 'slot1_State == "Owner"', START) == 0


@pytest.mark.parametrize("ad", ["", "[ CAN_RUN_WHOLE_MACHINE = 1 ]", '[ CAN_RUN_WHOLE_MACHINE = "no" ]'])
def test_slot_counts_only_if_constraint_is_exactly_true(ad: str) -> None:
    assert pool_size([a_slot(4, ad)], NOT_WHOLE_MACHINE, START) == 0


@pytest.mark.parametrize(
    ("weight", "size"),
    [
        ("Cpus * 1.5", 6),
        ("0", 0),
        ("-1", 4),
        ("undefined", 4),
        ('"much"', 4),
        ("true", 4),
        ('real("INF")', 4),
        ('real("NaN")', 4),
        ("1e300", 400),
    ],
)
def test_slot_counts_by_its_weight_or_else_by_its_cores(weight: str, size: float) -> None:
    ad = f"[ SlotWeight = {weight} ]"
    assert pool_size([a_slot(4, ad)], "", START) == size
    policy = SlotPolicies().policy(SlotOffer("slot1", Amounts(4), ad_changes=ad), QueueId("A", "ce", "q"))
    assert policy is not None
    assert policy.weight(Amounts(4)) == size


@pytest.mark.parametrize("ad", ["", "[ SlotWeight = Cpus ]"])
def test_partitionable_slot_counts_its_free_part(ad: str) -> None:
    whole, part = a_slot(8, ad), a_slot(3)
    left = replace(whole, slot=replace(whole.slot, partitionable=True, free=Amounts(5)))
    assert pool_size([left, part], "", START) == 8
