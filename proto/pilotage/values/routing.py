"""Jobs that a job router sends to targets without pilots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pilotage.classads.library import AdValue
from pilotage.job_description import JobDescription
from pilotage.resources.tree import QueueId


@dataclass(frozen=True, slots=True)
class RoutableJob:
    """A job as a router sees it: its state in the protocol's words, its ad, and the description of the next attempt.

    Macros in the description are filled in.
    """

    job_id: int
    state: str
    ad: Mapping[str, AdValue]
    description: JobDescription
    owner: str
    vo: str
    group: str

    @property
    def is_waiting(self) -> bool:
        """Whether it may be routed."""
        return self.state == "WAITING"


@dataclass(frozen=True, slots=True)
class NewRoutedJob:
    """A job that a router is about to send; `queue` None = `target` is another server."""

    job_id: int
    route: str
    target: str
    queue: QueueId | None


@dataclass(frozen=True, slots=True)
class UnwantedRoutedJob:
    """A routed job that must be stopped, and why."""

    job_id: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class RouteOutline:
    """A route for display; `own` is the text of the ad that its requirements see as MY, None = only the job's.

    `copies` jobs are on the route, `idle` of them are not running; `max_idle_jobs` None = no limit. `throttled` = why
    it gets no jobs for a while, as too many failed, "" = it does. `closed` = why it gets none for a reason of its own,
    such as a target that cannot be opened, "" = it is open.
    """

    name: str
    target: str
    requirements: str | None = None
    own: str | None = None
    max_jobs: int = 0
    max_idle_jobs: int | None = None
    copies: int = 0
    idle: int = 0
    throttled: str = ""
    closed: str = ""


@dataclass(frozen=True, slots=True)
class LeftOutRoute:
    """A route that is not used, and why; `copies` jobs are still on it, `idle` of them are not running."""

    name: str
    reason: str
    copies: int = 0
    idle: int = 0


@dataclass(frozen=True, slots=True)
class PublishedRoutes:
    """The routes of a router in their order, the constraint on every job, and the most jobs (None = no limit)."""

    routes: tuple[RouteOutline, ...]
    constraint: str | None = None
    max_jobs: int | None = None
    left_out: tuple[LeftOutRoute, ...] = ()
