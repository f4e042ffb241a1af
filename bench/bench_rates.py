"""Rates of one server on one core with a million waiting jobs: matches, submissions, completion reports.

The queue has the shape of LHCb's on one day, with fair share and running limits, while 1,000 idle pilots wait in long
polls. Acknowledged writes are on disk. Budgets are for a machine that answers 6,700 empty calls a second; this rate is
measured first and between the rounds, and the budgets scale with it. Prints JSON lines; exits 1 if a budget is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from itertools import cycle
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.empty_call import REFERENCE_PER_S, EmptyServer, empty_server
from harness.figures import Figure, at_least, at_most, measured, progress
from harness.grid import (
    REPORT_STATE,
    REQUEST_JOBS,
    SUBMIT,
    BenchGrid,
    an_offer,
    bearer,
    completion,
    fresh,
    job_requests,
    matches_in,
    must_match,
    results_in,
    start,
    submission,
    submission_of_many,
)
from harness.lhcb import SIMULATION, with_count
from harness.load import Answer, Request, Run, for_seconds, freeze_objects, median_cpu_us, median_rate
from harness.nodes import BOLOGNA, PolicyNodes
from harness.setting import SHARING, Setting, bench, database_url, scratch, server_on_its_core, the_day
from harness.waiting_pilots import waiting_pilots
from pilotage.job_description import JobDescription

JOBS = 1_000_000
PILOTS = 2_000
IDLE_PILOTS = 1_000
NODES = 200
ROUNDS = 5
OUTSTANDING = 64
SLOTS = 50
BATCH = 1_000
ARRAY = 100_000
STEADY_PER_S = 1_000
OF_EMPTY_CALLS = 4
"""The budget for the latency of calls at a steady rate, as a multiple of that of empty calls in the same run."""

PRODUCTION = JobDescription(
    "/cvmfs/lhcb.cern.ch/run",
    arguments="--production 64939631",
    name="simulation",
    stdout="std.out",
    stderr="std.err",
    requirements={"Memory": 2000},
    platforms=("x86_64_v2-centos7", "x86_64_v3-centos7"),
    cpu_time=timedelta(days=3),
)
"""The jobs that are submitted during the measurement."""


class Rates:
    """The measurements of one server, in this order: each needs the state that the previous one leaves."""

    def __init__(self, grid: BenchGrid, empty: EmptyServer, setting: Setting) -> None:
        self._grid = grid
        self._empty = empty
        self._setting = setting
        self._pilots = grid.pilots(setting.size(PILOTS, 2 * len(grid.day.sites)))
        self._reference_per_s = REFERENCE_PER_S

    def figures(self) -> Iterator[Figure]:
        """Measure all rates."""
        idle = self._grid.pilots(self._setting.size(IDLE_PILOTS))
        with waiting_pilots(self._grid.server.address, idle):
            yield from self._one_job_a_call()
            yield from self._steady()
        yield from self._many_slots_and_reports()
        yield from self._submissions()

    def _scaled(self, per_s: float) -> float:
        """Return the budget of a rate for this machine."""
        return per_s * self._reference_per_s / REFERENCE_PER_S

    def _named(self, name: str) -> str:
        return f"rates-{self._setting.database}: {name}"

    def _one_job_a_call(self) -> Iterator[Figure]:
        """Measure empty calls, matches, and matches under the policy in turns; yields medians of the rounds."""
        nodes = PolicyNodes(BOLOGNA, self._setting.size(NODES, 10))
        self._warm_up(nodes)
        offer, policy_offers = an_offer(), list(nodes.offers(5))
        freeze_objects()
        empty_runs: list[Run] = []
        runs: list[Run] = []
        policy_runs: list[Run] = []
        for _ in range(self._setting.size(ROUNDS, 2)):
            empty_runs.append(self._empty.run(self._setting.size(6_000, 600)))
            runs.append(self._ask(Request(fresh(offer), pilot.metadata) for pilot in cycle(self._pilots)))
            pairs = zip(cycle(self._pilots), cycle(policy_offers), strict=False)
            policy_runs.append(self._ask(Request(fresh(body), pilot.metadata) for pilot, body in pairs))
        for run in runs + policy_runs:
            must_match(run)
        empty_per_s, per_s, policy_per_s = map(median_rate, (empty_runs, runs, policy_runs))
        self._reference_per_s = empty_per_s
        empty_us, us, policy_us = map(median_cpu_us, (empty_runs, runs, policy_runs))
        yield measured("empty call", empty_per_s, "1/s", cpu_us=round(empty_us, 1))
        more: dict[str, object] = {
            "cpu_us": round(us, 1),
            "empty_cpu_us": round(empty_us, 1),
            "median_ms": round(runs[0].median_ms, 2),
            "profile": runs[-1].profile,
        }
        budget = 0.4 * empty_per_s
        yield at_least(self._named("one job a call"), per_s, "jobs/s", budget, **more)
        more = {"cpu_us": round(policy_us, 1), "profile": policy_runs[-1].profile}
        yield at_least(self._named("one job a call, Bologna's policy"), policy_per_s, "jobs/s", budget * 2 / 3, **more)

    def _warm_up(self, nodes: PolicyNodes) -> None:
        pairs = zip(cycle(self._pilots), nodes.introductions(), strict=False)
        self._grid.run(REQUEST_JOBS, [Request(fresh(body), pilot.metadata) for pilot, body in pairs], OUTSTANDING)
        self._grid.run(REQUEST_JOBS, job_requests(self._pilots, len(self._pilots), an_offer()), OUTSTANDING)

    def _ask(self, requests: Iterable[Request]) -> Run:
        return self._grid.run(REQUEST_JOBS, for_seconds(requests, self._setting.seconds(3)), OUTSTANDING)

    def _steady(self) -> Iterator[Figure]:
        calls_per_s = self._scaled(STEADY_PER_S)
        calls = round(self._setting.seconds(10) * calls_per_s)
        empty = self._empty.steady(calls, calls_per_s)
        requests = job_requests(self._pilots, calls, an_offer())
        run = self._grid.steady(REQUEST_JOBS, requests, calls_per_s)
        more = {
            "calls_per_s": round(calls_per_s),
            "refused": run.refused,
            "profile": f"{run.profile}; the lines of `tails` have the stages of a call",
        }
        for percent in (50, 99):
            name = self._named(f"{percent} % of calls at a steady 1,000/s")
            budget_ms = OF_EMPTY_CALLS * empty.percentile_ms(percent)
            yield at_most(name, run.percentile_ms(percent), "ms", budget_ms, **more)

    def _many_slots_and_reports(self) -> Iterator[Figure]:
        calls = job_requests(self._pilots, self._setting.size(1_200, 24), an_offer(SLOTS))
        run = self._grid.run(REQUEST_JOBS, calls, OUTSTANDING)
        jobs = sum(len(matches_in(answer)) for answer in run.answers)
        more = {"cpu_us_a_job": round(1e6 * run.server_cpu_s / jobs, 1), "jobs": jobs, "profile": run.profile}
        budget = self._scaled(40_000)
        yield at_least(self._named("50 slots a call"), jobs / run.seconds, "jobs/s", budget, **more)
        yield self._reports(run.answers)

    def _reports(self, taken: Sequence[Answer]) -> Figure:
        starts, ends = (
            [Request(fresh(report(matches_in(answer))), answer.request.metadata) for answer in taken]
            for report in (start, completion)
        )
        self._grid.run(REPORT_STATE, starts, OUTSTANDING)
        run = self._grid.run(REPORT_STATE, ends, OUTSTANDING)
        results = [result for answer in run.answers for result in results_in(answer)]
        assert all(result.accepted for result in results), "a report was refused"
        cpu_us = round(1e6 * run.server_cpu_s / len(results), 1)
        more = {"cpu_us_a_report": cpu_us, "reports": len(results), "profile": run.profile}
        per_s = len(results) / run.seconds
        return at_least(self._named("reports in 50s"), per_s, "reports/s", self._scaled(30_000), **more)

    def _submissions(self) -> Iterator[Figure]:
        user = bearer(self._grid.user_token("lbprods", SIMULATION))
        batches = self._setting.size(100, 4)
        bodies = [
            submission_of_many(PRODUCTION, SIMULATION, range(batch * BATCH, (batch + 1) * BATCH))
            for batch in range(batches)
        ]
        run = self._grid.run(SUBMIT, [Request(fresh(body), user) for body in bodies], 4)
        jobs = batches * BATCH
        more = {"cpu_us_a_job": round(1e6 * run.server_cpu_s / jobs, 1), "jobs": jobs, "profile": run.profile}
        budget = self._scaled(30_000)
        yield at_least(self._named("submission in 1,000s"), jobs / run.seconds, "jobs/s", budget, **more)
        count = self._setting.size(ARRAY)
        array = submission([with_count(PRODUCTION, count)], SIMULATION).SerializeToString()
        run = self._grid.run(SUBMIT, [Request(array, user)], 1)
        budget = 3.0 * count / ARRAY * REFERENCE_PER_S / self._reference_per_s
        yield at_most(self._named("an array of 100,000"), run.seconds, "s", budget, jobs=count)


def figures(setting: Setting) -> Iterator[Figure]:
    """Start the servers and measure."""
    day = the_day()
    with (
        empty_server() as empty,
        scratch() as folder,
        database_url(setting.database) as url,
        server_on_its_core(folder / "server", url, **SHARING) as server,
        closing(BenchGrid(server, day)) as grid,
    ):
        grid.put_tree(day.tree())
        jobs = grid.submit_day(setting.size(JOBS))
        progress(f"{jobs:,} jobs wait on {setting.database}")
        yield from Rates(grid, empty, setting).figures()


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
