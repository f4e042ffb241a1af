"""Routes of job routers, and races of jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pilotage.v1 import race_service_pb2, route_service_pb2
from pilotage.values.routing import LeftOutRoute, RouteOutline
from pilotage_client.models.jobs import JobStatus, state_name, time_of
from pilotage_client.models.reading import AsJson, plain, value_of


@dataclass(frozen=True, slots=True)
class RouterInfo(AsJson):
    """A job router with its routes in their order, as it last `reported` them; None = no constraint, no limit.

    `left_out` routes of its table are not used.
    """

    name: str
    routes: tuple[RouteOutline, ...]
    constraint: str | None
    max_jobs: int | None
    left_out: tuple[LeftOutRoute, ...]
    reported: datetime | None


@dataclass(frozen=True, slots=True)
class RoutedJobInfo(AsJson):
    """A job that a router has sent away: by which route, to which target, and its name there (`reference`).

    `unwanted` = why the router must stop it. `state` is that of the job here.
    """

    job_id: int
    attempt: int
    route: str
    target: str
    reference: str
    routed: datetime | None
    router: str
    state: str
    unwanted: str

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys; the job is `job`."""
        fields = self._renamed({"job_id": "job"})
        del fields["unwanted"]
        return fields


@dataclass(frozen=True, slots=True)
class RouteObstacleInfo(AsJson):
    """What keeps a job from a route: its kind, such as "requirements" or "full", and the clause or the figures."""

    kind: str
    why: str


@dataclass(frozen=True, slots=True)
class RouteVerdictInfo(AsJson):
    """The verdict of a route on a job; without obstacles it takes the job."""

    route: str
    target: str
    obstacles: tuple[RouteObstacleInfo, ...]
    router: str


@dataclass(frozen=True, slots=True)
class RouteExplanation(AsJson):
    """The verdict of every route on a job, its present or last routed job, and what keeps it from all of them."""

    job_id: int
    obstacle: str
    copy: RoutedJobInfo | None
    verdicts: tuple[RouteVerdictInfo, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys; the verdicts are `routes`."""
        return self._renamed({"job_id": "job", "verdicts": "routes"})


@dataclass(frozen=True, slots=True)
class RaceInfo(AsJson):
    """The last race of a job: it and its copies, why it `began`, and how it ended; `ended` None = it is open.

    `winner` 0 = none. `lost_core_s` are the core seconds of the losing jobs, so far of the copies if it is open.
    """

    original: JobStatus
    copies: tuple[JobStatus, ...]
    reason: str
    began: datetime | None
    ended: datetime | None
    winner: int
    outcome: str
    lost_core_s: float

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys: some of the original, those of the race, and some of each copy."""
        of_copies = ("id", "state", "site", "reason", "submitted", "started", "ended")
        return {
            "job": self.original.id,
            "state": self.original.state,
            "site": plain(self.original.site),
            "owner": self.original.owner,
            "vo": self.original.vo,
            "reason": self.reason,
            "began": plain(self.began),
            "ended": plain(self.ended),
            "winner": self.winner or None,
            "outcome": plain(self.outcome),
            "lost_core_s": self.lost_core_s,
            "copies": [{name: plain(getattr(copy, name)) for name in of_copies} for copy in self.copies],
        }


@dataclass(frozen=True, slots=True)
class RaceCostInfo(AsJson):
    """The ended races of an account: their number, how many a copy has won, and core seconds of the losing jobs."""

    vo: str
    group: str
    owner: str
    races: int
    won_by_copies: int
    lost_core_s: float

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys; `group` may be empty."""
        return AsJson.as_json(self) | {"group": self.group}


def router_info(message: route_service_pb2.Router) -> RouterInfo:
    """Convert a router from the wire."""
    return value_of(RouterInfo, message, reported=time_of(message, "told"))


def routed_job_info(message: route_service_pb2.JobCopy) -> RoutedJobInfo:
    """Convert a routed job from the wire."""
    return value_of(RoutedJobInfo, message, state=state_name(message.state))


def route_explanation(job_id: int, message: route_service_pb2.ExplainRoutesResponse) -> RouteExplanation:
    """Convert the verdicts on a job from the wire."""
    copy = routed_job_info(message.copy) if message.HasField("copy") else None
    return value_of(RouteExplanation, message, job_id=job_id, copy=copy)


def race_info(message: race_service_pb2.Race) -> RaceInfo:
    """Convert a race from the wire."""
    return value_of(RaceInfo, message)


def race_cost_info(message: race_service_pb2.RaceCost) -> RaceCostInfo:
    """Convert the costs of an account from the wire."""
    account = message.account
    return value_of(RaceCostInfo, message, vo=account.vo, group=account.group, owner=account.owner)
