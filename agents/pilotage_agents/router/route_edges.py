"""What the job router needs of the world: the server, the places that copies go to, and the values they exchange."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from pilotage.classads import AdValue
from pilotage.job_description import NOTHING, InputFile, JobDescription, Value
from pilotage.resource_tree import QueueId
from pilotage_agents.batch_systems.base import Submission, Unanswered
from pilotage_agents.core.routes.route_table import Target
from pilotage_agents.core.routes.told_routes import ToldTable


@dataclass(frozen=True, slots=True)
class JobMoved:
    """An event of the feed: a job came to a state, in the protocol's words (WAITING, MATCHED, ...)."""

    job_id: int
    state: str
    cause: str


@dataclass(frozen=True, slots=True)
class FeedPage:
    """The next events of the feed, in order; `position` is where to go on, which has not moved at the feed's end."""

    events: tuple[JobMoved, ...]
    position: int


@dataclass(frozen=True, slots=True)
class RoutableJob:
    """A job as the server shows it to a router; `is_waiting` = it may be routed."""

    job_id: int
    is_waiting: bool
    ad: Mapping[str, AdValue]
    description: JobDescription
    owner: str
    vo: str
    group: str


@dataclass(frozen=True, slots=True)
class NewCopy:
    """A copy that is about to be made; `queue` None = it goes to another server."""

    job_id: int
    route: str
    target: str
    queue: QueueId | None


@dataclass(frozen=True, slots=True)
class Routed:
    """The router has the job, as this attempt of it."""

    job_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class NotRouted:
    """The server did not give the job, for this reason."""

    job_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class KnownCopy:
    """A copy on the server's list; `reference` "" = nobody told what finds it, `unwanted` "" = it is wanted."""

    job_id: int
    attempt: int
    route: str
    target: str
    reference: str
    unwanted: str
    is_running: bool


class CopyState(StrEnum):
    """Where a copy is at its target."""

    IDLE = "idle"
    RUNNING = "running"
    SUSPENDED = "suspended"
    HELD = "held"
    """The target keeps it back, and says why."""
    COMPLETED = "completed"
    """Its payload has ended by itself."""
    GONE = "gone"
    """The target says that it is no more, and it did not end by itself: removed, cancelled, its node lost."""
    UNKNOWN = "unknown"
    """The target gave no answer for it: nothing may be concluded."""


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """What a target says of a copy; times are the target's. `attributes` are what its ad says of its run."""

    state: CopyState
    reason: str = ""
    node: str = ""
    exit_code: int | None = None
    signal: int | None = None
    started: datetime | None = None
    ended: datetime | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    attributes: Mapping[str, AdValue] | None = None


@dataclass(frozen=True, slots=True)
class LeftFile:
    """A file that a copy has left: its path inside the job's folder, and where it lies now."""

    name: str
    path: Path
    truncated: bool = False


class InputFiles(Protocol):
    """Gives the files that a job brings."""

    async def fetch(self, job_id: int, file: InputFile, to: Path) -> None:
        """Write the file at `to`, whole and checked; raises a PilotageError."""


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """A copy to be made of a job.

    `name` is the copy's own, finds it again, and is the same whenever the same attempt is asked for again. `ad` is the
    transformed ad, with RoutedFromJobId, RoutedBy and RouteName; `description` is what it is to run, after the ad.
    `shared_proxy` is the path of the X.509 proxy that the route gives all its copies, "" = it gives none.
    """

    name: str
    job_id: int
    attempt: int
    route: str
    description: JobDescription
    ad: Mapping[str, AdValue]
    owner: str
    vo: str
    group: str
    shared_proxy: str = ""


@dataclass(frozen=True, slots=True)
class RefusedByJob:
    """No copy was made, as the job itself cannot be run so, now or later; `reason` is for its owner."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotThisWay:
    """No copy was made, as the job lacks what it needs to go there; it may go another way. `reason` says what."""

    reason: str


CopyAnswer = Submission | RefusedByJob | NotThisWay
"""What a target says to a copy that it is to make; of one that it does not make it keeps nothing."""

Found = str | Unanswered
"""What a target says of a copy that it is asked for by name: its reference, or why it cannot say now."""


class CopyTarget(Protocol):
    """A place that copies go to: a queue's batch system, or another server; all pass one conformance suite.

    References say all that is needed to find a copy after a restart. No method raises for what the target does or fails
    to do, but where it says so.
    """

    async def submit(self, copies: Sequence[CopyRequest], files: InputFiles) -> tuple[CopyAnswer, ...]:
        """Make copies; returns one answer each, in order. A copy that was made before is not made twice."""

    async def find_again(self, names: Collection[str]) -> Mapping[str, Found]:
        """Return the references of copies by name, for those that were made and whose answer was lost.

        A name that is missing in the answer was never submitted, or is no more. Raises WorldError when the target
        cannot say it of any.
        """

    async def poll(self, references: Collection[str]) -> Mapping[str, CopyStatus]:
        """Return the status of every copy asked; one that the target says nothing of is UNKNOWN."""

    async def collect(self, reference: str) -> tuple[LeftFile, ...]:
        """Return the files that a completed copy has left; raises WorldError when they cannot be had now."""

    async def cancel(self, references: Collection[str]) -> None:
        """Ask the copies to end; those that have ended already are no error."""

    async def forget(self, names: Collection[str]) -> None:
        """Remove what is kept here of copies, also of those that were made ready and never submitted."""

    async def strays(self, known: Collection[str], before: datetime) -> Mapping[str, str]:
        """Return the router's copies beside the known ones of which something is kept here, untouched since `before`.

        Those are names with references, "" = none is known. Raises WorldError when it cannot be seen.
        """


class CopyPlaces(Protocol):
    """Leads to the places that copies go to."""

    async def open(self, target: Target) -> CopyTarget:
        """Return the place that a route's target names; raises a PilotageError when it cannot be had (now)."""


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """How an attempt ended, in the protocol's words for outcomes; the times and numbers are those of `status`."""

    outcome: str
    status: CopyStatus
    reason: str = ""
    files: tuple[LeftFile, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What the router says of a copy; `state` is the protocol's word for the attempt's state, "" = as before.

    `held` is why its target holds it, "" = it does not: the original is held for that, and the copy unwanted then.
    `attributes` are all that hooks have said of it, none = as before: the original's ad is shown with them.
    """

    job_id: int
    attempt: int
    reference: str = ""
    node: str = ""
    state: str = ""
    started: datetime | None = None
    outcome: CopyOutcome | None = None
    held: str = ""
    attributes: Mapping[str, Value] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True)
class UnwantedCopy:
    """A copy to be stopped, and why."""

    job_id: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class CopiesAnswer:
    """What a server says to reports of copies, by attempt, and the copies to be stopped.

    `refused`: why copies are not ours any more. `malformed`: what is wrong with reports that it could not take; their
    copies are ours as before.
    """

    refused: Mapping[tuple[int, int], str]
    unwanted: tuple[UnwantedCopy, ...]
    malformed: Mapping[tuple[int, int], str] = field(default_factory=dict)


class RouterLink(InputFiles, Protocol):
    """What the job router says to the server; every method raises a PilotageError when its call fails.

    `request` makes a repeated call have one effect.
    """

    async def next_events(self, after: int) -> FeedPage:
        """Return what the feed has by now after a position (0 = from the oldest kept), or the first part of that."""

    async def look_at(self, job_ids: Sequence[int]) -> tuple[RoutableJob, ...]:
        """Return those of the jobs (at most 1,000) that there are."""

    async def route(self, request: str, copies: Sequence[NewCopy]) -> tuple[Routed | NotRouted, ...]:
        """Take jobs for copies (at most 1,000); returns one answer each, in order."""

    async def report(self, request: str, reports: Sequence[CopyReport]) -> CopiesAnswer:
        """Say what became of copies (at most 1,000), with their files; none = only ask which are wanted no more."""

    async def bring(self, files: Sequence[LeftFile]) -> None:
        """Bring files to the server that are too large to travel with a report, so that it need not wait for them."""

    async def copies(self) -> tuple[KnownCopy, ...]:
        """Return the copies that this router has still to bring to an end."""

    async def tell_routes(self, table: ToldTable) -> None:
        """Replace what the server tells people of the routes."""
