"""Periodic tasks of a server: lease expiry, job policies, circuit breakers, retention, sync with other servers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeVar

import structlog

from pilotage.clock import BootClock, Clock, boot_time_s, now, thread_cpu_s
from pilotage.errors import WorldError
from pilotage.telemetry import new_trace, trace_bound
from pilotage_server.core.health.evidence import FAILURES
from pilotage_server.core.health.throttles import ThrottleChange
from pilotage_server.core.jobs.periodic_policies import pause_s
from pilotage_server.core.jobs.record import FeedEvent, PolicyWatch
from pilotage_server.core.rules import PolicyRules
from pilotage_server.operations.accounting.shares import load_overrides, refresh_pool_size, take_unsorted_groups
from pilotage_server.operations.attempts.expiry import expire_leases, record_server_life
from pilotage_server.operations.attempts.tails import sync_tails
from pilotage_server.operations.health import HealthWatch, store_changes
from pilotage_server.operations.installation import confirm_place, last_seen
from pilotage_server.operations.jobs.dependencies import advance
from pilotage_server.operations.jobs.notifications import make_notifications, scan_events
from pilotage_server.operations.jobs.periodic_policies import PolicyScan, apply_policies, scan_changed, scan_next
from pilotage_server.operations.jobs.retention import PREFIXES, REMOVALS, oldest_kept, sweep_files
from pilotage_server.operations.overview import count_minute, keep_counts
from pilotage_server.operations.revocations import sync_revocations
from pilotage_server.operations.server_state import ServerState
from pilotage_server.operations.startup.loading import count_pending, queue_recounts, refresh_state, refresh_uses
from pilotage_server.operations.startup.sync import sync_events, sync_resources
from pilotage_server.rpc.framework.calls import wait_for_event
from pilotage_server.rpc.framework.transactions import Operation, Transactions
from pilotage_server.rpc.jobs.service import store_parts
from pilotage_server.settings import ServerSettings
from pilotage_server.storage.blobs.base import FileStore
from pilotage_server.storage.database.disk import DiskSpace
from pilotage_server.storage.database.fence import FencedError
from pilotage_server.storage.database.last_seen import LastSeenFile
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.retention import WatchPosition, first_watched
from pilotage_server.storage.submission.dependencies import has_work
from pilotage_server.storage.submission.parts import unfinished_submissions

log = structlog.get_logger()

Result = TypeVar("Result")

BATCH = 200
"""Jobs that are evaluated between two pauses."""

FULL_CYCLE_EVERY_S = 3600.0
"""Interval of a cycle over all jobs with policies: the queue of changed jobs is lost with its server."""


class PolicyTask:
    """Evaluates the policies of changed jobs, and in cycles those of all jobs whose policies depend on time.

    A cycle follows the order of ids, so that every job has its turn. The next cycle starts `interval` after the start
    of the previous one. Pauses limit the share of a processor.
    """

    def __init__(self, transactions: Transactions, boot_clock: BootClock = boot_time_s) -> None:
        self._transactions = transactions
        self._boot_clock = boot_clock
        self._position: WatchPosition | None = None
        self._next_cycle_s = 0.0
        self._next_full_cycle_s = 0.0

    async def run_once(self) -> None:
        """Evaluate until no changed job is left and the cycle is over."""
        self._begin_cycle()
        while True:
            used_s = await self._evaluate_batch()
            if used_s is None:
                return
            await asyncio.sleep(pause_s(used_s, self._rules.cpu_share))

    @property
    def _rules(self) -> PolicyRules:
        return self._transactions.state.rules.policies

    def _begin_cycle(self) -> None:
        now_s = self._boot_clock()
        is_due = self._position is None and now_s >= self._next_cycle_s
        if self._transactions.state.policy_checks.pop_all_flag() or (is_due and now_s >= self._next_full_cycle_s):
            self._position = first_watched(PolicyWatch.ON_CHANGE)
            self._next_full_cycle_s = now_s + FULL_CYCLE_EVERY_S
        elif is_due:
            self._position = first_watched(PolicyWatch.EACH_MINUTE)
        else:
            return
        self._next_cycle_s = now_s + self._rules.interval.total_seconds()

    async def _evaluate_batch(self) -> float | None:
        """Evaluate some changed jobs, and some of the cycle.

        Returns the CPU seconds used; None = there was nothing to do.
        """
        position, jobs, used_s = self._position, 0, 0.0
        if self._transactions.state.policy_checks.has_any:
            seen, used_s = await self._evaluate(lambda transaction, state: scan_changed(transaction, state, BATCH))
            jobs = seen.jobs
        if position is not None:
            seen, also_s = await self._evaluate(
                lambda transaction, state: scan_next(transaction, state, position, BATCH)
            )
            self._position = seen.position
            jobs, used_s = jobs + seen.jobs, used_s + also_s
        return used_s if jobs else None

    async def _evaluate(self, operation: Operation[PolicyScan]) -> tuple[PolicyScan, float]:
        def timed(transaction: Transaction, state: ServerState) -> tuple[PolicyScan, float]:
            start_s = thread_cpu_s()
            return operation(transaction, state), thread_cpu_s() - start_s

        seen, used_s = await self._transactions.read(timed)
        if seen.due:
            moved = await self._transactions.write(
                lambda transaction, state: apply_policies(transaction, state, seen.due)
            )
            log.info("jobs moved by policies", jobs=len(moved))
        return seen, used_s


MAX_CYCLES_BETWEEN_CHECKS = 40
"""After this many cycles there is a check in any case."""

MIN_CYCLES_BETWEEN_CHECKS = 5
"""Failures cause a check after this many cycles already; the number doubles with each check that changes nothing."""

PAUSE_FACTOR = 20
"""The pause after a check as a multiple of its duration, which bounds the share of time that checks take."""


class HealthTask:
    """Opens and closes circuit breakers of locations whose jobs fail fast, unless another server was faster.

    A black hole eats hundreds of jobs a second, so as many failures as the strictest limit cause a check. Where jobs
    fail all the time for their own reasons, such checks become as rare as the regular ones.
    """

    def __init__(self, transactions: Transactions, boot_clock: BootClock) -> None:
        self._transactions = transactions
        self._boot_clock = boot_clock
        self._next_check_s = 0.0
        self._watch = HealthWatch()
        self._failure_threshold = transactions.state.rules.health.least_failures
        self._failures = 0
        self._cycles = MAX_CYCLES_BETWEEN_CHECKS
        self._pause_cycles = MIN_CYCLES_BETWEEN_CHECKS
        transactions.state.event_listeners.append(self._count_failures)

    def _count_failures(self, events: Sequence[FeedEvent]) -> None:
        """Count failures, in any thread; a lost update between two threads does no harm."""
        self._failures += sum(event.cause in FAILURES for event in events)

    async def run_once(self) -> None:
        """Check what has ended since the last check, if it is time."""
        self._cycles += 1
        is_alarmed = self._failures >= self._failure_threshold
        is_time = self._cycles >= MAX_CYCLES_BETWEEN_CHECKS or (is_alarmed and self._cycles > self._pause_cycles)
        if not is_time or self._boot_clock() < self._next_check_s:
            return
        self._failures = self._cycles = 0
        began_s = self._boot_clock()
        found = await self._transactions.read(self._watch.review)
        ended_s = self._boot_clock()
        self._next_check_s = ended_s + PAUSE_FACTOR * (ended_s - began_s)
        self._pause_cycles = 2 * self._pause_cycles if is_alarmed and not found.changes else MIN_CYCLES_BETWEEN_CHECKS
        if await self._store(found.changes):
            self._watch.commit(found)

    async def _store(self, changes: Sequence[ThrottleChange]) -> bool:
        """Store the changes; False = another server was faster with one, so the next check has to read its result."""
        if not changes:
            return True
        made = await self._transactions.write(partial(store_changes, changes=changes))
        for change in made:
            _log(change)
        return len(made) == len(changes)


def _log(change: ThrottleChange) -> None:
    new = change.new
    if new is None:
        return
    if change.old is None:
        log.warning("place throttled", place=new.location.key, why=new.reason)
    elif new.is_tripped:
        log.info("place tried", place=new.location.key, proofs=new.proofs, why=new.reason)
    else:
        log.info("place opened", place=new.location.key, why=new.reason)


SYNC_JOBS_EVERY_S = 0.5
"""Interval of the sync with jobs that other servers changed."""

SYNC_TREES_EVERY_S = 3.0
"""Interval of the sync with their trees, pools, bans and revocations."""

SHARES_EVERY_S = 8.0
"""Interval of the sync with the running jobs of all servers, for fair shares."""

RECOUNT_EVERY_S = 300.0
"""Interval of a complete recount, for changes that the event feed does not have."""

COUNT_WAITING_EVERY_S = 2.0
"""Interval of attempts to count the waiting jobs of busy task queues."""

COUNT_CORES_EVERY_S = 30.0
"""Interval of the count of all cores, of which quotas are a part."""

LOG_UNSORTED_EVERY_S = 10.0
"""Interval of looking for groups that group_sort_expression cannot sort."""

HEALTH_EVERY_S = 0.1
"""Length of a cycle of `HealthTask`."""

POLICIES_EVERY_S = 1.0
"""Delay until the policies of a changed job are evaluated."""


@dataclass(frozen=True, slots=True)
class PeriodicTask:
    """A function to be run every `every_s` seconds, and whenever `woken` is set; it clears that."""

    name: str
    every_s: float
    run_once: Callable[[], Awaitable[None]]
    woken: asyncio.Event | None = None


LIFE_TIMEOUT_S = 10.0
"""A database that has not stored the liveness mark by then counts as one that cannot be written."""

STORE_EVERY_S = 5.0
"""Interval of looking at the store of files, which may cost a request to an object store."""

DISK_EVERY_S = 1.0
"""Interval at which the space on the disks is read."""


class TaskOutcomes:
    """The outcomes of the periodic tasks by their names: last success (Unix time), failures, and which fail now."""

    def __init__(self, clock: Clock = now) -> None:
        self.last_success_s: dict[str, float] = {}
        self.failures: dict[str, int] = {}
        self.failing: frozenset[str] = frozenset()
        self._clock = clock

    def add(self, task: str, *, failed: bool) -> None:
        """Record a run of a task."""
        self.failures[task] = self.failures.get(task, 0) + failed
        self.failing = self.failing | {task} if failed else self.failing - {task}
        if not failed:
            self.last_success_s[task] = self._clock().timestamp()


class HealthReport:
    """What the server can do now: write to the database, take jobs and uploads, and use the store of files.

    The health service reports the first two only: another server may be better off.
    """

    def __init__(self, disk: DiskSpace, store: FileStore, report: Callable[..., None]) -> None:
        self._disk = disk
        self._store = store
        self._store_fault = ""
        self._report = report
        self._is_writable = True
        self._disk_fault = ""

    def report_writable(self, is_writable: bool) -> None:
        """Record whether the database can be written."""
        if is_writable is not self._is_writable:
            log.warning("database can be written again" if is_writable else "database cannot be written")
        self._is_writable = is_writable
        self._send()

    async def look_at_disk(self) -> None:
        """Keep the ballast, and record whether the disk has room."""
        await asyncio.to_thread(self._disk.keep_ballast)
        fault = await asyncio.to_thread(self._disk.fault)
        if bool(fault) is not bool(self._disk_fault):
            log.warning(
                "uploads and submissions are refused" if fault else "uploads and submissions are taken", why=fault
            )
        self._disk_fault = fault
        self._send()

    async def look_at_store(self) -> None:
        """Record whether the store of files can be used."""
        fault = ""
        try:
            await asyncio.to_thread(self._store.check)
        except WorldError as error:
            fault = str(error)
        if bool(fault) is not bool(self._store_fault):
            log.warning("files cannot be stored" if fault else "files can be stored again", why=fault)
        self._store_fault = fault

    def fault(self) -> str:
        """Return why the server does not serve in full, "" = it does."""
        return self._disk_fault or self._store_fault if self._is_writable else "the database cannot be written"

    def _send(self) -> None:
        self._report(is_writable=self._is_writable, has_room=not self._disk_fault)


class LeaseTasks:
    """Ends expired leases, and updates the server's liveness mark; `stop` ends a server that is fenced."""

    def __init__(
        self, transactions: Transactions, report_writable: Callable[[bool], None], stop: Callable[[WorldError], None]
    ) -> None:
        self._transactions = transactions
        self._report_writable = report_writable
        self._stop = stop
        self._alive_boot_s: float | None = None
        """When this server was last recorded as alive, on the boot clock."""

    async def note_alive(self) -> None:
        """Update the server's liveness mark; this shows too whether the database can be written."""
        try:
            async with asyncio.timeout(LIFE_TIMEOUT_S):
                gap = await self._record(_show_life)
        except (TimeoutError, WorldError) as error:
            self._report_writable(False)
            if isinstance(error, FencedError):
                self._stop(error)
            raise
        self._report_writable(True)
        _log_gap(gap)

    async def expire(self) -> None:
        """Requeue the jobs of expired leases."""
        more = True
        while more:
            expired = await self._record(expire_leases)
            _log_gap(expired.gap)
            if expired.jobs or expired.pilots:
                log.info("leases expired", jobs=len(expired.jobs), lost_pilots=len(expired.pilots))
            more = expired.more

    async def _record(self, operation: Callable[[Transaction, ServerState, timedelta | None], Result]) -> Result:
        """Run an operation that records the server as alive, with the time since the record before."""
        before_s, now_s = self._alive_boot_s, 0.0

        def record(transaction: Transaction, state: ServerState) -> Result:
            nonlocal now_s
            now_s = transaction.boot_s  # both clocks at one time: other operations of the transaction may take long
            return operation(transaction, state, None if before_s is None else timedelta(seconds=now_s - before_s))

        result = await self._transactions.write(record)
        self._alive_boot_s = now_s
        return result


def _show_life(transaction: Transaction, state: ServerState, elapsed: timedelta | None) -> timedelta:
    confirm_place(transaction)
    return record_server_life(transaction, state, elapsed)


def _log_gap(gap: timedelta) -> None:
    if gap:
        why = "no server was running, or the clock was set"
        log.warning("leases extended", why=why, gap_s=gap.total_seconds())


class LastSeenTask:
    """Keeps beside the database what a backup of it would lack, so that a restore is noticed at the start."""

    def __init__(self, transactions: Transactions, file: LastSeenFile) -> None:
        self._transactions = transactions
        self._file = file

    async def run_once(self) -> None:
        """Write what is committed, if it is more than before."""
        seen = await self._transactions.read(lambda transaction, _: last_seen(transaction))
        await asyncio.to_thread(self._file.save, seen)


class SyncTasks:
    """Sync this server's memory with changes by other servers on the same database."""

    def __init__(self, transactions: Transactions, wake_followers: Callable[[], None]) -> None:
        self._transactions = transactions
        self._wake_followers = wake_followers

    def all(self) -> tuple[PeriodicTask, ...]:
        """Return the tasks, the most frequent first."""
        read = self._transactions.read
        return (
            PeriodicTask("jobs of neighbours", SYNC_JOBS_EVERY_S, self.sync_jobs),
            PeriodicTask("trees and pools of neighbours", SYNC_TREES_EVERY_S, self.sync_trees),
            PeriodicTask("shares over all servers", SHARES_EVERY_S, partial(read, refresh_uses)),
            PeriodicTask("recount", RECOUNT_EVERY_S, self.recount),
        )

    async def sync_jobs(self) -> None:
        """Apply the changes of waiting jobs, and wake the calls that follow events."""
        if await self._transactions.read(sync_events):
            self._wake_followers()

    async def sync_trees(self) -> None:
        """Apply changes of trees, bans, revocations, wanted tails, pools, priority factors and quotas."""

        def catch_up_with_all(transaction: Transaction, state: ServerState) -> None:
            sync_revocations(transaction, state)
            sync_tails(transaction, state)
            sync_resources(transaction, state)
            load_overrides(transaction, state)

        await self._transactions.read(catch_up_with_all)

    async def recount(self) -> None:
        """Compare the memory with the database and correct it."""
        state = self._transactions.state
        with state.lock:
            before = state.waiting.snapshot()
        await self._transactions.read(lambda transaction, state: refresh_state(transaction, state, before))


class CountTask:
    """Counts the waiting jobs of task queues whose count is unknown."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def run_once(self) -> None:
        """Count the task queues that do not change meanwhile; the others follow in a later run."""
        state = self._transactions.state
        queue_recounts(state)
        if not state.pending_counts:
            return
        with state.lock:
            before = state.waiting.snapshot(state.pending_counts)
        await self._transactions.read(lambda transaction, state: count_pending(transaction, state, before))


class RetentionTask:
    """Removes what is past its retention, in small batches, and sweeps the files portion by portion."""

    def __init__(self, transactions: Transactions, store: FileStore) -> None:
        self._transactions = transactions
        self._store = store
        self._portions: Iterator[str] = itertools.cycle(PREFIXES)

    async def run_once(self) -> None:
        """Remove everything past its retention, and sweep one portion of the files."""
        for remove in REMOVALS:
            while removed := await self._transactions.write(remove):
                log.info("old things removed", kind=remove.__name__, removed=removed)
        await self._sweep(next(self._portions))

    async def _sweep(self, prefix: str) -> None:
        """Remove the contents with this prefix that are not needed, and, once in a cycle, abandoned uploads."""
        before = await self._transactions.read(oldest_kept)
        database, listing = self._transactions.database, self._store.list(prefix, before)
        while await asyncio.to_thread(sweep_files, database, self._store, listing, before):
            pass
        if prefix == PREFIXES[0]:
            await asyncio.to_thread(self._store.sweep_unfinished, before)


DEPENDENCIES_EVERY_S = 10.0
"""Interval of looking for events of parents that another server has recorded and not examined, because it ended."""


class DependencyTask:
    """Lets jobs wait as soon as their dependencies are met: `woken` by every commit with events of their parents."""

    def __init__(self, transactions: Transactions) -> None:
        self.woken = asyncio.Event()
        self._transactions = transactions
        self._loop = asyncio.get_running_loop()
        transactions.state.parent_listeners.append(self._wake)

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self.woken.set)

    async def run_once(self) -> None:
        """Examine all events, and free all jobs whose dependencies are met."""
        self.woken.clear()
        if await self._transactions.read(lambda transaction, _: has_work(transaction.session)):
            while await self._transactions.write(advance):
                pass


NOTIFICATIONS_EVERY_S = 1.0
"""Interval of comparing new events with the open subscriptions."""


async def make_all_notifications(transactions: Transactions) -> None:
    """Make the notifications that follow from all events so far."""
    while (scan := await transactions.read(scan_events)) is not None:
        await transactions.write(partial(make_notifications, scan=scan))
        if not scan.more:
            return


async def log_unsorted_groups(state: ServerState) -> None:
    """Log the groups, each once, that go last because group_sort_expression yields no number for them."""
    for group, why in take_unsorted_groups(state).items():
        log.warning("group goes last", group=str(group), setting="group_sort_expression", why=why)


FINISH_SUBMISSIONS_EVERY_S = 10.0
"""Interval of looking for submissions whose calls have ended early."""


async def finish_submissions(transactions: Transactions) -> None:
    """Store what is left of submissions; the server of a call may have been killed, or the call cancelled."""
    for submission in await transactions.read(
        lambda transaction, _: unfinished_submissions(transaction.session, transaction.now)
    ):
        await store_parts(transactions, submission)


COUNT_JOBS_EVERY_S = 15.0
"""Interval of looking whether the counts of the last minute are kept."""


async def keep_job_counts(transactions: Transactions) -> None:
    """Keep the counts of the last whole minute; several servers keep them once."""
    counted = await transactions.read(count_minute)
    if counted is not None:
        await transactions.write(partial(keep_counts, counted=counted))


def periodic_tasks(
    settings: ServerSettings,
    transactions: Transactions,
    store: FileStore,
    wake_followers: Callable[[], None],
    health: HealthReport,
    stop: Callable[[WorldError], None],
) -> tuple[PeriodicTask, ...]:
    """Return the periodic tasks of a server; `wake_followers` wakes the calls that follow events.

    `stop` ends the server, which another release or a restore has fenced.
    """
    leases = LeaseTasks(transactions, health.report_writable, stop)
    retention, seen = RetentionTask(transactions, store), LastSeenTask(transactions, LastSeenFile(settings.data))
    dependencies = DependencyTask(transactions)
    neighbours = () if transactions.database.is_sqlite else SyncTasks(transactions, wake_followers).all()
    return (
        PeriodicTask("sign of life", settings.alive_every_s, leases.note_alive),
        PeriodicTask("what was seen last", settings.alive_every_s, seen.run_once),
        PeriodicTask("disk space", DISK_EVERY_S, health.look_at_disk),
        PeriodicTask("store of files", STORE_EVERY_S, health.look_at_store),
        PeriodicTask("lease expiry", settings.expire_every_s, leases.expire),
        PeriodicTask("cores for quotas", COUNT_CORES_EVERY_S, partial(transactions.read, refresh_pool_size)),
        PeriodicTask("order of groups", LOG_UNSORTED_EVERY_S, partial(log_unsorted_groups, transactions.state)),
        PeriodicTask("counts of what waits", COUNT_WAITING_EVERY_S, CountTask(transactions).run_once),
        PeriodicTask("counts of jobs over time", COUNT_JOBS_EVERY_S, partial(keep_job_counts, transactions)),
        PeriodicTask("policies", POLICIES_EVERY_S, PolicyTask(transactions).run_once),
        PeriodicTask("health of places", HEALTH_EVERY_S, HealthTask(transactions, boot_time_s).run_once),
        PeriodicTask("rest of submissions", FINISH_SUBMISSIONS_EVERY_S, partial(finish_submissions, transactions)),
        PeriodicTask("dependencies", DEPENDENCIES_EVERY_S, dependencies.run_once, dependencies.woken),
        PeriodicTask("notifications", NOTIFICATIONS_EVERY_S, partial(make_all_notifications, transactions)),
        PeriodicTask("retention", settings.retention_every_s, retention.run_once),
        *neighbours,
    )


async def run_periodically(task: PeriodicTask, stopping: asyncio.Event, outcomes: TaskOutcomes) -> None:
    """Run a task until the server stops; a failure is logged, and the next run follows.

    A task that is woken earlier ends when it is cancelled.
    """
    failures = 0
    while not stopping.is_set():
        failures = 0 if await _try_run(task, failures) else failures + 1
        outcomes.add(task.name, failed=failures > 0)
        await wait_for_event(task.every_s, task.woken or stopping)


async def _try_run(task: PeriodicTask, failures_before: int) -> bool:
    with trace_bound(new_trace()):
        try:
            await task.run_once()
        except Exception as error:  # the edge of a loop
            failures = failures_before + 1
            if failures & (failures - 1) == 0:  # only the 1st, 2nd, 4th, 8th …: a lasting failure must not fill the log
                unexpected = None if isinstance(error, WorldError) else error
                log.error("duty failed", duty=task.name, failures=failures, why=str(error), exc_info=unexpected)
            return False
    if failures_before:
        log.info("duty works again", duty=task.name, failures=failures_before)
    return True
