"""Bans: operators close a site, a computing element or a queue for a while, without touching the tree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from pilotage.folding import fold
from pilotage.resource_tree import QueueId


@dataclass(frozen=True, slots=True)
class Ban:
    """What is closed, why, and until when.

    `ce` None = the whole site, `queue` None = the whole computing element; `until` is aware, None = until the
    ban is lifted.
    """

    site: str
    ce: str | None
    queue: str | None
    reason: str
    until: datetime | None = None

    def __post_init__(self) -> None:
        assert self.ce is not None or self.queue is None, "a ban on a queue names its computing element"

    def __str__(self) -> str:
        """Return what is closed, as the longest path that the ban names."""
        return "/".join(part for part in (self.site, self.ce, self.queue) if part is not None)

    def covers(self, queue: QueueId) -> bool:
        """Return whether `queue` lies in what is closed."""
        named = zip((self.site, self.ce, self.queue), (queue.site, queue.ce, queue.queue), strict=True)
        return all(banned is None or fold(banned) == fold(name) for banned, name in named)

    def is_active(self, now: datetime) -> bool:
        """Return whether the ban still holds at `now`; at its end it no longer does."""
        return self.until is None or now < self.until


def active_bans(bans: Iterable[Ban], queue: QueueId, now: datetime) -> tuple[Ban, ...]:
    """Return the bans that close `queue` at `now`, in the order given."""
    return tuple(ban for ban in bans if ban.covers(queue) and ban.is_active(now))
