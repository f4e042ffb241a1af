"""Values that the job router exchanges with targets and the server: states, statuses and outcomes of routed jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from pilotage.classads.library import AdValue
from pilotage.job_description import NOTHING, Value


@dataclass(frozen=True, slots=True)
class ListedRoutedJob:
    """A routed job on the server's list; `reference` "" = not known, `unwanted` "" = it is still wanted."""

    job_id: int
    attempt: int
    route: str
    target: str
    reference: str
    unwanted: str
    is_running: bool


class RoutedJobState(StrEnum):
    """The state of a routed job at its target."""

    IDLE = "idle"
    RUNNING = "running"
    SUSPENDED = "suspended"
    HELD = "held"
    """Held by the target, with a reason."""
    COMPLETED = "completed"
    """The payload ended by itself."""
    GONE = "gone"
    """It ended, but not by itself: it was removed or cancelled, or its node was lost."""
    UNKNOWN = "unknown"
    """The target gave no answer. Nothing follows from it."""


@dataclass(frozen=True, slots=True)
class RoutedJobStatus:
    """A target's report of a routed job; times are the target's. `attributes` come from its ad there.

    `is_plugged`: the payload of a RUNNING job has failed, with this exit code, and keeps its place for a while.
    """

    state: RoutedJobState
    reason: str = ""
    node: str = ""
    exit_code: int | None = None
    signal: int | None = None
    started: datetime | None = None
    ended: datetime | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    attributes: Mapping[str, AdValue] | None = None
    is_plugged: bool = False


@dataclass(frozen=True, slots=True)
class CollectedFile:
    """An output file: `name` is the path inside the job's folder, `path` the current location of its content."""

    name: str
    path: str
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class RoutedJobOutcome:
    """The end of an attempt; `outcome` is a name of the protocol. Times and numbers are those of `status`."""

    outcome: str
    status: RoutedJobStatus
    reason: str = ""
    files: tuple[CollectedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class RoutedJobReport:
    """A report to the server about a routed job; `state` is a name of the protocol, "" = unchanged.

    `held` is the reason why the target holds it, "" = not held. The server then holds the original job and no longer
    wants the routed job. `plugged` is the status of a payload that has failed and keeps its place. `attributes` are all
    that hooks have reported, empty = unchanged. The server shows them in the original's ad.
    """

    job_id: int
    attempt: int
    reference: str = ""
    node: str = ""
    state: str = ""
    started: datetime | None = None
    outcome: RoutedJobOutcome | None = None
    held: str = ""
    plugged: RoutedJobStatus | None = None
    attributes: Mapping[str, Value] = field(default_factory=lambda: NOTHING)
