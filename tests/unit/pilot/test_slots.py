"""Division of a node's share into dynamic slots, compared with the assertions of DIRAC's pool CE."""

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

# A job here states one number of cores and one amount of memory. DIRAC's ranges (minimum and maximum) and its
# request for a whole node of any size have no counterpart.
NOT_SUPPORTED = {
    "slot-allocation-09": "a range of processors: jobs here state one number",
    "slot-allocation-10": "a range of processors: jobs here state one number",
    "slot-allocation-11": "a whole node of any size: jobs here request its cores",
    "slot-allocation-15": "a range of processors: jobs here state one number",
    "slot-allocation-20": "20 of 16 processors are in use: impossible here",
    "whole-node-refused-while-busy-then-accepted": "a whole node of any size; tested below with its cores",
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


def test_allocates_slots_as_dirac_does(shared_data: Path) -> None:
    cases = {case["name"]: case for case in facts(shared_data)}
    assert set(NOT_SUPPORTED) < set(cases)
    for name, case in cases.items():
        if name in NOT_SUPPORTED:
            continue
        resource, expected = case["resource"], case["expected"]
        node = a_node(resource["processors"], resource["ram_mb"])
        for number, cpus in enumerate(resource["processors_in_use"], start=1):
            memory = resource["ram_in_use"][number - 1] if number <= len(resource["ram_in_use"]) else 0
            assert enter(node, number, Amounts(cpus, memory)) is not None
        requirements = case["jobs"][0]["requirements"]
        amounts = Amounts(
            requirements.get("numberOfProcessors", 1), requirements.get("MaxRAM", requirements.get("MinRAM", 0))
        )
        slot = enter(node, 100, amounts)
        assert (slot is not None) == expected["fits"], name
        if slot is not None:
            assert (slot.amounts.cpus, slot.amounts.memory_mib) == (expected["processors"], expected["ram_mb"]), name


def test_job_for_all_cores_needs_empty_node() -> None:
    node = a_node(4)
    for number in (1, 2):
        assert enter(node, number, Amounts(2))
    for number in (1, 2):
        leave(node, number)
    assert enter(node, 3, Amounts(1))
    assert enter(node, 4, Amounts(4)) is None
    leave(node, 3)
    assert enter(node, 4, Amounts(4))


def test_dynamic_slots_are_named_after_parent_and_reuse_names() -> None:
    node = a_node(3)
    names = [slot.name for number in (1, 2, 3) if (slot := enter(node, number, Amounts(1)))]
    assert names == ["slot1_1", "slot1_2", "slot1_3"]
    leave(node, 2)
    reused = enter(node, 4, Amounts(1))
    assert reused is not None
    assert reused.name == "slot1_2"


def run(node: NodeSlots, job_id: int, amounts: Amounts) -> None:
    assert enter(node, job_id, amounts)
    node.job_started(AttemptKey(job_id, 1), NOW)


def test_ended_payload_keeps_only_disk_until_files_are_stored() -> None:
    node = a_node(2, 100, 50, 1)
    run(node, 1, Amounts(2, 100, 30, 1))
    node.job_ended(AttemptKey(1, 1), NOW, keeps_disk_mib=30)
    node.release(("slot1_1",), "no job requests it", NOW)
    assert free(node) == Amounts(2, 100, 20, 1)
    node.release_disk(AttemptKey(1, 1))
    assert free(node) == node.total
    node.validate()


def test_released_disk_returns_to_its_slot() -> None:
    node = a_node(2, 100, 50)
    run(node, 1, Amounts(1, 100, 30))
    node.job_ended(AttemptKey(1, 1), NOW, keeps_disk_mib=30)
    assert node.slots()[1].amounts == Amounts(1, 100, 0)
    node.release_disk(AttemptKey(1, 1))
    assert node.slots()[1].amounts == Amounts(1, 100, 30)
    node.validate()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(0, 500), st.integers(0, 2)), max_size=40))
def test_slots_never_exceed_share(steps: list[tuple[int, int, int, int]]) -> None:
    node = a_node(8, 1000, 100, 3)
    for job_id, cpus, memory, gpus in steps:
        key = AttemptKey(job_id, 1)
        if node.of(key) is None:
            node.release_disk(key)
            enter(node, job_id, Amounts(cpus, memory, 10, gpus))
        else:
            node.job_ended(key, NOW, keeps_disk_mib=10)
        node.validate()
