"""Dependencies of jobs: a workflow of 10,000 nodes in one submission, and how soon a finished parent frees its child.

The workflow has layers of 100 nodes, each of which depends on two of the layer before. At most 100 nodes run at a time,
in lanes, and a last one runs when all others have ended or cannot run. A child is free when a pilot that waits for work
gets it. The time runs from the pilot's report that the parent has ended, or from the removal of the first layer, after
which only the last node can run.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.empty_call import machine_speed
from harness.figures import Figure, at_most
from harness.setting import Setting, bench, database_url, scratch, server_on_its_core
from pilotage.job_description import JobDescription
from pilotage.v1 import job_service_pb2
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage.values.selections import JobSelection
from pilotage.values.wire.dependencies import dependency_to_wire
from support.wire_grid import WireGrid, WirePilot, submission

NODES, LAYER = 10_000, 100
SUBMISSION_BUDGET_S = 3.0
SETTLING_BUDGET_S = 5.0
PAIRS = 200
RELEASE_BUDGET_MS = 100.0


def figures(setting: Setting) -> Iterator[Figure]:
    """Start a server, submit the workflow, remove it, and run the pairs."""
    speed = machine_speed()
    with (
        scratch() as data,
        database_url(setting.database) as url,
        server_on_its_core(data, url) as server,
        closing(WireGrid(server)) as grid,
    ):
        grid.put_tree()
        nodes = setting.size(NODES, 2 * LAYER)
        request = _workflow(nodes)
        start_s = time.perf_counter()
        ids = grid.jobs.SubmitJobs(request, timeout=300).job_ids
        took_s = time.perf_counter() - start_s
        name = f"dependencies-{setting.database}: submission of a workflow"
        yield at_most(name, took_s, "s", SUBMISSION_BUDGET_S / speed, nodes=nodes)
        pilots = grid.start_pilot(), grid.start_pilot()
        settled_s = _settling_s(grid, pilots[0], ids)
        yield at_most(
            f"dependencies-{setting.database}: last node after a failure",
            settled_s,
            "s",
            SETTLING_BUDGET_S / speed,
            nodes=nodes,
        )
        grid.change(job_service_pb2.JOB_CHANGE_REMOVE, *ids[LAYER:-1])
        releases_ms = [_release_ms(grid, *pilots) for _ in range(setting.size(PAIRS, 10))]
        median_ms = statistics.median(releases_ms)
        yield at_most(
            f"dependencies-{setting.database}: release of a child",
            median_ms,
            "ms",
            RELEASE_BUDGET_MS / speed,
            pairs=len(releases_ms),
        )


def _workflow(nodes: int) -> job_service_pb2.SubmitJobsRequest:
    request = submission([JobDescription("/bin/true", arguments=f"{node}", name=f"n{node}") for node in range(nodes)])
    for node in range(LAYER, nodes - 1):
        before = node // LAYER * LAYER - LAYER
        parents = before + node % LAYER, before + (node + 1) % LAYER
        request.dependencies.append(dependency_to_wire(Dependency(node, DependencyKind.AFTER_OK, (), parents)))
        lane = Dependency(node, DependencyKind.AFTER_SETTLED, (), (node - LAYER,))
        request.dependencies.append(dependency_to_wire(lane))
    last = Dependency(nodes - 1, DependencyKind.AFTER_SETTLED, ranges=((0, nodes - 2),))
    request.dependencies.append(dependency_to_wire(last))
    request.workflow.name = "layers"
    return request


def _settling_s(grid: WireGrid, waits: WirePilot, ids: Sequence[int]) -> float:
    with ThreadPoolExecutor(1) as other:
        start_s = time.perf_counter()
        grid.change(job_service_pb2.JOB_CHANGE_REMOVE, *ids[:LAYER])
        waiting = other.submit(waits.request_jobs, wait_s=60.0)
        (freed,) = waiting.result().matches
        took_s = time.perf_counter() - start_s
    assert freed.job_id == ids[-1], "no other job can run"
    waits.finish(ids[-1])
    return took_s


def _release_ms(grid: WireGrid, runs: WirePilot, waits: WirePilot) -> float:
    (parent,) = grid.submit(JobDescription("/bin/true"))
    (match,) = runs.request_jobs().matches
    assert match.job_id == parent, "no other job waits"
    request = submission([JobDescription("/bin/true")])
    dependency = Dependency(0, DependencyKind.AFTER_OK, (JobSelection(parent),))
    request.dependencies.append(dependency_to_wire(dependency))
    (child,) = grid.jobs.SubmitJobs(request).job_ids
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(waits.request_jobs, wait_s=20.0)
        start_s = time.perf_counter()
        runs.finish(parent)
        (freed,) = waiting.result().matches
        took_ms = 1000 * (time.perf_counter() - start_s)
    assert freed.job_id == child, "no other job waits"
    waits.finish(child)
    return took_ms


if __name__ == "__main__":
    sys.exit(bench(figures, __doc__))
