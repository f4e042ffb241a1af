"""Traces of jobs: logs in the Standard Workload Format, and LHCb's queue on one day.

Rules
-----
- A log has no VO: all its jobs are of the VO "trace". Its group 3 is "g3", its user 12 is "u12".
- A job asks for the processors and the time that it asked for in the log; without them, for the processors that it
  used, and for no time. It runs as long as in the log, but no longer than it asked for.
- Jobs that never ran are left out.
- Memory is kB per processor, as the format says. The log of MetaCentrum, which has more than 18 fields, has bytes.
- LHCb's tables have neither arrivals nor run times. All jobs wait from the start. A job runs for 2 to 10 % of the CPU
  time of its task queue, drawn with a fixed seed, and asks for 10 %.
- Sites that the tree lacks are removed from jobs; a job that names no other site may run anywhere.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from harness.lhcb import VO, LhcbDay
from pilotage.resources.requirements import JobNeeds, job_needs
from pilotage.text import folded_set
from pilotage.values.accounts import Account

LHCB = "lhcb"
"""The name of LHCb's queue where a log may be given."""

LONGEST_PART = 0.1
"""The part of its CPU time for which a job of LHCb's may run: the times are for cores of power 1, most have 10."""

TRACE_VO = "trace"
_SEED = 11
_CAME, _RUN, _USED, _ASKED, _ASKED_TIME, _ASKED_MEMORY, _USER, _GROUP = 1, 3, 4, 7, 8, 9, 11, 12
_FIELDS = 18


class TracedJob(NamedTuple):
    """A job: its submission in seconds from the start, its run time, its account and its needs."""

    came_s: float
    run_s: float
    account: Account
    needs: JobNeeds


def read_log(path: Path, speedup: float = 1.0) -> Iterator[TracedJob]:
    """Yield the jobs of a log in its order; `speedup` is the factor of the rate of submissions."""
    first_s = None
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            if line.startswith(";") or not line.strip():
                continue
            fields = line.split()
            came_s = float(fields[_CAME])
            first_s = came_s if first_s is None else first_s
            job = _job(fields, (came_s - first_s) / speedup)
            if job is not None:
                yield job


def _job(fields: Sequence[str], came_s: float) -> TracedJob | None:
    run_s, used, asked = float(fields[_RUN]), int(fields[_USED]), int(fields[_ASKED])
    cpus = asked if asked > 0 else used
    if run_s <= 0 or cpus <= 0:
        return None
    time_s = int(float(fields[_ASKED_TIME]))
    memory = float(fields[_ASKED_MEMORY])
    memory_mib = round(memory / 2**20 if len(fields) > _FIELDS else memory * cpus / 2**10) if memory > 0 else None
    needs = JobNeeds(cpus=cpus, memory_mib=memory_mib, wall_time_s=time_s if time_s > 0 else None)
    account = Account(TRACE_VO, f"g{fields[_GROUP]}", f"u{fields[_USER]}")
    return TracedJob(came_s, min(run_s, time_s) if time_s > 0 else run_s, account, needs)


def lhcb_jobs(shared: Path, jobs: int) -> Iterator[TracedJob]:
    """Yield about `jobs` jobs with the shape of LHCb's queue on one day."""
    draw = random.Random(_SEED)
    for each in LhcbDay(shared).task_queues(jobs):
        assert each.jobs.cpu_time is not None, "each task queue of the day has a CPU time"
        limit_s = each.jobs.cpu_time.total_seconds()
        needs = replace(job_needs(each.jobs), platforms=(), cpu_time_s=None, wall_time_s=LONGEST_PART * limit_s)
        for _ in range(each.jobs.count or 1):
            yield TracedJob(
                0.0, limit_s * draw.uniform(LONGEST_PART / 5, LONGEST_PART), Account(VO, each.group, each.owner), needs
            )


def at_known_sites(jobs: Iterable[TracedJob], sites: Iterable[str]) -> Iterator[TracedJob]:
    """Yield the jobs without the sites that are not among `sites`."""
    known, cleaned = folded_set(sites), dict[JobNeeds, JobNeeds]()
    for job in jobs:
        if job.needs not in cleaned:
            at = tuple(site for site in job.needs.sites if site in known)
            cleaned[job.needs] = replace(job.needs, sites=at, banned_sites=())
        yield job._replace(needs=cleaned[job.needs])


def read_trace(name: str, shared: Path, jobs: int, speedup: float) -> Iterator[TracedJob]:
    """Yield at most `jobs` jobs of a log, which is a file or a file of `shared`, or about so many of LHCb's queue."""
    if name == LHCB:
        yield from lhcb_jobs(shared, jobs)
        return
    path = Path(name)
    yield from islice(read_log(path if path.exists() else shared / "data" / "traces" / name, speedup), jobs)
