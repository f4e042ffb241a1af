"""Jobs whose rank prefers some slots, on nodes whose policies give the slots different attributes."""

from __future__ import annotations

import pytest

from support.site_policies import SitePolicies
from support.virtual_grid import VirtualGrid

SLOTS = range(1, 6)
DATA_SETS = "\n".join(
    ["NUM_SLOTS = 5", "MachineDataSet = 0", "STARTD_ATTRS = MachineDataSet"]
    + [f"SLOT{slot}_MachineDataSet = {slot * 10}" for slot in SLOTS]
)


@pytest.mark.parametrize("in_one_call", [False, True], ids=["one by one", "in one call"])
def test_slots_per_slot_value_overrides(grid: VirtualGrid, policies: SitePolicies, in_one_call: bool) -> None:
    policy = policies.written(DATA_SETS)
    if not in_one_call:
        grid.node(policy, cpus=5)
    jobs = {slot: grid.submit(60, rank=f"TARGET.MachineDataSet == {slot * 10}") for slot in reversed(SLOTS)}
    if in_one_call:
        grid.node(policy, cpus=5)
    grid.pass_time(5)
    assert {slot: grid.place(job) for slot, job in jobs.items()} == {slot: f"node1/slot{slot}" for slot in SLOTS}
    task_queues = {grid.job(job).task_queue_id for job in jobs.values()}
    assert len(task_queues) == len(jobs)


def test_job_takes_next_best_slot_when_the_preferred_one_is_busy(grid: VirtualGrid, policies: SitePolicies) -> None:
    grid.node(policies.written(DATA_SETS), cpus=5)
    first, second = (grid.submit(60, rank="TARGET.MachineDataSet") for _ in range(2))
    grid.pass_time(5)
    assert [grid.place(first), grid.place(second)] == ["node1/slot5", "node1/slot4"]
