"""The rate of /bin/true on one pilot with two slots, from the submission to the last recorded result.

Each job has its own work folder, captured output, lease and result. Server and pilot are started by their commands.
Prints JSON lines; exits 1 if the budget is missed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.end_to_end import pilot_stack
from harness.figures import Figure, at_least, measured
from harness.setting import Setting, bench, scratch

JOBS = 5_000
WARM_UP = 50
SPAWNS = 2_000
OF_PROCESSES = 0.5
"""The budget for the rate of jobs, as a part of the rate of processes alone."""


def figures(setting: Setting) -> Iterator[Figure]:
    """Run the jobs."""
    spawns_per_s = _spawns_per_s(setting.size(SPAWNS, 200))
    yield measured("end-to-end: processes alone", spawns_per_s, "1/s")
    jobs = setting.size(JOBS)
    with scratch() as folder, pilot_stack(folder) as work:
        work.run(WARM_UP)
        run = work.run(jobs)
        name = "end-to-end: /bin/true through two slots"
        yield at_least(name, run.per_s, "jobs/s", OF_PROCESSES * spawns_per_s, profile=run.profile)


def _spawns_per_s(count: int) -> float:
    """Return the rate at which this process runs others, one after the other."""
    began_s = time.perf_counter()
    for _ in range(count):
        subprocess.run(["/bin/true"], check=True)
    return count / (time.perf_counter() - began_s)


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
