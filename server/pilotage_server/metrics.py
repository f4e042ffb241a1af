"""The metrics of a server: what is in memory when they are scraped, and counts that are refreshed at intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from threading import Lock

from pilotage.clock import BootClock
from pilotage.metrics import table
from pilotage.metrics.values import Sample, Source
from pilotage_server.background import PeriodicTask, TaskOutcomes
from pilotage_server.core.jobs.record import FeedEvent
from pilotage_server.core.jobs.states import FINAL
from pilotage_server.operations.server_state import ServerState
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.rpc.server import RpcServer
from pilotage_server.storage.database.disk import DiskSpace
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.database.write_counts import WriteCounts
from pilotage_server.storage.leadership import leadership_ends
from pilotage_server.storage.notifications.subscriptions import newest_position
from pilotage_server.storage.pilots import count_slots, count_states

COUNT_EVERY_S = 5.0
"""Interval of the counts that need the database, or a look at all task queues."""

PAUSE_FACTOR = 50
"""The pause after these counts as a multiple of their duration, which bounds the share of time that they take."""


MISSED_FOR = timedelta(days=7)
"""An agent without a leader for longer is taken as gone for good."""


@dataclass(frozen=True, slots=True)
class ServerParts:
    """The parts of a server whose numbers become metrics."""

    transactions: Transactions
    rpc: RpcServer
    disk: DiskSpace
    outcomes: TaskOutcomes

    def sources(self) -> Iterator[Source]:
        """Yield the sources of metrics that are in memory."""
        yield lambda: _calls(self.rpc)
        yield lambda: _writes(self.transactions.database.write_counts)
        yield lambda: _matching(self.transactions.state)
        yield lambda: _disks(self.disk)
        yield lambda: _tasks(self.outcomes)


def _calls(rpc: RpcServer) -> Iterator[Sample]:
    for counts in rpc.call_counts:
        by_code = counts.by_code.copy()  # the serving thread may add a code meanwhile
        for code, count in by_code.items():
            yield Sample(table.CALLS, (counts.name, code), count)
        if by_code:
            yield Sample(table.CALL_SECONDS, (counts.name,), counts.durations_s)
    for callers, count in rpc.calls_in_flight().items():
        yield Sample(table.CALLS_IN_FLIGHT, (callers,), count)


def _writes(counts: WriteCounts) -> Iterator[Sample]:
    for result, count in counts.by_result.copy().items():
        yield Sample(table.DATABASE_WRITES, (result,), count)
    yield Sample(table.DATABASE_WRITE_SECONDS, (), counts.durations_s)
    yield Sample(table.DATABASE_COMMIT_SIZE, (), counts.group_sizes)


def _matching(state: ServerState) -> Iterator[Sample]:
    yield Sample(table.MATCHES, (), state.matcher.committed_total)
    yield Sample(table.MATCHES_MISSED, (), state.matcher.exhausted_total)
    yield Sample(table.TREE_VERSION, (), state.tree.version)


def _disks(disk: DiskSpace) -> Iterator[Sample]:
    for folder, free, reserve in disk.free():
        yield Sample(table.DISK_FREE, (str(folder),), free)
        yield Sample(table.DISK_RESERVE, (str(folder),), reserve)


def _tasks(outcomes: TaskOutcomes) -> Iterator[Sample]:
    for task, time_s in outcomes.last_success_s.copy().items():
        yield Sample(table.TASK_SUCCESS, (task,), time_s)
    for task, failures in outcomes.failures.copy().items():
        yield Sample(table.TASK_FAILURES, (task,), failures)


class EndedJobs:
    """Counts the jobs that this server moves to a final state, from its construction on."""

    def __init__(self, state: ServerState) -> None:
        self._counts = Counter(dict.fromkeys(FINAL, 0))
        self._lock = Lock()  # several writer threads publish events
        state.event_listeners.append(self._count)

    def _count(self, events: Sequence[FeedEvent]) -> None:
        ended = [event.to_state for event in events if event.to_state in FINAL and event.from_state not in FINAL]
        if ended:
            with self._lock:
                self._counts.update(ended)

    def samples(self) -> Iterator[Sample]:
        """Yield the counts by result."""
        with self._lock:
            counts = self._counts.copy()
        for state, count in counts.items():
            yield Sample(table.JOBS_ENDED, (state.value.lower(),), count)


class PeriodicCounts:
    """Counts of pilots, slots, waiting and running jobs, as last read; none while they cannot be read."""

    def __init__(self, transactions: Transactions, boot_clock: BootClock) -> None:
        self._transactions = transactions
        self._boot_clock = boot_clock
        self._next_s = 0.0
        self._samples: Sequence[Sample] = ()

    def task(self) -> PeriodicTask:
        """Return the periodic task that refreshes the counts."""
        return PeriodicTask("counts for metrics", COUNT_EVERY_S, self.refresh)

    async def refresh(self) -> None:
        """Count again, unless the last time took long; a failure removes the counts."""
        began_s = self._boot_clock()
        if began_s < self._next_s:
            return
        found: Sequence[Sample] = ()
        try:
            found = await self._transactions.read(lambda transaction, state: [*_counts(transaction, state)])
        finally:
            self._samples = found
        ended_s = self._boot_clock()
        self._next_s = ended_s + PAUSE_FACTOR * (ended_s - began_s)

    def samples(self) -> Iterable[Sample]:
        """Return the counts."""
        return self._samples


def _counts(transaction: Transaction, state: ServerState) -> Iterator[Sample]:
    with state.lock:
        waiting, running = state.waiting.count_by_vo(), state.shares.runs_by_vo()
    for vo, count in waiting.items():
        yield Sample(table.JOBS_WAITING, (vo,), count)
    for vo, count in running.items():
        yield Sample(table.JOBS_RUNNING, (vo,), count)
    for queue, pilot_state, count in count_states(transaction.session):
        place = (queue.site, queue.ce, queue.queue, pilot_state.value.lower())
        yield Sample(table.PILOTS, place, count)
    for queue, count in count_slots(transaction.session):
        yield Sample(table.SLOTS, (queue.site, queue.ce, queue.queue), count)
    for agent, until in leadership_ends(transaction.session, transaction.now - MISSED_FOR).items():
        yield Sample(table.LEADER_UNTIL, (agent,), until.timestamp())
    yield Sample(table.FEED_POSITION, (), newest_position(transaction.session))
