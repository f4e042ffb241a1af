"""Jobs that prefer some slots to others, on nodes whose policies tell their slots apart."""

from __future__ import annotations

import pytest

from support.site_policies import SitePolicies
from support.virtual_grid import VirtualGrid

SLOTS = range(1, 6)
DATA_SETS = "\n".join(
    ["NUM_SLOTS = 5", "MachineDataSet = 0", "STARTD_ATTRS = MachineDataSet"]
    + [f"SLOT{slot}_MachineDataSet = {slot * 10}" for slot in SLOTS]
)


@pytest.mark.parametrize("wait", [False, True], ids=["one after the other", "all in one call"])
def test_slots_per_slot_value_overrides(grid: VirtualGrid, policies: SitePolicies, wait: bool) -> None:
    policy = policies.written(DATA_SETS)
    if not wait:
        grid.node(policy, cpus=5)
    jobs = {slot: grid.submit(60, rank=f"TARGET.MachineDataSet == {slot * 10}") for slot in reversed(SLOTS)}
    if wait:
        grid.node(policy, cpus=5)
    grid.pass_time(5)
    assert {slot: grid.place(job) for slot, job in jobs.items()} == {slot: f"node1/slot{slot}" for slot in SLOTS}
    task_queues = {grid.job(job).task_queue_id for job in jobs.values()}
    assert len(task_queues) == len(jobs)


def test_a_job_takes_what_is_free_where_it_does_not_get_what_it_prefers(
    grid: VirtualGrid, policies: SitePolicies
) -> None:
    grid.node(policies.written(DATA_SETS), cpus=5)
    first, second = (grid.submit(60, rank="TARGET.MachineDataSet") for _ in range(2))
    grid.pass_time(5)
    assert [grid.place(first), grid.place(second)] == ["node1/slot5", "node1/slot4"]
