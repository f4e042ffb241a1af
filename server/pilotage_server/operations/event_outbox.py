"""The events of one transaction: appended to the feed as its last act, told to listeners after it.

Appended last, so that positions grow in the order of commits (`storage.events.lock_feed`). Listeners hear of every
step, save that a new array is told by the event of its first job alone: who needs them all reads the feed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from pilotage_server.core.job_events import JobEvent
from pilotage_server.operations.world import World
from pilotage_server.storage import events as stored
from pilotage_server.storage.engine import Unit


@dataclass(slots=True)
class _Outbox:
    """What is to be appended; arrays by template, each with its first job's event."""

    rank: ClassVar[int] = 3

    world: World
    events: list[JobEvent] = field(default_factory=list)
    arrays: list[tuple[int, JobEvent]] = field(default_factory=list)

    def take_over(self, part: _Outbox) -> None:
        """Append what a part of the transaction has to tell."""
        self.events += part.events
        self.arrays += part.arrays

    def write(self, unit: Unit) -> None:
        """Append the events to the feed, and let listeners hear of them after the commit."""
        stored.lock_feed(unit.session)
        positions = stored.append_events(unit.session, self.events) if self.events else []
        sent = [event._replace(position=at) for event, at in zip(self.events, positions, strict=True)]
        for template_id, first in self.arrays:
            position = stored.append_first_events(unit.session, template_id, first)
            sent.append(first._replace(position=position))
        unit.after_commit(partial(self.world.tell_events, tuple(sent)))


def tell(unit: Unit, world: World, *events: JobEvent) -> None:
    """Let the events be appended and told; their positions are set then."""
    unit.tab(_Outbox, lambda: _Outbox(world)).events.extend(events)


def tell_of_array(unit: Unit, world: World, template_id: int, first: JobEvent) -> None:
    """Let an event such as `first` be appended for every job of the template, and `first` be told."""
    unit.tab(_Outbox, lambda: _Outbox(world)).arrays.append((template_id, first))
