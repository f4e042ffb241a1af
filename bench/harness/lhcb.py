"""A queue of any length with the shape of LHCb's queue on one day, and its sites.

The data are tables of counts: the jobs of each task queue, and the number of task queues that name each site and
platform. Simulation gets the sites that most task queues name; the rest is drawn with a fixed seed.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import cycle, islice
from pathlib import Path

from pilotage.job_description import JobDescription
from pilotage.resources.tree import QueueId

VO = "lhcb"
SIMULATION = "lhcb_mc"
_DAY = "2026-03-28"
_SEED = 7


@dataclass(frozen=True, slots=True)
class DaysTaskQueue:
    """A task queue of the day: owner and group, and a description of all its jobs."""

    owner: str
    group: str
    jobs: JobDescription


class LhcbDay:
    """The tables of the day in a folder of shared data."""

    def __init__(self, shared: Path) -> None:
        self._folder = shared / f"data/lhcb-{_DAY}"
        self.sites = [row["site"] for row in self._table("site_distribution")]

    def queues(self) -> list[QueueId]:
        """Return the queues of `tree`, one for each site."""
        return [QueueId(site, "ce", "queue") for site in self.sites]

    def tree(self) -> str:
        """Return the resource tree: each site has one queue with its platform."""
        platforms = [row["platform"] for row in self._table("platform_distribution")]
        sites = {
            site: {"ces": {"ce": {"queues": {"queue": {"Platform": platforms[number % 24], "Memory": 4000}}}}}
            for number, site in enumerate(self.sites)
        }
        return json.dumps({"sites": sites})

    def task_queues(self, jobs: int) -> Iterator[DaysTaskQueue]:
        """Yield the task queues of the day, with about `jobs` jobs in all and at least one in each."""
        total = int(self._table("scale_overview")[0]["active_tqs"])
        rows = list(islice(cycle(self._table("jobs_per_tq")), total))
        of_the_day = sum(int(row["n_jobs"]) for row in rows)
        owner_of = {row["OwnerGroup"]: row["Owner"] for row in reversed(self._table("owner_distribution"))}
        simulation = [number for number, row in enumerate(rows) if row["OwnerGroup"] == SIMULATION]
        sites = self._named("site_distribution", "site", total, simulation)
        platforms = self._named("platform_distribution", "platform", total, simulation)
        for number, row in enumerate(rows):
            group = row["OwnerGroup"]
            description = JobDescription(
                "/cvmfs/lhcb.cern.ch/run",
                arguments=f"--production {row['TQId']}",
                sites=sites[number],
                platforms=platforms[number],
                banned_sites=(f"SITE-{number}",),  # unknown sites keep otherwise equal task queues apart
                cpu_time=timedelta(seconds=int(row["CPUTime"])),
                priority=round(float(row["Priority"])),
                attributes={"Group": group},
                count=max(1, round(jobs * int(row["n_jobs"]) / of_the_day)),
            )
            yield DaysTaskQueue(owner_of[group], group, description)

    def _named(self, table: str, column: str, total: int, simulation: list[int]) -> list[tuple[str, ...]]:
        """Return the sites or platforms that each task queue names, in the numbers of the day."""
        draw = random.Random(_SEED)
        others = [number for number in range(total) if number not in set(simulation)]
        named: list[list[str]] = [[] for _ in range(total)]
        drawn: dict[int, list[int]] = {}
        for row in self._table(table):
            wanted = int(row["n_tqs"])
            if wanted not in drawn:  # values with the same count get the same task queues
                first = draw.sample(simulation, min(wanted, len(simulation)))
                drawn[wanted] = first + draw.sample(others, wanted - len(first))
            for number in drawn[wanted]:
                named[number].append(row[column])
        return [tuple(names) for names in named]

    def _table(self, name: str) -> list[dict[str, str]]:
        with (self._folder / f"{name}_{_DAY}.csv").open(newline="") as rows:
            return list(csv.DictReader(rows))


def with_count(jobs: JobDescription, count: int) -> JobDescription:
    """Return the description with another number of jobs."""
    return replace(jobs, count=count)
