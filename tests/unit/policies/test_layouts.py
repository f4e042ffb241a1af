"""Slot layouts of policies, and the precedence of slot, slot type and general expressions."""

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
def test_reads_sizes_of_slot_type(spec: str, size: tuple[int, int]) -> None:
    assert _layout(SLOT_TYPE_1=spec, NUM_SLOTS_TYPE_1="1") == [size]


def test_slots_are_ordered_by_type_and_share_remaining_resources() -> None:
    layout = _layout(SLOT_TYPE_2="cpus=4, mem=10000", NUM_SLOTS_TYPE_2="1", NUM_SLOTS_TYPE_1="2")
    assert layout == [(2, 3000), (2, 3000), (4, 10000)]


def test_policy_may_overcommit_node() -> None:
    layout = _layout(NUM_CPUS="8*2", MEMORY="16000*2", SLOT_TYPE_1="cpus=1", NUM_SLOTS_TYPE_1="16")
    assert layout == [(1, 2000)] * 16


def test_divides_disk_and_reads_units() -> None:
    node = Amounts(cpus=8, memory_mib=16000, disk_mib=10_000)
    texts = {"slot_type_1": "disk=25%", "num_slots_type_1": "1", "slot_type_2": "cpus=1, mem=2g, disk=1048576"}
    layout = lay_out(Policy({**texts, "num_slots_type_2": "2", "num_slots_type_3": "2"}), node)
    assert [slot.amounts.disk_mib for slot in layout.slots] == [2500, 1024, 1024, 2726, 2726]
    assert layout.slots[1].amounts.memory_mib == 2048


@pytest.mark.parametrize(
    ("texts", "gpu_ids"),
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
def test_gpus_go_to_requesting_then_partitionable_slots(texts: dict[str, str], gpu_ids: list[tuple[str, ...]]) -> None:
    layout = lay_out(Policy(texts), Amounts(cpus=8, memory_mib=16000, gpus=4), ("a", "b", "c", "d"))
    assert [slot.gpu_ids for slot in layout.slots] == gpu_ids
    assert [slot.amounts.gpus for slot in layout.slots] == [len(ids) for ids in gpu_ids]


def test_unnamed_gpus_are_numbered() -> None:
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
def test_describes_change_of_layout(texts: dict[str, str], change: str | None) -> None:
    text = layout_change(lay_out(Policy({"num_slots": "2"}), NODE), lay_out(Policy(texts), NODE))
    assert text is None if change is None else text is not None and change in text


def test_num_slots_divides_node_equally() -> None:
    assert _layout(NUM_SLOTS="4") == [(2, 4000)] * 4


def test_default_layout_is_one_partitionable_slot() -> None:
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
def test_impossible_layout_is_rejected_with_reason(texts: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        _layout(**texts)


@pytest.mark.parametrize("slot_id", [0, -1, 3])
def test_unknown_slot_is_rejected(slot_id: int) -> None:
    layout = lay_out(Policy({"num_slots": "2"}), NODE)
    with pytest.raises(InvalidInputError, match=f"no slot {slot_id}"):
        layout.slot(slot_id)


def test_slot_expression_overrides_type_and_type_overrides_general() -> None:
    policy = Policy({"start": "all", "slot_type_2_start": "type", "slot3_start": "slot", "slot4_isowner": "old"})
    assert policy.text("START", SlotKey(3, 2)) == "slot"
    assert policy.text("START", SlotKey(4, 2)) == "type"
    assert policy.text("START", SlotKey(4, 1)) == "all"
    assert policy.text("START") == "all"
    assert policy.text("IS_OWNER", SlotKey(4, 1)) == "old"
    assert policy.text("RANK", SlotKey(3, 2)) == "0.0"


def test_negotiator_prefix_applies_to_preemption_requirements() -> None:
    policy = Policy({"preemption_requirements": "all", "negotiator.preemption_requirements": "negotiator"})
    assert policy.text("PREEMPTION_REQUIREMENTS") == "negotiator"


def test_undefined_vanilla_variant_is_no_expression() -> None:
    policy = Policy({"suspend_vanilla": "undefined", "preempt_vanilla": "True"})
    assert "SUSPEND_VANILLA" not in policy.expressions()
    assert policy.expressions()["PREEMPT_VANILLA"] == "True"
