"""Routes as job routers tell people of them, and as they are stored.

Rules
-----
What was told is kept as it is; what it means for a job is said by `pilotage.route_verdicts`. Stored as canonical
JSON; unknown keys are left alone by the reader, so that rows of a later release can still be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class RouteOutline:
    """A route; `own` is the ad that its requirements see as MY, as text, None = they see the job alone.

    `requirements` None = any job may go; `max_idle_jobs` None = any number. Of its `copies` so many are `idle`.
    `throttled` says why it gets no more jobs for a while, as too many have failed, "" = it does. `closed` says why it
    gets none for a reason of its own, such as a target that cannot be opened, "" = it is open.
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
    """A route that is not used, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class RouteTable:
    """The routes of a router in their order, what every job must fulfil, the most copies (None = any number)."""

    routes: tuple[RouteOutline, ...]
    constraint: str | None = None
    max_jobs: int | None = None
    left_out: tuple[LeftOutRoute, ...] = ()


@dataclass(frozen=True, slots=True)
class ToldRoutes:
    """Which router told its table when."""

    router: str
    told: datetime
    table: RouteTable


def table_to_json(table: RouteTable) -> str:
    """Return the canonical text of a table."""
    return json.dumps(asdict(table), sort_keys=True, separators=(",", ":"))


def table_from_json(text: str) -> RouteTable:
    """Return the table that `table_to_json` wrote."""
    facts: dict[str, Any] = json.loads(text)
    return RouteTable(
        tuple(_read(RouteOutline, route) for route in facts["routes"]),
        facts["constraint"],
        facts["max_jobs"],
        tuple(_read(LeftOutRoute, route) for route in facts["left_out"]),
    )


def _read(kind: type[Kind], facts: Mapping[str, Any]) -> Kind:
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in facts.items() if name in known})
