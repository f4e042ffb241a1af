"""Jobs that job routers hold: an attempt of a job may be a copy of it that goes to a place which takes no pilots.

Rules
-----
A router holds an attempt as a pilot does, under a stamp of its own kind, but its lease has no end: only the router's
word, or an operator's, ends it. The place of the attempt is the queue that the copy goes to; another server is a site
without queues. The slot is the route.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from pilotage.errors import InvalidInputError
from pilotage.job_description import NOTHING, Value
from pilotage.resource_tree import QueueId
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.reports import JobReport

_ROUTER = "route:"

NO_END = timedelta(days=36_500)
"""The length of a lease that nobody renews."""


def stamp_of(router: str) -> str:
    """Return the stamp under which a router, by the name of its turn, holds attempts."""
    return f"{_ROUTER}{router}"


def is_routers(stamp: str) -> bool:
    """Whether the stamp is a router's, and no pilot's."""
    return stamp.startswith(_ROUTER)


def router_of(job: JobRecord) -> str:
    """Return the router that had or has the job's last attempt; "" = a pilot had it, or nobody."""
    return job.pilot_stamp.removeprefix(_ROUTER) if is_routers(job.pilot_stamp) else ""


@dataclass(frozen=True, slots=True)
class NewCopy:
    """A copy that a router is about to make; `queue` None = it goes to another server, which `target` names."""

    job_id: int
    route: str
    target: str
    queue: QueueId | None

    @property
    def place(self) -> QueueId:
        """Where the attempt is."""
        return self.queue or place_of(self.target)


_QUEUE, _SERVER = "queue ", "server "


def place_of(target: str) -> QueueId:
    """Return the place that a target leads to, from the words that people read of it."""
    if target.startswith(_QUEUE):
        try:
            return QueueId.parse(target.removeprefix(_QUEUE))
        except InvalidInputError:
            pass  # what names no queue is a place all the same
    return QueueId(target.removeprefix(_SERVER), "", "")


def place_name(place: QueueId) -> str:
    """Return where an attempt is, for people: SITE/CE/QUEUE, or the server."""
    return str(place) if place.queue else f"{_SERVER}{place.site}"


class RoutedJob(NamedTuple):
    """Whether a router has a job now, and as which attempt; `refusal` "" = it has."""

    job_id: int
    attempt: int = 0
    refusal: str = ""


class CopyRecord(NamedTuple):
    """A copy that a router has made or was about to make; `reference` finds it at its target, "" = nobody has told."""

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
class CopyReport:
    """What a router says of one copy; what is empty or None is as it was told before.

    `held` is why its target holds it, "" = it does not. `attributes` are what the router's hooks have said of it.
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
    """A report of a copy that could not be read, and why; nothing follows from it for the copy."""

    job_id: int
    attempt: int
    fault: str
