"""The pie that quotas are parts of: overlapping slots count once, weights count, what is taken counts in its part."""

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

SEED = "CAN_RUN_WHOLE_MACHINE == False"


def a_slot(cpus: int, ad: str = "", state: str = "Unclaimed") -> SlotInfo:
    """Return a static slot with this ad."""
    amounts = Amounts(cpus)
    return SlotInfo(
        ReportedSlot("slot1", state, "Idle", amounts, amounts, ad=ad), "n1", "p1", QueueId("A", "ce", "q"), START
    )


def a_whole_machine_node() -> list[SlotInfo]:
    """Return eight slots of one core each and the one that is all of them."""
    singles = [a_slot(1, "[ CAN_RUN_WHOLE_MACHINE = false ]") for _ in range(8)]
    return [*singles, a_slot(8, "[ CAN_RUN_WHOLE_MACHINE = true ]", "Owner")]


def test_a_whole_machine_slot_is_left_out_of_the_pie() -> None:
    assert pool_size(a_whole_machine_node(), "", START) == 16
    assert pool_size(a_whole_machine_node(), SEED, START) == 8
    among_others = [*a_whole_machine_node(), a_slot(4)]
    assert pool_size(among_others, SEED, START) == 8
    assert pool_size(among_others, "CAN_RUN_WHOLE_MACHINE =!= True", START) == 12


def test_a_slots_own_policy_says_whether_it_counts_where_operators_say_nothing() -> None:
    own = f"GroupDynamicMachConstraint = {SEED}"
    single, whole = (a_slot(2, f"[ CAN_RUN_WHOLE_MACHINE = {is_whole}; {own} ]") for is_whole in ("false", "true"))
    assert pool_size([single, whole], "", START) == 2
    assert pool_size([single, whole], "CAN_RUN_WHOLE_MACHINE", START) == 2
    assert pool_size([single, whole, a_slot(3)], "true", START) == 7
    assert (
        pool_size(
            [a_slot(2, f"[ GroupDynamicMachConstraint = {each} ]") for each in ("1", '"true"', "error")], "", START
        )
        == 0
    )


def test_a_constraint_sees_what_the_slots_of_a_node_show_each_other() -> None:
    ad = '[ SlotID = 1; SharedSlotAttributes = "State" ]'
    assert pool_size([a_slot(3, ad, "Owner")], 'slot1_State == "Owner"', START) == 3
    assert pool_size([a_slot(3, ad)], 'slot1_State == "Owner"', START) == 0


@pytest.mark.parametrize("ad", ["", "[ CAN_RUN_WHOLE_MACHINE = 1 ]", '[ CAN_RUN_WHOLE_MACHINE = "no" ]'])
def test_a_slot_of_which_the_constraint_is_not_true_itself_does_not_count(ad: str) -> None:
    assert pool_size([a_slot(4, ad)], SEED, START) == 0


@pytest.mark.parametrize(
    ("weight", "counts"),
    [
        ("Cpus * 1.5", 6),
        ("0", 0),
        ("-1", 4),
        ("undefined", 4),
        ('"much"', 4),
        ("true", 4),
        ('real("INF")', 4),
        ('real("NaN")', 4),
        ("1e300", 4),
    ],
)
def test_a_slot_counts_and_is_charged_with_its_weight_and_with_its_cores_where_that_is_no_number(
    weight: str, counts: float
) -> None:
    ad = f"[ SlotWeight = {weight} ]"
    assert pool_size([a_slot(4, ad)], "", START) == counts
    policy = SlotPolicies().policy(SlotOffer("slot1", Amounts(4), ad_changes=ad), QueueId("A", "ce", "q"))
    assert policy is not None
    assert policy.weight(Amounts(4)) == counts


@pytest.mark.parametrize("ad", ["", "[ SlotWeight = Cpus ]"])
def test_a_partitionable_slot_counts_with_what_is_left_of_it(ad: str) -> None:
    whole, part = a_slot(8, ad), a_slot(3)
    left = replace(whole, slot=replace(whole.slot, partitionable=True, free=Amounts(5)))
    assert pool_size([left, part], "", START) == 8
