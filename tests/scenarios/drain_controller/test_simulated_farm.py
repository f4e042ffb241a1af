"""The drain controller on a simulated farm with jobs from real traces; `make sim-drain` runs the whole traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage_agents.drain_controller.controller import DrainController
from pilotage_agents.drain_controller.settings import DrainControllerSettings
from support.shared_data import TracedJob
from support.simulated_farm import CORES, MULTICORE_FROM_S, MixedLoad, SimulatedFarm, run_controller

NODES = 100
GOAL = 50
HOUR_S = 3600.0


@pytest.fixture(scope="module")
def jobs(shared_data: Path) -> list[TracedJob]:
    return list(MixedLoad(shared_data / "data" / "traces", NODES).jobs())


@pytest.fixture
def farm(jobs: list[TracedJob]) -> SimulatedFarm:
    return SimulatedFarm(NODES, CORES, jobs)


def a_controller(farm: SimulatedFarm, jobs: int) -> DrainController:
    """Return a controller whose setpoint is this number of multicore jobs."""
    return DrainController(DrainControllerSettings(setpoint=8 * jobs), farm, farm)


async def test_multicore_jobs_reach_and_keep_the_setpoint(farm: SimulatedFarm) -> None:
    await run_controller(farm, a_controller(farm, GOAL), MULTICORE_FROM_S + 24 * HOUR_S)
    late = [sample for sample in farm.samples if sample.time_s > MULTICORE_FROM_S + 18 * HOUR_S]
    assert all(0.9 * GOAL <= sample.multicore_jobs <= GOAL for sample in late)
    assert all(sample.multicore_waiting and sample.single_core_waiting for sample in late)


async def test_draining_nodes_never_exceed_missing_multicore_jobs(farm: SimulatedFarm) -> None:
    await run_controller(farm, a_controller(farm, GOAL), MULTICORE_FROM_S + 6 * HOUR_S)
    assert max(sample.draining_nodes for sample in farm.samples) > GOAL // 2
    # A node that has its multicore job and is not yet released counts as both.
    assert all(sample.draining_nodes <= max(0, GOAL - sample.multicore_jobs) + 8 for sample in farm.samples)


async def test_multicore_jobs_starve_without_drains(farm: SimulatedFarm) -> None:
    farm.pass_time(MULTICORE_FROM_S + 20 * HOUR_S)
    assert farm.samples[-1].multicore_jobs < GOAL // 5
    assert farm.samples[-1].multicore_waiting > GOAL


async def test_lower_setpoint_cancels_drains_without_evictions(farm: SimulatedFarm) -> None:
    await run_controller(farm, a_controller(farm, GOAL), MULTICORE_FROM_S + 2 * HOUR_S)
    before = farm.samples[-1]
    assert before.draining_nodes
    await a_controller(farm, 0).run_once()
    farm.pass_time(0)
    after = farm.samples[-1]
    assert after.draining_nodes == 0
    assert after.multicore_jobs >= before.multicore_jobs
