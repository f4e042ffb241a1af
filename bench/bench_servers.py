"""The cost of a match with one, two and four servers on a PostgreSQL database; no attempt may be given twice.

All servers run on one core and are loaded in turns: one, two, four. Prints JSON lines; exits 1 if a budget is exceeded.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.figures import Figure, at_most, measured
from harness.grid import REQUEST_JOBS, BenchGrid, LoadPilot, an_offer, job_requests, matches_in
from harness.load import Run
from harness.setting import SHARING, Setting, bench, database_url, scratch, server_on_its_core, the_day

JOBS = 200_000
PILOTS = 480
OUTSTANDING = 64
"""Pending calls at each loaded server."""

TOGETHER = (1, 2, 4)
ROUNDS = 6
CALLS = 1_000
RATIO_BUDGET, CONFLICT_BUDGET = 1.3, 5.0


class Servers:
    """Servers on one database, with common pilots."""

    def __init__(self, grids: Sequence[BenchGrid], pilots: Sequence[LoadPilot]) -> None:
        self._grids = grids
        self._pilots = pilots
        self.times_given: Counter[tuple[int, int]] = Counter()
        """How often each attempt was given to a pilot."""

    def match(self, together: int, calls: int) -> float:
        """Load `together` servers at once, with `calls` calls each.

        Returns the CPU time of a match, summed over the servers, in microseconds.
        """
        with ThreadPoolExecutor(together) as callers:
            runs = list(callers.map(lambda number: self._load(number, together, calls), range(together)))
        matches = [match for run in runs for answer in run.answers for match in matches_in(answer)]
        assert len(matches) == sum(len(run.answers) for run in runs), "a call has not brought its job"
        self.times_given.update((match.job_id, match.attempt) for match in matches)
        return 1e6 * sum(run.server_cpu_s for run in runs) / len(matches)

    def conflicts(self) -> float:
        """Stop all servers; returns the percentage of reservations whose job another server had taken."""
        bound = missed = 0
        for grid in self._grids:
            grid.server.stop()
            last = json.loads(grid.server.log().splitlines()[-1])
            bound += last["jobs_bound"]
            missed += last["choices_missed"]
        return 100 * missed / (bound + missed)

    def _load(self, number: int, together: int, calls: int) -> Run:
        requests = job_requests(self._pilots[number::together], calls, an_offer())
        return self._grids[number].run(REQUEST_JOBS, requests, OUTSTANDING)


def figures(setting: Setting) -> Iterator[Figure]:
    """Start all servers and load them in turns."""
    day = the_day()
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        url = stack.enter_context(database_url("postgresql"))
        settings = {**SHARING, "signing_key": str(folder / "tokens.pem"), "log_level": "info"}
        settings["files"] = (folder / "files").as_uri()
        grids: list[BenchGrid] = []
        pilots: list[LoadPilot] = []
        for number in range(max(TOGETHER)):
            server = stack.enter_context(server_on_its_core(folder / f"server{number}", url, **settings))
            grids.append(stack.enter_context(closing(BenchGrid(server, day))))
            if number == 0:
                grids[0].put_tree(day.tree())
                grids[0].submit_day(setting.size(JOBS, 4_000))
                pilots = grids[0].pilots(PILOTS)
        servers = Servers(grids, pilots)
        rounds = [
            [servers.match(together, setting.size(CALLS, 128)) for together in TOGETHER]
            for _ in range(1 + setting.size(ROUNDS, 2))
        ]
        one_us, two_us, four_us = (statistics.median(costs) for costs in zip(*rounds[1:], strict=True))
        yield measured("servers: CPU of a match, one server", one_us, "µs")
        yield at_most("servers: CPU of a match, two servers to one", two_us / one_us, "ratio", RATIO_BUDGET)
        yield measured("servers: CPU of a match, four servers to one", four_us / one_us, "ratio")
        twice = sum(times > 1 for times in servers.times_given.values())
        yield at_most(
            "servers: choices that another server was quicker with", servers.conflicts(), "%", CONFLICT_BUDGET
        )
        yield at_most("servers: attempts given twice", twice, "attempts", 0, given=len(servers.times_given))


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
