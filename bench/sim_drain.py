"""A farm of 1,000 nodes with the jobs of real logs in virtual time, with and without the drain controller.

Prints JSON lines and writes docs/how-to/draining.svg at full size.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import structlog

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.figures import Figure, at_least, at_most, measured
from harness.setting import Setting, bench, shared_data
from harness.time_plot import TimePanel, time_drawing
from pilotage_agents.drain_controller.controller import DrainController
from pilotage_agents.drain_controller.settings import DrainControllerSettings
from support.simulated_farm import (
    CORES,
    FULL_SIZE,
    MULTICORE_FROM_S,
    WIDTH,
    MixedLoad,
    Sample,
    SimulatedFarm,
    run_controller,
)

END_S = MULTICORE_FROM_S + 40 * 3600
SAMPLED_EVERY_S = 600.0
PART_FOR_MULTICORE = 4
PLOT = Path(__file__).parents[1] / "docs" / "how-to" / "draining.svg"


def figures(setting: Setting) -> Iterator[Figure]:
    """Simulate the farm with the controller and without."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    load = MixedLoad(shared_data() / "data" / "traces", setting.size(FULL_SIZE, 20))
    cores = load.nodes * CORES
    setpoint = cores // PART_FOR_MULTICORE
    jobs = list(load.jobs())
    drained, left_alone = (SimulatedFarm(load.nodes, CORES, jobs) for _ in range(2))
    controller = DrainController(DrainControllerSettings(setpoint=setpoint), drained, drained)
    asyncio.run(run_controller(drained, controller, END_S))
    while left_alone.now_s < END_S:
        left_alone.pass_time(SAMPLED_EVERY_S)
    yield measured("drain: cores that multicore jobs should have", setpoint, "cores")
    yield at_least("drain: cores that they have in the end", _multicore(drained), "cores", 0.95 * setpoint)
    most = max(sample.multicore_jobs for sample in drained.samples) * WIDTH
    yield at_most("drain: most cores that they had", most, "cores", 1.02 * setpoint)
    yield measured("drain: cores that they have without drains", _multicore(left_alone), "cores")
    yield measured("drain: most cores that were free for it", _most_free(drained.samples, cores), "cores")
    if setting.scale >= 1:
        titles = {"with the drain controller": drained, "without": left_alone}
        PLOT.write_text(time_drawing([[_panel(title, farm, cores, setpoint) for title, farm in titles.items()]]))


def _multicore(farm: SimulatedFarm) -> int:
    return farm.samples[-1].multicore_jobs * WIDTH


def _most_free(samples: Sequence[Sample], cores: int) -> int:
    """Return the most cores that were free while single-core jobs waited for them."""
    waited = (sample for sample in samples if sample.single_core_waiting)
    return max(cores - sample.multicore_jobs * WIDTH - sample.single_core_jobs for sample in waited)


def _panel(title: str, farm: SimulatedFarm, cores: int, setpoint: int) -> TimePanel:
    samples = farm.samples
    lines = {
        "multicore jobs": [(each.time_s / 3600, each.multicore_jobs * WIDTH) for each in samples],
        "single-core jobs": [(each.time_s / 3600, each.single_core_jobs) for each in samples],
    }
    return TimePanel(f"cores in use, {title}", lines, cores, setpoint)


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
