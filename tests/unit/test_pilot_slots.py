"""How a node's share is divided, with what DIRAC's pool CE asserts of the same questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.jobs import AttemptKey
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.slots import Activity, Partition, SlotState
from support.pilot_bench import BOOT_S, START

NOW = Moment(START, BOOT_S)

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


def a_partition(cpus: int, memory_mib: int = 0, gpus: int = 0) -> Partition:
    return Partition(Amounts(cpus, memory_mib, 0, gpus), tuple(f"gpu{n}" for n in range(gpus)), NOW)


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
        partition = a_partition(resource["processors"], resource["ram_mb"])
        for number, cpus in enumerate(resource["processors_in_use"], start=1):
            memory = resource["ram_in_use"][number - 1] if number <= len(resource["ram_in_use"]) else 0
            assert partition.carve(AttemptKey(number, 1), Amounts(cpus, memory), NOW) is not None
        asked = case["jobs"][0]["requirements"]
        amounts = Amounts(asked.get("numberOfProcessors", 1), asked.get("MaxRAM", asked.get("MinRAM", 0)))
        slot = partition.carve(AttemptKey(100, 1), amounts, NOW)
        assert (slot is not None) == expected["fits"], name
        if slot is not None:
            assert (slot.amounts.cpus, slot.amounts.memory_mib) == (expected["processors"], expected["ram_mb"]), name


def test_a_job_for_all_cores_waits_until_the_node_is_empty() -> None:
    partition = a_partition(4)
    for number, cpus in ((1, 2), (2, 2)):
        assert partition.carve(AttemptKey(number, 1), Amounts(cpus), NOW)
    for number in (1, 2):
        partition.release(AttemptKey(number, 1))
    assert partition.carve(AttemptKey(3, 1), Amounts(1), NOW)
    assert partition.carve(AttemptKey(4, 1), Amounts(4), NOW) is None
    partition.release(AttemptKey(3, 1))
    assert partition.carve(AttemptKey(4, 1), Amounts(4), NOW)


def test_slots_are_named_after_the_slot_that_they_are_carved_from_and_names_come_again() -> None:
    partition = a_partition(3)
    keys = [AttemptKey(number, 1) for number in (1, 2, 3)]
    names = [slot.name for key in keys if (slot := partition.carve(key, Amounts(1), NOW))]
    assert names == ["slot1_1", "slot1_2", "slot1_3"]
    partition.release(keys[1])
    again = partition.carve(AttemptKey(4, 1), Amounts(1), NOW)
    assert again is not None
    assert again.name == "slot1_2"


def test_a_payload_that_has_ended_keeps_only_its_disk_until_its_files_are_safe() -> None:
    partition = Partition(Amounts(2, 100, 50, 1), ("0",), NOW)
    key = AttemptKey(1, 1)
    partition.carve(key, Amounts(2, 100, 30, 1), NOW)
    partition.keep_disk_only(key)
    assert partition.free == Amounts(2, 100, 20, 1)
    partition.release(key)
    assert partition.free == partition.share


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(0, 500), st.integers(0, 2)), max_size=40))
def test_slots_never_exceed_the_share(steps: list[tuple[int, int, int, int]]) -> None:
    partition = a_partition(8, 1000, 3)
    for job_id, cpus, memory, gpus in steps:
        key = AttemptKey(job_id, 1)
        if partition.of(key) is None:
            partition.carve(key, Amounts(cpus, memory, 0, gpus), NOW)
        else:
            partition.release(key)
        partition.validate()


def test_a_state_that_htcondor_does_not_know_is_not_shown() -> None:
    with pytest.raises(AssertionError):
        a_partition(1).show(None, SlotState.UNCLAIMED, Activity.BUSY, NOW)
