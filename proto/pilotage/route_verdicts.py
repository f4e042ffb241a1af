"""What keeps a job from a route, in words for people: who routes and who explains judge by the same.

Rules
-----
A route takes a job that fulfils the table's constraint and the route's requirements (only what is True counts), while
the route is open, below its limits and not throttled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from pilotage.classad_clauses import failing_clauses
from pilotage.classad_evaluation import Ad, compile_expression, evaluate, is_true
from pilotage.classads import AdValue


class ObstacleKind(StrEnum):
    """What keeps a job from a route."""

    CONSTRAINT = "constraint"
    REQUIREMENTS = "requirements"
    FULL = "full"
    IDLE_LIMIT = "idle limit"
    THROTTLED = "throttled"
    CLOSED = "closed"
    NOT_ELIGIBLE = "not eligible"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One thing that keeps a job from a route; `why` has the clause, or the figures."""

    kind: ObstacleKind
    why: str


@dataclass(frozen=True, slots=True)
class JobScopes:
    """A job's ad as expressions see it: MY and TARGET, both the job."""

    my: Ad
    target: Ad

    @classmethod
    def of(cls, attributes: Mapping[str, AdValue]) -> Self:
        """Return the scopes of the job with these attributes; raises InvalidClassAdError."""
        ad = Ad(attributes)
        return cls(ad, ad.copy())  # one ad cannot be both for the library


@dataclass(frozen=True, slots=True)
class Room:
    """How many copies a route may have and has, and how many of them may be, and are, idle (None = any number).

    `throttled` says why it gets no more jobs for a while, as too many have failed, "" = it does. `closed` says why it
    gets none for a reason of its own, "" = it is open.
    """

    max_jobs: int
    max_idle_jobs: int | None
    copies: int
    idle: int
    throttled: str
    closed: str = ""


def constraint_obstacles(constraint: str | None, job: JobScopes) -> list[Obstacle]:
    """Return what is not true of what every job must fulfil; None = nothing."""
    return _unfulfilled(ObstacleKind.CONSTRAINT, constraint, job.my, job.target)


def requirements_obstacles(requirements: str | None, own: Ad | None, job: JobScopes) -> list[Obstacle]:
    """Return what is not true of a route's requirements: those of an ad see it as MY, others (None) the job alone."""
    return _unfulfilled(ObstacleKind.REQUIREMENTS, requirements, job.my if own is None else own, job.target)


def table_room_obstacles(copies: int, max_jobs: int | None) -> list[Obstacle]:
    """Return whether all routes together have as many copies as they may; None = any number."""
    return _full(ObstacleKind.FULL, "of all routes", copies, max_jobs)


def room_obstacles(room: Room) -> list[Obstacle]:
    """Return why a route takes no job at all just now; none = it takes what fulfils its requirements."""
    found = _full(ObstacleKind.FULL, "on the route", room.copies, room.max_jobs)
    found += _full(ObstacleKind.IDLE_LIMIT, "do not run", room.idle, room.max_idle_jobs)
    if room.throttled:
        found.append(Obstacle(ObstacleKind.THROTTLED, room.throttled))
    if room.closed:
        found.append(Obstacle(ObstacleKind.CLOSED, room.closed))
    return found


def _unfulfilled(kind: ObstacleKind, expression: str | None, my: Ad, target: Ad) -> list[Obstacle]:
    if expression is None or is_true(evaluate(compile_expression(expression), my, target)):
        return []
    return [Obstacle(kind, str(clause)) for clause in failing_clauses(expression, my, target)]


def _full(kind: ObstacleKind, where: str, copies: int, most: int | None) -> list[Obstacle]:
    return [Obstacle(kind, f"{copies} of {most} copies {where}")] if most is not None and copies >= most else []
