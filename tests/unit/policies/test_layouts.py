"""Slots as a policy lays them out, and which of a policy's texts holds for a slot."""

from __future__ import annotations

import pytest

from pilotage.errors import InvalidInputError
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.policy import Policy, SlotKey
from pilotage_pilot.core.slots.layout import lay_out, layout_change

NODE = Amounts(cpus=8, memory_mib=16000)


def _layout(**texts: str) -> list[tuple[int, int]]:
    policy = Policy({name.lower(): text for name, text in texts.items()})
    return [(slot.amounts.cpus, slot.amounts.memory_mib) for slot in lay_out(policy, NODE).slots]


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ("cpus=2, mem=4000", (2, 4000)),
        ("cpus = 2 memory=25%", (2, 4000)),
        ("c=1/4;ram=1/2", (2, 8000)),
        ("50%", (4, 8000)),
        ("1/8", (1, 2000)),
        ("auto", (8, 16000)),
        ("cpus=3, swap=10%", (3, 16000)),
        ("CPUS=100%", (8, 16000)),
    ],
)
def test_a_slot_types_sizes_are_read(spec: str, size: tuple[int, int]) -> None:
    assert _layout(SLOT_TYPE_1=spec, NUM_SLOTS_TYPE_1="1") == [size]


def test_slots_are_numbered_by_their_types_and_share_what_is_left() -> None:
    layout = _layout(SLOT_TYPE_2="cpus=4, mem=10000", NUM_SLOTS_TYPE_2="1", NUM_SLOTS_TYPE_1="2")
    assert layout == [(2, 3000), (2, 3000), (4, 10000)]


def test_a_policy_may_give_out_more_than_there_is() -> None:
    layout = _layout(NUM_CPUS="8*2", MEMORY="16000*2", SLOT_TYPE_1="cpus=1", NUM_SLOTS_TYPE_1="16")
    assert layout == [(1, 2000)] * 16


def test_disk_is_shared_out_too_and_its_sizes_have_units() -> None:
    node = Amounts(cpus=8, memory_mib=16000, disk_mib=10_000)
    texts = {"slot_type_1": "disk=25%", "num_slots_type_1": "1", "slot_type_2": "cpus=1, mem=2g, disk=1048576"}
    layout = lay_out(Policy({**texts, "num_slots_type_2": "2", "num_slots_type_3": "2"}), node)
    assert [slot.amounts.disk_mib for slot in layout.slots] == [2500, 1024, 1024, 2726, 2726]
    assert layout.slots[1].amounts.memory_mib == 2048


@pytest.mark.parametrize(
    ("texts", "given"),
    [
        ({"num_slots": "2"}, [(), ()]),
        ({}, [("a", "b", "c", "d")]),
        ({"slot_type_1": "gpus=1", "num_slots_type_1": "3"}, [("a",), ("b",), ("c",)]),
        ({"slot_type_1": "25%", "num_slots_type_1": "4"}, [("a",), ("b",), ("c",), ("d",)]),
        (
            {
                "slot_type_1": "cpus=1, gpus=1",
                "num_slots_type_1": "1",
                "slot_type_2": "cpus=2",
                "num_slots_type_2": "1",
                "num_slots_type_3": "1",
                "slot_type_3_partitionable": "True",
            },
            [("a",), (), ("b", "c", "d")],
        ),
        ({"slot_type_1": "gpus=auto", "num_slots_type_1": "2"}, [("a", "b"), ("c", "d")]),
    ],
)
def test_gpus_go_to_slots_that_ask_and_the_rest_to_partitionable_ones(
    texts: dict[str, str], given: list[tuple[str, ...]]
) -> None:
    layout = lay_out(Policy(texts), Amounts(cpus=8, memory_mib=16000, gpus=4), ("a", "b", "c", "d"))
    assert [slot.gpu_ids for slot in layout.slots] == given
    assert [slot.amounts.gpus for slot in layout.slots] == [len(ids) for ids in given]


def test_gpus_are_numbered_where_nobody_names_them() -> None:
    assert lay_out(Policy({}), Amounts(cpus=1, gpus=2)).slots[0].gpu_ids == ("0", "1")


@pytest.mark.parametrize(
    ("texts", "change"),
    [
        ({"num_slots": "2"}, None),
        ({"num_slots": "2", "start": "False"}, None),
        ({"num_slots": "4"}, "4: 4 x 2 cores and 4000 MiB instead of 2: 2 x 4 cores and 8000 MiB"),
        ({"slot_type_1": "50%", "num_slots_type_1": "2"}, "other slots"),
    ],
)
def test_a_layout_that_has_changed_says_how(texts: dict[str, str], change: str | None) -> None:
    said = layout_change(lay_out(Policy({"num_slots": "2"}), NODE), lay_out(Policy(texts), NODE))
    assert said is None if change is None else said is not None and change in said


def test_a_number_of_slots_shares_the_node_equally() -> None:
    assert _layout(NUM_SLOTS="4") == [(2, 4000)] * 4


def test_without_a_layout_any_slot_may_be_asked_about_and_is_the_node() -> None:
    layout = lay_out(Policy({}), NODE)
    assert layout.slots[0].is_partitionable
    assert (layout.slot(5).key, layout.slot(5).amounts.cpus) == (SlotKey(5), 8)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ({"SLOT_TYPE_1": "cpus=4", "NUM_SLOTS_TYPE_1": "3"}, "12 cores, the node has 8"),
        ({"SLOT_TYPE_1": "mem=9000", "NUM_SLOTS_TYPE_1": "2"}, "18000 MiB of memory, the node has 16000"),
        ({"NUM_SLOTS": "9"}, "9 cores, the node has 8"),
        ({"SLOT_TYPE_1": "cpus=many", "NUM_SLOTS_TYPE_1": "1"}, "many is not a size"),
        ({"SLOT_TYPE_1": "cpus=1/0", "NUM_SLOTS_TYPE_1": "1"}, "1/0 is not a size"),
        ({"SLOT_TYPE_1": "cpus=-1", "NUM_SLOTS_TYPE_1": "1"}, "-1 is not a size"),
        ({"SLOT_TYPE_1": "cpus=2g", "NUM_SLOTS_TYPE_1": "1"}, "2g is not a size"),
        ({"SLOT_TYPE_1": "mem=1/2g", "NUM_SLOTS_TYPE_1": "1"}, "1/2g is not a size"),
        ({"SLOT_TYPE_1": "gpus=1", "NUM_SLOTS_TYPE_1": "1"}, "1 GPUs, the node has 0"),
        ({"NUM_CPUS": "hello"}, "NUM_CPUS: hello is not a number"),
        ({"NUM_SLOTS_TYPE_1": "100000"}, "more than 4096"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_the_reason(texts: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        _layout(**texts)


@pytest.mark.parametrize("slot_id", [0, -1, 3])
def test_a_slot_that_is_not_laid_out_does_not_exist(slot_id: int) -> None:
    layout = lay_out(Policy({"num_slots": "2"}), NODE)
    with pytest.raises(InvalidInputError, match=f"no slot {slot_id}"):
        layout.slot(slot_id)


def test_what_holds_for_the_slot_wins_over_its_type_and_that_over_the_rest() -> None:
    policy = Policy({"start": "all", "slot_type_2_start": "type", "slot3_start": "slot", "slot4_isowner": "old"})
    assert policy.text("START", SlotKey(3, 2)) == "slot"
    assert policy.text("START", SlotKey(4, 2)) == "type"
    assert policy.text("START", SlotKey(4, 1)) == "all"
    assert policy.text("START") == "all"
    assert policy.text("IS_OWNER", SlotKey(4, 1)) == "old"
    assert policy.text("RANK", SlotKey(3, 2)) == "0.0"


def test_each_daemons_own_text_wins_where_it_is_the_one_that_evaluates() -> None:
    policy = Policy({"preemption_requirements": "all", "negotiator.preemption_requirements": "negotiator"})
    assert policy.text("PREEMPTION_REQUIREMENTS") == "negotiator"


def test_vanilla_variants_are_part_of_a_policy_only_where_it_says_something() -> None:
    policy = Policy({"suspend_vanilla": "undefined", "preempt_vanilla": "True"})
    assert "SUSPEND_VANILLA" not in policy.expressions()
    assert policy.expressions()["PREEMPT_VANILLA"] == "True"
