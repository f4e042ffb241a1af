"""The events of one transaction: appended to the feed as its last act, told to listeners after it.

Appended last, so that positions grow in the order of commits (`storage.events.lock_feed`). Listeners hear of every
step, save that new jobs alike are told by the event of the first one alone: who needs them all reads the feed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from pilotage_server.core.job_events import JobEvent
from pilotage_server.operations.world import World
from pilotage_server.storage import events as stored
from pilotage_server.storage.engine import Unit


@dataclass(slots=True)
class _Outbox:
    """What is to be appended; `alike` = new jobs, of which the first one's event stands for all."""

    rank: ClassVar[int] = 3

    world: World
    events: list[JobEvent] = field(default_factory=list)
    alike: list[tuple[Sequence[int], JobEvent]] = field(default_factory=list)

    def take_over(self, part: _Outbox) -> None:
        """Append what a part of the transaction has to tell."""
        self.events += part.events
        self.alike += part.alike

    def write(self, unit: Unit) -> None:
        """Append the events to the feed, and let listeners hear of them after the commit."""
        stored.lock_feed(unit.session)
        # How jobs came is told before what has happened to them since.
        positions = [*stored.append_alike(unit.session, self.alike), *stored.append_events(unit.session, self.events)]
        if self.world.others is not None and positions:
            self.world.others.note_own(positions[0], sum(len(ids) for ids, _ in self.alike) + len(self.events))
            # Should the commit be made all the same, only its answer be lost, its events are heard of as others' are.
            unit.on_rollback(partial(self.world.others.disown, positions[0]))
        events = [*(first for _, first in self.alike), *self.events]
        sent = [JobEvent(at, *event[1:]) for event, at in zip(events, positions, strict=True)]
        unit.after_commit(partial(self.world.tell_events, tuple(sent)))


def tell(unit: Unit, world: World, *events: JobEvent) -> None:
    """Let the events be appended and told; their positions are set then."""
    unit.tab(_Outbox, lambda: _Outbox(world)).events.extend(events)


def tell_of_many(unit: Unit, world: World, first: JobEvent, job_ids: Sequence[int]) -> None:
    """Let an event such as `first`, which is of the first of new jobs, be appended for each, and `first` be told."""
    unit.tab(_Outbox, lambda: _Outbox(world)).alike.append((job_ids, first))
