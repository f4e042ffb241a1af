"""A grid in virtual time under a trace of jobs: waiting times, shares, utilisation and wasted pilots, as JSON.

With --what-if it runs a second configuration under the same trace, and prints the numbers that differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.time_plot import time_drawing
from pilotage.errors import InvalidInputError
from simulator.configuration import read_configuration
from simulator.grid import SimulatedGrid
from simulator.report import differences, panels, report
from simulator.trace import AD_VALUES, LHCB, at_known_sites, read_trace

EXAMPLE = Path(__file__).parent / "simulator" / "example"


def main() -> int:
    """Run the simulations and print the reports; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=EXAMPLE, help="folder with tree, server.toml and agents.toml")
    parser.add_argument("--what-if", type=Path, help="folder of a second configuration")
    parser.add_argument(
        "--trace",
        default=LHCB,
        help=f'a file of job ads ({AD_VALUES}), an SWF log, or "lhcb" for the queue of LHCb on one day',
    )
    parser.add_argument("--jobs", type=int, default=40_000, help="the largest number of jobs")
    parser.add_argument("--days", type=float, default=4.0, help="the simulated time")
    parser.add_argument("--speedup", type=float, default=1.0, help="the factor of the rate of submissions of a log")
    parser.add_argument("--plot", type=Path, help="an SVG file to write")
    options = parser.parse_args()
    folders = [options.config] if options.what_if is None else [options.config, options.what_if]
    reports, grids = [], {}
    for folder in folders:
        try:
            configuration = read_configuration(folder)
            sites = {queue.site for queue in configuration.tree.queues}
            grid = SimulatedGrid(
                configuration, at_known_sites(read_trace(options.trace, options.jobs, options.speedup), sites)
            )
        except (InvalidInputError, OSError) as error:
            sys.exit(f"sim_grid: {error}")
        start = time.process_time()
        grid.run(options.days * 86400)
        spent_s = time.process_time() - start
        grid.check()
        reports.append(report(grid))
        grids[folder.name] = grid
        speed = round(grid.now_s / spent_s)
        print(json.dumps({"configuration": str(folder), **reports[-1], "cpu_s": spent_s, "times_real_time": speed}))
    if options.what_if is not None:
        for name, (before, after) in differences(reports[0], reports[1]).items():
            print(json.dumps({"differs": name, "before": before, "after": after}))
    if options.plot is not None:
        options.plot.write_text(time_drawing([panels(name, grid) for name, grid in grids.items()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
