"""What a job needs of a queue beside its submit pool: the reserved keywords and the request sizes.

Rules
-----
A normal form: jobs that no queue can tell apart by these have equal needs, so needs are part of a task
queue's key. CPU time is kept exactly, never rounded to segments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pilotage.folding import fold, folded_set
from pilotage.job_description import JobDescription
from pilotage.resources import Amount

_ANY = "any"


@dataclass(frozen=True, slots=True)
class JobNeeds:
    """The keywords and sizes of a job; empty or None = the job asks nothing there.

    Sites and platforms are folded, sorted and distinct: the job goes to any of `sites`, to none of
    `banned_sites`, and runs on any of `platforms`. `cpu_time_s` is normalised CPU seconds.
    """

    sites: tuple[str, ...] = ()
    banned_sites: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    cpu_time_s: Amount | None = None
    cpus: int | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None
    gpus: int | None = None


def job_needs(description: JobDescription) -> JobNeeds:
    """Return what a job needs; "ANY" among its sites or platforms leaves it free there, as DIRAC reads it."""
    seconds = None if description.cpu_time is None else description.cpu_time.total_seconds()
    return JobNeeds(
        sites=_restriction(description.sites),
        banned_sites=tuple(sorted(folded_set(description.banned_sites))),
        platforms=_restriction(description.platforms),
        cpu_time_s=int(seconds) if seconds is not None and seconds.is_integer() else seconds,
        cpus=description.request_cpus,
        memory_mib=description.request_memory_mib,
        disk_mib=description.request_disk_mib,
        gpus=description.request_gpus,
    )


def _restriction(names: Iterable[str]) -> tuple[str, ...]:
    folded = folded_set(names)
    return () if fold(_ANY) in folded else tuple(sorted(folded))
