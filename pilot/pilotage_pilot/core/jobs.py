"""A job as the pilot has it: the attempt that it was given, what it used, and what is said of it.

Rules
-----
Values only. Which stage an attempt is in is `attempts`; how it is said on the wire is `link`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pilotage.job_description import JobDescription
from pilotage_pilot.core.amounts import Amounts


@dataclass(frozen=True, slots=True, order=True)
class AttemptKey:
    """One attempt of one job."""

    job_id: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.job_id}.{self.attempt}"


@dataclass(frozen=True, slots=True)
class Account:
    """Whom a use is charged to; for whom a claimed slot is kept."""

    vo: str = ""
    group: str = ""
    owner: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.vo, self.group, self.owner) if part)


@dataclass(frozen=True, slots=True)
class HoldWish:
    """A slot's wish that the job it puts out be held, with the policy's own code."""

    reason: str
    subcode: int = 0


@dataclass(frozen=True, slots=True)
class GrantedJob:
    """A job with a lease of `lease_s` seconds from the sending of the request that brought it.

    `job_ad` is its ClassAd as text, where the slot wanted it; empty = none came. `fault` is why the pilot cannot read
    what it is to run, its description says nothing then; empty = it can.
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

    @property
    def account(self) -> Account:
        """Whom it is charged to."""
        return Account(self.vo, self.group, self.owner)


class Outcome(StrEnum):
    """How an attempt ended on the pilot's side."""

    EXITED = "exited"
    LIMIT_EXCEEDED = "limit exceeded"
    START_FAILED = "start failed"
    REFUSED_BY_JOB = "refused by job"
    EVICTED = "evicted"
    DECLINED = "declined"
    KILLED = "killed"
    OUTPUT_LOST = "output lost"


class ReportedState(StrEnum):
    """The state that a report has an attempt in; plugged = its payload has failed, and its slot is kept."""

    RUNNING = "RUNNING"
    PLUGGED = "PLUGGED"
    SUSPENDED = "SUSPENDED"
    COMPLETING = "COMPLETING"
    DONE = "DONE"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a payload used: CPU seconds of all its processes, largest resident memory in MiB."""

    cpu_s: float = 0.0
    peak_memory_mib: int = 0


NOTHING_USED = Usage()


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a job left; `content` is in it where it is small, else it was uploaded before."""

    name: str
    checksum: str
    size: int
    content: bytes | None = None
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """What the pilot says of one attempt; `outcome` None = it has not ended; `hold` goes with EVICTED."""

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
    output_files: tuple[StoredFile, ...] = ()
    hold: HoldWish | None = None

    @property
    def most_bytes(self) -> int:
        """How many bytes it takes at most to tell it."""
        texts = len(self.reason) + (len(self.hold.reason) if self.hold is not None else 0)
        return _OF_A_REPORT + _OF_A_CHARACTER * texts + sum(map(_bytes_of_file, self.output_files))


_OF_A_REPORT = 200
_OF_A_FILE = 100
_OF_A_CHARACTER = 4
"""Bytes on the wire: of a report and of a file beside their texts and contents, of a character in UTF-8."""


def _bytes_of_file(file: StoredFile) -> int:
    return _OF_A_FILE + _OF_A_CHARACTER * len(file.name) + len(file.content or b"")


@dataclass(frozen=True, slots=True)
class ReportResult:
    """What became of a report on the server."""

    key: AttemptKey
    accepted: bool
    refusal: str = ""
