"""The ports of the job router: the link to its server and the targets of routes, with the values that they exchange."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from pilotage.classads.library import AdValue
from pilotage.job_description import InputFile, JobDescription
from pilotage.values.routing import NewRoutedJob, PublishedRoutes, RoutableJob, UnwantedRoutedJob
from pilotage_agents.batch_systems.base import Submission, Unanswered
from pilotage_agents.router.core.model import CollectedFile, ListedRoutedJob, RoutedJobReport, RoutedJobStatus
from pilotage_agents.router.core.table import Target


@dataclass(frozen=True, slots=True)
class JobMoved:
    """An event of the feed: a job's new state, as a name of the protocol (WAITING, MATCHED, ...)."""

    job_id: int
    state: str
    cause: str


@dataclass(frozen=True, slots=True)
class RouterFeedPage:
    """The next events of the feed, in order; `position` is the place to go on, unchanged at the end of the feed."""

    events: tuple[JobMoved, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Routed:
    """The server gave the job to the router, as this attempt."""

    job_id: int
    attempt: int


@dataclass(frozen=True, slots=True)
class NotRouted:
    """The server did not give the job, with the reason."""

    job_id: int
    reason: str


class InputFiles(Protocol):
    """Downloads the input files of jobs."""

    async def fetch(self, job_id: int, file: InputFile, to: Path) -> None:
        """Write the complete, checked file to `to`; raises a PilotageError."""


@dataclass(frozen=True, slots=True)
class RoutedJobRequest:
    """A routed job to be submitted to a target.

    `name` identifies it at the target, and is the same for every request for the attempt. `ad` is the transformed ad,
    with RoutedFromJobId, RoutedBy and RouteName; `description` follows from it. `shared_proxy` is the path of the
    route's X.509 proxy, "" = none.
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
    """The job itself cannot run, now or later; `reason` is for its owner."""

    reason: str


@dataclass(frozen=True, slots=True)
class RouteUnsuitable:
    """The job lacks what this target needs, but may take another route; `reason` says what."""

    reason: str


RoutedJobAnswer = Submission | RefusedByJob | RouteUnsuitable
"""A target's answer to a submission; it keeps nothing of a job that it does not accept."""

FindAnswer = str | Unanswered
"""A target's answer to the search for a name: the reference, or why it is not known now."""


class RoutedJobTarget(Protocol):
    """A target of routes: a queue's batch system, or another server; all pass one conformance suite.

    A reference is enough to find a job after a restart. Only methods that say so raise for a failure of the target.
    """

    async def submit(self, requests: Sequence[RoutedJobRequest], files: InputFiles) -> tuple[RoutedJobAnswer, ...]:
        """Submit jobs; returns one answer each, in order. A job that was submitted before is not submitted twice."""

    async def find_again(self, names: Collection[str]) -> Mapping[str, FindAnswer]:
        """Return the references of submitted jobs by name, after the answer to a submission was lost.

        A name without an answer was never submitted, or is gone. Raises WorldError if the target cannot answer for any
        name.
        """

    async def poll(self, references: Collection[str]) -> Mapping[str, RoutedJobStatus]:
        """Return the status of every job; one that the target does not report is UNKNOWN."""

    async def collect(self, reference: str) -> tuple[CollectedFile, ...]:
        """Return the output files of a completed job; raises WorldError if they are not available now."""

    async def cancel(self, references: Collection[str]) -> None:
        """Cancel the jobs; a job that has ended is no error."""

    async def forget(self, names: Collection[str]) -> None:
        """Remove the local files of jobs, also of jobs that were never submitted."""

    async def leftovers(self, known: Collection[str], before: datetime) -> Mapping[str, str]:
        """Return this router's jobs with local files that are not `known` and were not modified since `before`.

        The values are references, "" = none is known. Raises WorldError if the files cannot be listed.
        """


class TargetOpener(Protocol):
    """Opens the targets of routes."""

    async def open(self, target: Target) -> RoutedJobTarget:
        """Return the target; raises a PilotageError if it is not available now."""


@dataclass(frozen=True, slots=True)
class RoutedJobReportAnswer:
    """The server's answer to reports, by attempt, and the routed jobs to stop.

    `refused`: reasons why routed jobs are no longer this router's. `malformed`: faults of reports that the server
    rejected; the router keeps these jobs.
    """

    refused: Mapping[tuple[int, int], str]
    unwanted: tuple[UnwantedRoutedJob, ...]
    malformed: Mapping[tuple[int, int], str] = field(default_factory=dict)


class RouterLink(InputFiles, Protocol):
    """The job router's link to its server; every method raises a PilotageError when its call fails.

    `request` is an idempotency key: a repeated call has one effect.
    """

    async def next_events(self, after: int) -> RouterFeedPage:
        """Return the present events of the feed after a position (0 = the oldest kept), or the first part of them."""

    async def load_jobs(self, job_ids: Sequence[int]) -> tuple[RoutableJob, ...]:
        """Return the existing ones of at most 1,000 jobs."""

    async def route(self, request: str, requests: Sequence[NewRoutedJob]) -> tuple[Routed | NotRouted, ...]:
        """Request at most 1,000 jobs for routes; returns one answer each, in order."""

    async def report(self, request: str, reports: Sequence[RoutedJobReport]) -> RoutedJobReportAnswer:
        """Report at most 1,000 routed jobs, with their files; none = only list those that are no longer wanted."""

    async def upload(self, files: Sequence[CollectedFile]) -> None:
        """Upload the files that are too large for a report, so that the report need not wait."""

    async def routed_jobs(self) -> tuple[ListedRoutedJob, ...]:
        """Return the routed jobs of this router that have not ended."""

    async def publish_routes(self, table: PublishedRoutes) -> None:
        """Replace the routes that the server shows to its users."""
