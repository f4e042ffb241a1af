"""How a node's share is divided, with what DIRAC's pool CE asserts of the same questions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey
from pilotage_pilot.core.instructions import PrepareJob, Slot
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.node.node_slots import NodeSlots
from support.pilot_bench import BOOT_S, START, a_job, built_in_slots

NOW = Now(START, BOOT_S)

# What our jobs say in other words: a job states the cores and the memory that it needs, once. DIRAC's ranges (a
# maximum beside the minimum) and its request for a whole node, whatever its size, have no counterpart here.
NOT_OURS = {
    "slot-allocation-09": "a range of processors: our jobs state one number",
    "slot-allocation-10": "a range of processors: our jobs state one number",
    "slot-allocation-11": "a whole node of any size: asked for by its cores here",
    "slot-allocation-15": "a range of processors: our jobs state one number",
    "slot-allocation-20": "20 of 16 processors are in use there: that cannot come about here",
    "whole-node-refused-while-busy-then-accepted": "a whole node of any size; told again below with its cores",
}


def a_node(cpus: int, memory_mib: int = 0, disk_mib: int = 0, gpus: int = 0) -> NodeSlots:
    return built_in_slots(Amounts(cpus, memory_mib, disk_mib, gpus), NOW)


def enter(node: NodeSlots, job_id: int, amounts: Amounts) -> Slot | None:
    """Put a job of this size into a dynamic slot; None = there is no room."""
    entered = node.enter("slot1", replace(a_job(job_id), amounts=amounts), NOW)
    return entered.slot if isinstance(entered, PrepareJob) else None


def leave(node: NodeSlots, job_id: int) -> None:
    node.job_ended(AttemptKey(job_id, 1), NOW)


def free(node: NodeSlots) -> Amounts:
    return node.slots()[0].free


def facts(shared_data: Path) -> list[dict[str, Any]]:
    cases = json.loads((shared_data / "cases" / "dirac-matching.json").read_text())["cases"]
    return [case for case in cases if case["kind"] in ("slot_allocation", "slot_sequence")]


def test_what_dirac_says_of_slots_holds_where_our_jobs_can_say_it(shared_data: Path) -> None:
    told = {case["name"]: case for case in facts(shared_data)}
    assert set(NOT_OURS) < set(told)
    for name, case in told.items():
        if name in NOT_OURS:
            continue
        resource, expected = case["resource"], case["expected"]
        node = a_node(resource["processors"], resource["ram_mb"])
        for number, cpus in enumerate(resource["processors_in_use"], start=1):
            memory = resource["ram_in_use"][number - 1] if number <= len(resource["ram_in_use"]) else 0
            assert enter(node, number, Amounts(cpus, memory)) is not None
        asked = case["jobs"][0]["requirements"]
        amounts = Amounts(asked.get("numberOfProcessors", 1), asked.get("MaxRAM", asked.get("MinRAM", 0)))
        slot = enter(node, 100, amounts)
        assert (slot is not None) == expected["fits"], name
        if slot is not None:
            assert (slot.amounts.cpus, slot.amounts.memory_mib) == (expected["processors"], expected["ram_mb"]), name


def test_a_job_for_all_cores_waits_until_the_node_is_empty() -> None:
    node = a_node(4)
    for number in (1, 2):
        assert enter(node, number, Amounts(2))
    for number in (1, 2):
        leave(node, number)
    assert enter(node, 3, Amounts(1))
    assert enter(node, 4, Amounts(4)) is None
    leave(node, 3)
    assert enter(node, 4, Amounts(4))


def test_slots_are_named_after_the_slot_that_they_are_carved_from_and_names_come_again() -> None:
    node = a_node(3)
    names = [slot.name for number in (1, 2, 3) if (slot := enter(node, number, Amounts(1)))]
    assert names == ["slot1_1", "slot1_2", "slot1_3"]
    leave(node, 2)
    again = enter(node, 4, Amounts(1))
    assert again is not None
    assert again.name == "slot1_2"


def run(node: NodeSlots, job_id: int, amounts: Amounts) -> None:
    assert enter(node, job_id, amounts)
    node.job_started(AttemptKey(job_id, 1), NOW)


def test_a_payload_that_has_ended_keeps_only_its_disk_until_its_files_are_safe() -> None:
    node = a_node(2, 100, 50, 1)
    run(node, 1, Amounts(2, 100, 30, 1))
    node.job_ended(AttemptKey(1, 1), NOW, keeps_disk_mib=30)
    node.release(("slot1_1",), "nobody wants it", NOW)
    assert free(node) == Amounts(2, 100, 20, 1)
    node.release_disk(AttemptKey(1, 1))
    assert free(node) == node.total
    node.validate()


def test_disk_whose_files_are_safe_is_its_slots_again_as_long_as_that_is_there() -> None:
    node = a_node(2, 100, 50)
    run(node, 1, Amounts(1, 100, 30))
    node.job_ended(AttemptKey(1, 1), NOW, keeps_disk_mib=30)
    assert node.slots()[1].amounts == Amounts(1, 100, 0)
    node.release_disk(AttemptKey(1, 1))
    assert node.slots()[1].amounts == Amounts(1, 100, 30)
    node.validate()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(0, 500), st.integers(0, 2)), max_size=40))
def test_slots_never_exceed_the_share(steps: list[tuple[int, int, int, int]]) -> None:
    node = a_node(8, 1000, 100, 3)
    for job_id, cpus, memory, gpus in steps:
        key = AttemptKey(job_id, 1)
        if node.of(key) is None:
            node.release_disk(key)
            enter(node, job_id, Amounts(cpus, memory, 10, gpus))
        else:
            node.job_ended(key, NOW, keeps_disk_mib=10)
        node.validate()
