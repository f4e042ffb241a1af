"""Traces of jobs: job ads of a server, logs in the Standard Workload Format, and LHCb's queue on one day.

Rules
-----
- A file of job ads has the values of `AD_VALUES` on each line, as `pilotage status --af` and `condor_history -af` print
  them, in any order of jobs. A job that has not run is left out, as is a line with a header.
- A log in the Standard Workload Format has no VO: all its jobs are of the VO "trace". Its group 3 is "g3", its user 12
  is "u12".
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
from pilotage.errors import InvalidInputError, Violation
from pilotage.resources.requirements import JobNeeds, job_needs
from pilotage.text import folded_set
from pilotage.values.accounts import Account
from support.shared_data import ENVIRONMENT, shared_data_dir

LHCB = "lhcb"
"""The name of LHCb's queue where a log may be given."""

LONGEST_PART = 0.1
"""The part of its CPU time for which a job of LHCb's may run: the times are for cores of power 1, most have 10."""

TRACE_VO = "trace"
AD_VALUES = "QDate RemoteWallClockTime RequestCpus RequestMemory AllowedExecuteDuration VO AcctGroup Owner"
"""The attributes of a job's ad that make a line of a trace."""

_SEED = 11
_CAME, _RUN, _USED, _ASKED, _ASKED_TIME, _ASKED_MEMORY, _USER, _GROUP = 1, 3, 4, 7, 8, 9, 11, 12
_FIELDS = 18


class TracedJob(NamedTuple):
    """A job: its submission in seconds from the start, its run time, its account and its needs."""

    came_s: float
    run_s: float
    account: Account
    needs: JobNeeds


def read_file(path: Path, jobs: int, speedup: float = 1.0) -> list[TracedJob]:
    """Return the first jobs of a file; `speedup` is the factor of the rate of submissions. Raises InvalidInputError."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        rows = (line.split() for line in file if not line.startswith(";"))
        read = (_job_of_line(path, number, fields) for number, fields in enumerate(rows, 1) if fields)
        found = (job for job in read if job is not None)
        # A log has the order of submission, of which this reads no more than needed; job ads may have any order.
        first = list(islice(found, jobs)) if ".swf" in path.name else sorted(found, key=lambda job: job.came_s)[:jobs]
    first_s = min((job.came_s for job in first), default=0.0)
    return [job._replace(came_s=(job.came_s - first_s) / speedup) for job in first]


def _job_of_line(path: Path, number: int, fields: Sequence[str]) -> TracedJob | None:
    try:
        if len(fields) == len(AD_VALUES.split()):
            return _job_of_ad(fields)
        if len(fields) >= _FIELDS:
            return _job(fields)
    except ValueError as error:
        raise InvalidInputError(Violation(f"{path}, line {number}", f"is no job: {error}")) from error
    reason = f"has {len(fields)} values; give {AD_VALUES}, or the fields of the Standard Workload Format"
    raise InvalidInputError(Violation(f"{path}, line {number}", reason))


def _job_of_ad(fields: Sequence[str]) -> TracedJob | None:
    if fields == AD_VALUES.split():
        return None
    came_s, run_s, cpus, memory_mib, time_s = ("" if field == "undefined" else field for field in fields[:5])
    if not came_s or float(run_s or 0) <= 0:
        return None
    vo, group, owner = ("" if field == "undefined" else field for field in fields[5:])
    needs = JobNeeds(
        cpus=int(cpus or 1),
        memory_mib=int(memory_mib) if memory_mib else None,
        wall_time_s=int(time_s) if time_s else None,
    )
    return TracedJob(float(came_s), float(run_s), Account(vo or TRACE_VO, group, owner), needs)


def _job(fields: Sequence[str]) -> TracedJob | None:
    run_s, used, asked = float(fields[_RUN]), int(fields[_USED]), int(fields[_ASKED])
    cpus = asked if asked > 0 else used
    if run_s <= 0 or cpus <= 0:
        return None
    time_s = int(float(fields[_ASKED_TIME]))
    memory = float(fields[_ASKED_MEMORY])
    memory_mib = round(memory / 2**20 if len(fields) > _FIELDS else memory * cpus / 2**10) if memory > 0 else None
    needs = JobNeeds(cpus=cpus, memory_mib=memory_mib, wall_time_s=time_s if time_s > 0 else None)
    account = Account(TRACE_VO, f"g{fields[_GROUP]}", f"u{fields[_USER]}")
    run_s = min(run_s, time_s) if time_s > 0 else run_s
    return TracedJob(float(fields[_CAME]), run_s, account, needs)


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


def read_trace(name: str, jobs: int, speedup: float) -> Iterator[TracedJob]:
    """Yield at most `jobs` jobs of a file or of a log of the real input, or about so many of LHCb's queue.

    Raises InvalidInputError.
    """
    path, shared = Path(name), shared_data_dir()
    if not path.is_file() and shared is not None:
        path = shared / "data" / "traces" / name
    if name == LHCB and shared is not None:
        yield from lhcb_jobs(shared, jobs)
    elif path.is_file():
        yield from read_file(path, jobs, speedup)
    else:
        raise InvalidInputError(Violation(name, f"is no file, and no trace in the folder that {ENVIRONMENT} names"))
