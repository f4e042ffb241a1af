"""Routed jobs: attempts that job routers submit to targets without pilots, and the routes that routers publish.

Rules
-----
A router holds an attempt as a pilot does, under its own kind of stamp, but the lease has no end: only a report of the
router or an operator ends it. The queue of the attempt is the target; another server is a site without queues. The
slot is the route. Published routes are stored unchanged as canonical JSON; `pilotage.routes` interprets them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from pilotage.job_description import NOTHING, Value
from pilotage.resources.tree import QueueId
from pilotage.values.routing import LeftOutRoute, NewRoutedJob, PublishedRoutes, RouteOutline
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.jobs.record import queue_of_target

NO_END = timedelta(days=36_500)
"""The length of a lease that is not renewed."""


def target_queue(job: NewRoutedJob) -> QueueId:
    """Return the queue that a job is about to be sent to."""
    return job.queue or queue_of_target(job.target)


class RouteAnswer(NamedTuple):
    """The result of routing one job: the attempt that begins, or `refusal`; "" = the router has the job."""

    job_id: int
    attempt: int = 0
    refusal: str = ""


class RoutedJobRecord(NamedTuple):
    """A routed job that a router has made or was about to make; `reference` = its id at the target, "" = not known."""

    job_id: int
    attempt: int
    router: str
    route: str
    target: str
    reference: str
    routed: datetime

    @property
    def key(self) -> tuple[int, int]:
        """Job id and attempt."""
        return (self.job_id, self.attempt)


@dataclass(frozen=True, slots=True)
class RouterReport:
    """A router's report on one routed job; empty or None = unchanged since the last report.

    `held` = why its target holds it, "" = it does not. `attributes` = what the router's hooks have set.
    """

    job_id: int
    attempt: int
    reference: str = ""
    node: str = ""
    report: JobReport | None = None
    held: str = ""
    attributes: Mapping[str, Value] = field(default_factory=lambda: NOTHING)

    @property
    def key(self) -> tuple[int, int]:
        """Job id and attempt."""
        return (self.job_id, self.attempt)


class MalformedReport(NamedTuple):
    """A report on a routed job that could not be read, and why; it has no effect on the routed job."""

    job_id: int
    attempt: int
    fault: str


Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class RouterRoutes:
    """The routes that a router has published, and when."""

    router: str
    reported: datetime
    table: PublishedRoutes


def table_to_json(table: PublishedRoutes) -> str:
    """Return the canonical text of a table."""
    return json.dumps(asdict(table), sort_keys=True, separators=(",", ":"))


def table_from_json(text: str) -> PublishedRoutes:
    """Return the table that `table_to_json` wrote."""
    facts: dict[str, Any] = json.loads(text)
    return PublishedRoutes(
        tuple(_read(RouteOutline, route) for route in facts["routes"]),
        facts["constraint"],
        facts["max_jobs"],
        tuple(_read(LeftOutRoute, route) for route in facts["left_out"]),
    )


def table_lines(table: PublishedRoutes) -> Iterator[str]:
    """Yield what an operator has configured in a table, one text for each route; not how full its routes are."""
    yield f"constraint {table.constraint}, at most {table.max_jobs} jobs"
    for route in table.routes:
        limits = f"at most {route.max_jobs} jobs, {route.max_idle_jobs} idle"
        yield f"route {route.name} to {route.target}: requirements {route.requirements}, {limits}"


def _read(kind: type[Kind], facts: Mapping[str, Any]) -> Kind:
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in facts.items() if name in known})
