"""The simulator decides as server and pilots do: the same jobs start in the same order."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import NamedTuple

import pytest

from pilotage.accounts import Quota
from pilotage.job_description import JobDescription
from pilotage.resources.requirements import job_needs
from pilotage.values.accounts import Account, GroupId
from pilotage_agents.site_director.settings import SiteDirectorSettings
from pilotage_server.core.resources.tree import ActiveTree
from pilotage_server.core.rules import Rules, Sharing
from pilotage_server.storage.database.engine import Database
from simulator.configuration import GridModel, configuration_of
from simulator.grid import SimulatedGrid
from simulator.trace import TracedJob
from support.grid import LONG
from support.jobs import a_user
from support.trees import a_tree
from support.virtual_clock import VirtualClock
from support.virtual_grid import VirtualGrid

NODES, CPUS, MEMORY_MIB = 2, 4, 16_000
RULES = Rules(
    sharing=Sharing(
        foresight=timedelta(seconds=1),
        group_quotas={GroupId("lhcb", "prod"): Quota(1.7)},
        priority_factors={Account("lhcb", "prod", "ben"): 1.3},
    )
)
"""A pilot asks for a job before it reports the end of the last one: without ties this does not decide the order."""

OWNERS = (("ann", "prod"), ("ben", "prod"), ("eve", "users"))


class _Job(NamedTuple):
    owner: str
    group: str
    cpus: int
    memory_mib: int
    run_s: int


def _jobs(seed: int) -> list[_Job]:
    draw = random.Random(seed)
    # Jobs that end at the same time race at a real server.
    run_times = draw.sample(range(60, 1800), 40)
    return [_Job(*draw.choice(OWNERS), draw.choice((1, 1, 2)), draw.choice((1000, 3000)), each) for each in run_times]


def _real_starts(grid: VirtualGrid, jobs: list[_Job]) -> list[int]:
    """Return the jobs by their places in the list, in the order in which the real ones start."""
    ids = [
        grid.submit(
            job.run_s,
            user=a_user(job.owner, "lhcb", job.group),
            request_cpus=job.cpus,
            request_memory_mib=job.memory_mib,
        )
        for job in jobs
    ]
    for _ in range(NODES):
        grid.node(cpus=CPUS, memory_mib=MEMORY_MIB)
    grid.until(lambda: grid.finished(*ids), within_s=10 * 86_400)
    records = [grid.job(job_id) for job_id in ids]
    return sorted(range(len(jobs)), key=lambda place: (records[place].started, place))


def _simulated_starts(jobs: list[_Job]) -> list[int]:
    queue = {"CEType": "x", "CPUs": CPUS, "Memory": MEMORY_MIB, "MaxTotalJobs": NODES}
    site, ce, name = LONG.split("/")
    tree = ActiveTree(1, a_tree(sites={site: {"ces": {ce: {"queues": {name: queue}}}}}))
    director = SiteDirectorSettings.model_validate(
        {"folder": "/f", "batch_systems": {"b": {"type": "local", "ce_types": ["x"]}}, "max_idle_s": 86400}
    )
    traced = []
    for job in jobs:
        needs = job_needs(JobDescription("/bin/true", request_cpus=job.cpus, request_memory_mib=job.memory_mib))
        traced.append(TracedJob(0.0, job.run_s, Account("lhcb", job.group, job.owner), needs))
    grid = SimulatedGrid(configuration_of(tree, RULES, director, GridModel(start_delay_s=0, step_s=1)), traced)
    grid.run(3 * 3600)
    grid.check()
    return sorted(range(len(jobs)), key=lambda place: (grid.jobs[place].first_started_s, place))


@pytest.mark.parametrize("seed", range(2))
def test_simulated_jobs_start_in_the_order_of_real_ones(
    sqlite_database: Database, clock: VirtualClock, seed: int
) -> None:
    grid = VirtualGrid(sqlite_database, clock, rules=RULES)
    jobs = _jobs(seed)
    assert _simulated_starts(jobs) == _real_starts(grid, jobs)
