"""A router's link to a server, and what is said over it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pilotage.classads import AdValue
from pilotage.resource_tree import QueueId
from pilotage_agents.router.route_edges import (
    CopyOutcome,
    CopyReport,
    CopyState,
    CopyStatus,
    NewCopy,
    Routed,
    RouterLink,
)
from support.server import request_id

QUEUE = QueueId("Lyon", "ce1", "long")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Scene:
    """A link and the server behind it."""

    link: RouterLink
    submit: Callable[..., list[int]]
    change: Callable[[str, int], None]
    state: Callable[[int], str]
    output: Callable[[int], dict[str, bytes]]
    ad: Callable[[int], Mapping[str, AdValue]]

    async def route(self, *job_ids: int, route: str = "A") -> list[int]:
        """Take jobs, which must be given; return the attempts."""
        answers = await self.link.route(request_id(), [a_copy(job_id, route) for job_id in job_ids])
        return [answer.attempt for answer in answers if isinstance(answer, Routed)]

    async def report(self, *reports: CopyReport) -> dict[tuple[int, int], str]:
        """Report, and return what was refused."""
        return dict((await self.link.report(request_id(), reports)).refused)

    async def waiting(self) -> list[int]:
        """Read the whole feed; return who waits in the end."""
        waiting: dict[int, None] = {}
        position = 0
        while (page := await self.link.next_events(position)).position != position:
            position = page.position
            for event in page.events:
                if event.state == "WAITING":
                    waiting[event.job_id] = None
                else:
                    waiting.pop(event.job_id, None)
        return list(waiting)


def a_copy(job_id: int, route: str = "A", queue: QueueId | None = QUEUE) -> NewCopy:
    """Return a copy that is about to be made."""
    return NewCopy(job_id, route, f"queue {queue}" if queue else "server elsewhere:4711", queue)


def ended(job_id: int, outcome: str, state: CopyState = CopyState.GONE, **fields: Any) -> CopyReport:
    """Return the report of an end."""
    reason, files = fields.pop("reason", ""), fields.pop("files", ())
    status = CopyStatus(state, **fields)
    return CopyReport(job_id, 1, state="DONE", outcome=CopyOutcome(outcome, status, reason, files))
