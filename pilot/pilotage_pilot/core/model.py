"""Values of the pilot's core: a granted job, a report on an attempt, and the time on both clocks.

`Now` holds the same instant twice. `utc` is for people and may jump. `boot_s` is for leases, limits and timeouts: it
does not jump, and it runs on while the machine sleeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pilotage.job_description import JobDescription
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey, JobHold, Outcome, ReportedOutput


@dataclass(frozen=True, slots=True)
class GrantedJob:
    """A job with a lease of `lease_s` seconds from the sending of its request.

    `job_ad` is its ClassAd as text; empty = none was wanted. `fault` says why the description cannot
    be read, and the description is empty then; `fault` empty = it can be read. `traceparent` = the trace context of its
    submission, "" = unknown.
    """

    key: AttemptKey
    slot: str
    lease_s: float
    description: JobDescription
    amounts: Amounts
    task_queue: int = 0
    owner: str = ""
    vo: str = ""
    group: str = ""
    cluster: int = 0
    process: int = 0
    job_ad: str = ""
    fault: str = ""
    traceparent: str = ""

    @property
    def account(self) -> Account:
        """The account that its use is charged to."""
        return Account(self.vo, self.group, self.owner)


class ReportedState(StrEnum):
    """The reported state of an attempt; plugged = its payload has failed and keeps its slot."""

    RUNNING = "RUNNING"
    PLUGGED = "PLUGGED"
    SUSPENDED = "SUSPENDED"
    COMPLETING = "COMPLETING"
    DONE = "DONE"


@dataclass(frozen=True, slots=True)
class Usage:
    """Use of a payload: CPU seconds of all its processes, and the peaks of their memory and of its folder in MiB.

    `system_cpu_s` = the part of the CPU seconds that the kernel spent for them. A figure of 0 is unknown.
    """

    cpu_s: float = 0.0
    peak_memory_mib: int = 0
    system_cpu_s: float = 0.0
    peak_disk_mib: int = 0


NOTHING_USED = Usage()


@dataclass(frozen=True, slots=True)
class Report:
    """A report on one attempt; `outcome` None = it has not ended; `hold` goes with EVICTED.

    `memory_limit_mib` = the memory limit that ended it; 0 = none. `traceparent` = the trace context of the job's
    submission, with an outcome only.
    """

    key: AttemptKey
    state: ReportedState
    outcome: Outcome | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    started: datetime | None = None
    ended: datetime | None = None
    usage: Usage = NOTHING_USED
    wall_s: float = 0.0
    suspended_s: float = 0.0
    output_files: tuple[ReportedOutput, ...] = ()
    hold: JobHold | None = None
    memory_limit_mib: int = 0
    traceparent: str = ""

    @property
    def max_bytes(self) -> int:
        """Upper bound of its size on the wire."""
        texts = len(self.reason) + (len(self.hold.reason) if self.hold is not None else 0)
        return _REPORT_BYTES + _CHARACTER_BYTES * texts + sum(map(_bytes_of_file, self.output_files))


_REPORT_BYTES = 300
_FILE_BYTES = 100
_CHARACTER_BYTES = 4
"""Bytes on the wire: a report and a file without texts and contents, and a character in UTF-8."""


def _bytes_of_file(file: ReportedOutput) -> int:
    return _FILE_BYTES + _CHARACTER_BYTES * len(file.name) + len(file.content or b"")


@dataclass(frozen=True, slots=True)
class Now:
    """The present time as aware UTC and as seconds since the machine's boot."""

    utc: datetime
    boot_s: float
