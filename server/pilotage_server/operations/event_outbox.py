"""The events of one transaction: appended to the feed as its last act, told to listeners after it.

Appended last, so that positions grow in the order of commits (`storage.events.lock_feed`). Listeners hear of every
step, save that a new array is told by the event of its first job alone: who needs them all reads the feed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pilotage_server.core.job_events import JobEvent
from pilotage_server.operations.world import World
from pilotage_server.storage import events as stored
from pilotage_server.storage.engine import Unit

_KEY = "events of this transaction"


@dataclass(slots=True)
class _Outbox:
    """What is to be appended; arrays by template, each with its first job's event."""

    events: list[JobEvent] = field(default_factory=list)
    arrays: list[tuple[int, JobEvent]] = field(default_factory=list)


def tell(unit: Unit, world: World, event: JobEvent) -> None:
    """Let the event be appended and told; its position is set then."""
    _outbox(unit, world).events.append(event)


def tell_of_array(unit: Unit, world: World, template_id: int, first: JobEvent) -> None:
    """Let an event such as `first` be appended for every job of the template, and `first` be told."""
    _outbox(unit, world).arrays.append((template_id, first))


def _outbox(unit: Unit, world: World) -> _Outbox:
    outbox: _Outbox | None = unit.notes.get(_KEY)
    if outbox is None:
        outbox = unit.notes[_KEY] = _Outbox()
        unit.before_commit(lambda: _send(unit, world))
    return outbox


def _send(unit: Unit, world: World) -> None:
    outbox: _Outbox = unit.notes.pop(_KEY)
    stored.lock_feed(unit.session)
    positions = stored.append_events(unit.session, outbox.events) if outbox.events else []
    sent = [replace(event, position=at) for event, at in zip(outbox.events, positions, strict=True)]
    for template_id, first in outbox.arrays:
        position = stored.append_first_events(unit.session, template_id, first)
        sent.append(replace(first, position=position))
    unit.after_commit(lambda: world.tell_events(tuple(sent)))
