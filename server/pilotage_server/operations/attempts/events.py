"""Events of a transaction: appended to the feed as its last act, published to listeners after the commit.

They are appended last, so that positions grow in the order of commits (`storage.events.lock_feed`). Of equal
transitions of many jobs, listeners get the event of the first job only; the feed has all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from sqlmodel import Session

from pilotage_server.core.jobs.record import FeedEvent
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import events as stored
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.submission.dependencies import insert_parent_events

_AppendUniform = Callable[[Session, Sequence[stored.UniformEvents]], list[FeedEvent]]


@dataclass(slots=True)
class _SingleEvents:
    """Events of single jobs, in order."""

    events: list[FeedEvent] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.events)

    def append(self, session: Session) -> list[FeedEvent]:
        return stored.append_events(session, self.events)


@dataclass(slots=True)
class _UniformEvents:
    """Events of many jobs with equal transitions, in order; `store` appends them."""

    store: _AppendUniform
    groups: list[stored.UniformEvents] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(len(ids) for ids, _ in self.groups)

    def append(self, session: Session) -> list[FeedEvent]:
        return self.store(session, self.groups)


@dataclass(slots=True)
class _Outbox:
    """Events to be appended, in order."""

    rank: ClassVar[int] = 3

    state: ServerState
    runs: list[_SingleEvents | _UniformEvents] = field(default_factory=list)

    def single_events(self) -> list[FeedEvent]:
        """Return the list to which the next event of a single job is added."""
        last = self.runs[-1] if self.runs else None
        if not isinstance(last, _SingleEvents):
            last = _SingleEvents()
            self.runs.append(last)
        return last.events

    def uniform_events(self, store: _AppendUniform) -> list[stored.UniformEvents]:
        """Return the list to which the next transition of many jobs is added that `store` appends."""
        last = self.runs[-1] if self.runs else None
        if not isinstance(last, _UniformEvents) or last.store is not store:
            last = _UniformEvents(store)
            self.runs.append(last)
        return last.groups

    def merge(self, part: _Outbox) -> None:
        """Add the events of a savepoint."""
        self.runs += part.runs

    def write(self, transaction: Transaction) -> None:
        """Append the events to the feed, and publish them after the commit."""
        stored.lock_feed(transaction.session)
        published = [event for run in self.runs for event in run.append(transaction.session)]
        if self.state.feed_cursor is not None and published:
            first = published[0].position
            self.state.feed_cursor.add_own(first, sum(map(len, self.runs)))
            # If only the answer of the commit was lost, the events are read from the feed like those of other servers.
            transaction.on_rollback(partial(self.state.feed_cursor.remove_own, first))
        transaction.after_commit(partial(self.state.publish_events, tuple(published)))


def publish_events(transaction: Transaction, state: ServerState, *events: FeedEvent) -> None:
    """Append the events at the end of the transaction and publish them; this sets their positions."""
    _outbox(transaction, state).single_events().extend(events)


def publish_new_jobs(transaction: Transaction, state: ServerState, first: FeedEvent, job_ids: Sequence[int]) -> None:
    """Append an event like `first` for each of these new jobs; publish only `first`, which is of the first job."""
    _outbox(transaction, state).uniform_events(stored.append_uniform).append((job_ids, first))


def publish_matches(transaction: Transaction, state: ServerState, first: FeedEvent, job_ids: Sequence[int]) -> None:
    """Append an event like `first` for each matched job, ids ascending. Their attempts must be stored already."""
    _outbox(transaction, state).uniform_events(stored.append_matches).append((job_ids, first))


def publish_parent_events(transaction: Transaction, state: ServerState, job_ids: Sequence[int]) -> None:
    """Record that these jobs have done what a dependency watches for; it is examined soon after the commit."""
    if job_ids:
        insert_parent_events(transaction.session, job_ids)
        transaction.after_commit(state.publish_parent_events)


def _outbox(transaction: Transaction, state: ServerState) -> _Outbox:
    return transaction.deferred(_Outbox, lambda: _Outbox(state))
