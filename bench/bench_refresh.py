"""The time for a new tree of 5,000 queues with 10,000 submit pools, and the latency of matches meanwhile.

Pilots request jobs at a steady rate. The rate, and the budget for the tree, are for a machine that answers 6,700 empty
calls a second; this rate is measured first, and both scale with it. Prints JSON lines; exits 1 if a budget is exceeded.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from itertools import chain, repeat, takewhile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.empty_call import REFERENCE_PER_S, empty_server
from harness.figures import Figure, at_most, measured
from harness.grid import REQUEST_JOBS, SUBMIT, BenchGrid, LoadPilot, an_offer, bearer, job_requests, submission
from harness.lhcb import SIMULATION
from harness.load import Metadata, Request, Run
from harness.setting import SHARING, Setting, bench, scratch, server_on_its_core, the_day
from pilotage.job_description import JobDescription
from pilotage.resources.tree import QueueId

SITES, CES, QUEUES = 100, 10, 5
POOLS = 10_000
TAGS = 100
TAGS_OF_A_QUEUE = 10
JOBS_OF_A_POOL = 20
SUBMITTED_AT_ONCE = 500
PILOTS = 500
OUTSTANDING = 64
CALLS_PER_S = 1_000
EMPTY_CALLS = 6_000
BEFORE_S = 5.0
REFRESHES = 3
REFRESH_BUDGET_S = 2.0
OF_BEFORE = 2
"""The budget for the latency of calls during a change, as a multiple of that before it."""


def queues(ces: int) -> list[QueueId]:
    """Return the queues of a tree with `ces` CEs a site."""
    return [
        QueueId(f"SITE-{site}", f"ce{ce}", f"queue{queue}")
        for site in range(SITES)
        for ce in range(ces)
        for queue in range(QUEUES)
    ]


def tree(ces: int, version: int) -> str:
    """Return a tree whose queues differ in tags and memory; another version changes all queues."""
    sites: dict[str, dict[str, dict[str, dict[str, dict[str, object]]]]] = {}
    for number, queue in enumerate(queues(ces)):
        ce = sites.setdefault(queue.site, {"ces": {}})["ces"].setdefault(queue.ce, {"queues": {}})
        tags = [f"tag{(number + version + 11 * place) % TAGS}" for place in range(TAGS_OF_A_QUEUE)]
        ce["queues"][queue.queue] = {"Memory": 2000 + (number + version) % 20 * 200, "Tags": tags}
    return json.dumps({"sites": sites})


def jobs(pools: int) -> list[JobDescription]:
    """Return jobs of `pools` pools: each requires one tag, and those with the same tag differ in memory."""
    return [
        JobDescription(
            "/cvmfs/lhcb.cern.ch/run",
            requirements={"Tags": (f"tag{37 * pool % TAGS}",), "Memory": 500 + 50 * (pool // TAGS)},
            cpu_time=timedelta(hours=12),
            count=JOBS_OF_A_POOL,
        )
        for pool in range(pools)
    ]


def figures(setting: Setting) -> Iterator[Figure]:
    """Activate one tree after the other while pilots request jobs."""
    ces, pools = setting.size(CES), setting.size(POOLS)
    with (
        empty_server() as empty,
        scratch() as folder,
        server_on_its_core(folder / "server", **SHARING) as server,
        closing(BenchGrid(server, the_day())) as grid,
    ):
        grid.put_tree(tree(ces, 0))
        user = bearer(grid.user_token("lbprods", SIMULATION))
        grid.run(SUBMIT, _submissions(jobs(pools), user), 1)
        pilots = grid.pilots(setting.size(PILOTS), queues(ces)[:: max(1, len(queues(ces)) // setting.size(PILOTS))])
        grid.run(REQUEST_JOBS, job_requests(pilots, 2 * len(pilots), an_offer()), OUTSTANDING)
        part = empty.run(setting.size(EMPTY_CALLS, 600)).calls_per_s / REFERENCE_PER_S
        calls_per_s = part * CALLS_PER_S
        calls = round(setting.seconds(BEFORE_S) * calls_per_s)
        nothing = empty.steady(calls, calls_per_s)
        before = grid.steady(REQUEST_JOBS, job_requests(pilots, calls, an_offer()), calls_per_s)
        yield measured("refresh: 99 % of calls before", before.percentile_ms(99), "ms", refused=before.refused)
        trees = [tree(ces, version) for version in range(1, 1 + REFRESHES)]
        run, took_s = _match_through(grid, pilots, trees, calls_per_s)
        facts = {"queues": len(queues(ces)), "pools": pools, "profile": run.profile}
        yield at_most("refresh: a new tree in force", statistics.median(took_s), "s", REFRESH_BUDGET_S / part, **facts)
        p99_ms = run.percentile_ms(99)
        more = {
            "calls_per_s": round(calls_per_s),
            "median_ms": round(run.median_ms, 2),
            "refused": run.refused,
            "empty_p99_ms": round(nothing.percentile_ms(99), 2),
            "profile": run.profile,
        }
        yield at_most("refresh: 99 % of calls meanwhile", p99_ms, "ms", OF_BEFORE * before.percentile_ms(99), **more)
        yield measured("refresh: the slowest call meanwhile", run.percentile_ms(100), "ms")


def _submissions(kinds: list[JobDescription], user: Metadata) -> Iterator[Request]:
    for first in range(0, len(kinds), SUBMITTED_AT_ONCE):
        part = kinds[first : first + SUBMITTED_AT_ONCE]
        yield Request(submission(part, SIMULATION).SerializeToString(), user)


def _match_through(
    grid: BenchGrid, pilots: list[LoadPilot], trees: list[str], calls_per_s: float
) -> tuple[Run, list[float]]:
    """Run pilots during the new trees; returns their run, and the seconds for each tree."""
    with ThreadPoolExecutor(1) as operator:
        refreshed = operator.submit(lambda: [_seconds_to_put(grid, text) for text in trees])
        offers = chain.from_iterable(job_requests(pilots, len(pilots), an_offer()) for _ in repeat(None))
        meanwhile = takewhile(lambda _: not refreshed.done(), offers)
        run = grid.steady(REQUEST_JOBS, meanwhile, calls_per_s)
        return run, refreshed.result()


def _seconds_to_put(grid: BenchGrid, text: str) -> float:
    began_s = time.perf_counter()
    grid.put_tree(text)
    return time.perf_counter() - began_s


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
