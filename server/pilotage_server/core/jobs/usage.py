"""What an attempt of a job has used, and its names and units in job ads (HTCondor manual, job ClassAd attributes)."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from pilotage.classads.library import AdValue
from pilotage.text import folded_set
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobState

_KIB_IN_MIB = 1024


class AttemptUsage(NamedTuple):
    """The cores and GPUs of an attempt, its times in seconds, and the peaks of memory and disk in MiB; 0 = unknown.

    `cpu_s` is the CPU time of its processes, `system_cpu_s` the part that the kernel spent for them. `wall_s` excludes
    suspended time.
    """

    attempt: int
    cpus: int
    gpus: int
    cpu_s: float = 0.0
    system_cpu_s: float = 0.0
    wall_s: float = 0.0
    suspended_s: float = 0.0
    peak_memory_mib: int = 0
    peak_disk_mib: int = 0

    def timed(self, job: JobRecord, started: datetime | None, ended: datetime | None, now: datetime) -> AttemptUsage:
        """Return the use with times by the server's clock, for an attempt whose end its pilot has not reported."""
        if started is None:
            return self
        passed_s = max(0.0, ((ended or now) - started).total_seconds())
        is_suspended = ended is None and job.state is JobState.SUSPENDED
        wall_s = min(passed_s, self.wall_s) if is_suspended else max(0.0, passed_s - self.suspended_s)
        return self._replace(wall_s=wall_s, suspended_s=passed_s - wall_s)

    def attributes(self) -> dict[str, AdValue]:
        """Return the use as attributes of the job's ad; unknown sizes are left out."""
        sizes = {
            "MemoryUsage": self.peak_memory_mib,
            "ResidentSetSize": self.peak_memory_mib * _KIB_IN_MIB,
            "DiskUsage": self.peak_disk_mib * _KIB_IN_MIB,
        }
        times = {"RemoteUserCpu": max(0.0, self.cpu_s - self.system_cpu_s), "RemoteSysCpu": self.system_cpu_s}
        return {**times, **{name: size for name, size in sizes.items() if size}}


USAGE_NAMES = folded_set(AttemptUsage(1, 1, 0, peak_memory_mib=1, peak_disk_mib=1).attributes())
"""Folded names of the attributes of use. Policies of jobs may read them; what matches a waiting job does not."""
