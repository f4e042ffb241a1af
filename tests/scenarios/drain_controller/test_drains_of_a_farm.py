"""The drain controller on a simulated farm with the jobs of real logs; `make sim-drain` does it with all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage_agents.drain_controller.controller import DrainController
from pilotage_agents.drain_controller.settings import DrainControllerSettings
from support.shared_data import TracedJob
from support.simulated_farm import CORES, MULTICORE_FROM_S, MixedLoad, SimulatedFarm, controlled

NODES = 100
GOAL = 50
AN_HOUR_S = 3600.0


@pytest.fixture(scope="module")
def jobs(shared_data: Path) -> list[TracedJob]:
    return list(MixedLoad(shared_data / "data" / "traces", NODES).jobs())


@pytest.fixture
def farm(jobs: list[TracedJob]) -> SimulatedFarm:
    return SimulatedFarm(NODES, CORES, jobs)


def a_controller(farm: SimulatedFarm, jobs: int) -> DrainController:
    """Return a controller that aims at so many multicore jobs."""
    return DrainController(DrainControllerSettings(setpoint=8 * jobs), farm, farm)


async def test_multicore_jobs_come_to_have_the_cores_that_they_should_and_keep_them(farm: SimulatedFarm) -> None:
    await controlled(farm, a_controller(farm, GOAL), MULTICORE_FROM_S + 24 * AN_HOUR_S)
    late = [sample for sample in farm.samples if sample.time_s > MULTICORE_FROM_S + 18 * AN_HOUR_S]
    assert all(0.9 * GOAL <= sample.multicore_jobs <= GOAL for sample in late)
    assert all(sample.multicore_waiting and sample.single_core_waiting for sample in late)


async def test_never_do_more_nodes_drain_than_jobs_are_missing(farm: SimulatedFarm) -> None:
    await controlled(farm, a_controller(farm, GOAL), MULTICORE_FROM_S + 6 * AN_HOUR_S)
    assert max(sample.draining_nodes for sample in farm.samples) > GOAL // 2
    # Nodes that have their job, and are not put back yet, count as both.
    assert all(sample.draining_nodes <= max(0, GOAL - sample.multicore_jobs) + 8 for sample in farm.samples)


async def test_without_drains_multicore_jobs_get_next_to_nothing(farm: SimulatedFarm) -> None:
    farm.pass_time(MULTICORE_FROM_S + 20 * AN_HOUR_S)
    assert farm.samples[-1].multicore_jobs < GOAL // 5
    assert farm.samples[-1].multicore_waiting > GOAL


async def test_a_lower_setpoint_cancels_drains_and_leaves_running_jobs_alone(farm: SimulatedFarm) -> None:
    await controlled(farm, a_controller(farm, GOAL), MULTICORE_FROM_S + 2 * AN_HOUR_S)
    before = farm.samples[-1]
    assert before.draining_nodes
    await a_controller(farm, 0).run_once()
    farm.pass_time(0)
    after = farm.samples[-1]
    assert after.draining_nodes == 0
    assert after.multicore_jobs >= before.multicore_jobs
