"""The events of one transaction: appended to the feed as its last act, told to listeners after it.

Appended last, so that positions grow in the order of commits (`storage.events.lock_feed`). Listeners hear of every
step, save that steps which many jobs have made alike are told by the event of the first job alone: who needs them all
reads the feed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from sqlmodel import Session

from pilotage_server.core.job_events import JobEvent
from pilotage_server.operations.world import World
from pilotage_server.storage import events as stored
from pilotage_server.storage.engine import Unit

_Store = Callable[[Session, Sequence[stored.Alike]], list[JobEvent]]


@dataclass(slots=True)
class _Steps:
    """Events of single jobs, in order."""

    events: list[JobEvent] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.events)

    def append(self, session: Session) -> list[JobEvent]:
        """Append the events to the feed, and return those to be told."""
        return stored.append_events(session, self.events)


@dataclass(slots=True)
class _ManySteps:
    """Events of many jobs that have made one step alike, in order; `store` appends them."""

    store: _Store
    alike: list[stored.Alike] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(len(ids) for ids, _ in self.alike)

    def append(self, session: Session) -> list[JobEvent]:
        """Append the events to the feed, and return those to be told."""
        return self.store(session, self.alike)


@dataclass(slots=True)
class _Outbox:
    """What is to be appended, in order."""

    rank: ClassVar[int] = 3

    world: World
    runs: list[_Steps | _ManySteps] = field(default_factory=list)

    def steps(self) -> list[JobEvent]:
        """Return the events to which the next one of a single job is to be added."""
        last = self.runs[-1] if self.runs else None
        if not isinstance(last, _Steps):
            last = _Steps()
            self.runs.append(last)
        return last.events

    def many_steps(self, store: _Store) -> list[stored.Alike]:
        """Return the steps to which the next one of many jobs is to be added that is stored so."""
        last = self.runs[-1] if self.runs else None
        if not isinstance(last, _ManySteps) or last.store is not store:
            last = _ManySteps(store)
            self.runs.append(last)
        return last.alike

    def take_over(self, part: _Outbox) -> None:
        """Append what a part of the transaction has to tell."""
        self.runs += part.runs

    def write(self, unit: Unit) -> None:
        """Append the events to the feed, and let listeners hear of them after the commit."""
        stored.lock_feed(unit.session)
        told = [event for run in self.runs for event in run.append(unit.session)]
        if self.world.others is not None and told:
            first = told[0].position
            self.world.others.note_own(first, sum(map(len, self.runs)))
            # Should the commit be made all the same, only its answer be lost, its events are heard of as others' are.
            unit.on_rollback(partial(self.world.others.disown, first))
        unit.after_commit(partial(self.world.tell_events, tuple(told)))


def tell(unit: Unit, world: World, *events: JobEvent) -> None:
    """Let the events be appended and told; their positions are set then."""
    _outbox(unit, world).steps().extend(events)


def tell_of_many(unit: Unit, world: World, first: JobEvent, job_ids: Sequence[int]) -> None:
    """Let an event such as `first`, which is of the first of new jobs, be appended for each, and `first` be told."""
    _outbox(unit, world).many_steps(stored.append_alike).append((job_ids, first))


def tell_of_matches(unit: Unit, world: World, first: JobEvent, job_ids: Sequence[int]) -> None:
    """Do so for jobs that pilots were given, their ids rising; their attempts, of one number, are stored already."""
    _outbox(unit, world).many_steps(stored.append_matches).append((job_ids, first))


def _outbox(unit: Unit, world: World) -> _Outbox:
    return unit.tab(_Outbox, lambda: _Outbox(world))
