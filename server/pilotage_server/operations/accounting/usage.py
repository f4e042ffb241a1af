"""Metering of attempts: their use is charged to their accounts when the meter stops, and summed by day at their end.

An attempt is metered from its match to its end. An attempt of a job router is metered from its start: until then it
waits in another system's queue. Where suspended time is discounted, the meter stops while the job is suspended.

Many transactions charge the same accounts. So the charges of a transaction are written as its last step, once for each
account and behind the lock of the feed. The accounts' rows are locked only briefly, and never while a transaction waits
for a job's row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar

from pilotage.values.accounts import Account
from pilotage_server.core.accounting.fair_share import accrued
from pilotage_server.core.accounting.usage_sums import (
    RunResult,
    SumKey,
    UsageSum,
    result_of,
    sums_of_attempt,
    sums_of_reports,
)
from pilotage_server.core.attempts.leases import AttemptRecord, LeasedJob, ReportBatch
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import accounting
from pilotage_server.storage.attempts import AttemptBook, AttemptKey
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.events import lock_feed


@dataclass(slots=True)
class _Use:
    """Core seconds by account, weighted and decayed up to the transaction's time, and changes of the daily sums."""

    rank: ClassVar[int] = 2

    half_life: timedelta
    core_s: dict[Account, float] = field(default_factory=dict)
    sums: dict[SumKey, UsageSum] = field(default_factory=dict)

    def add(self, account: Account, core_s: float) -> None:
        """Charge an account."""
        self.core_s[account] = self.core_s.get(account, 0.0) + core_s

    def count(self, sums: Mapping[SumKey, UsageSum], times: int = 1) -> None:
        """Add to the daily sums; `times` = -1 subtracts."""
        for key, each in sums.items():
            self.sums.setdefault(key, UsageSum()).add(each, times)

    def merge(self, part: _Use) -> None:
        """Add the charges and sums of a savepoint."""
        for account, core_s in part.core_s.items():
            self.add(account, core_s)
        self.count(part.sums)

    def write(self, transaction: Transaction) -> None:
        """Write the charges to the accounts, and the daily sums."""
        lock_feed(transaction.session)
        if self.core_s:
            accounting.charge(transaction.session, self.core_s, transaction.now, self.half_life)
        accounting.add_daily_usage(transaction.session, self.sums)


def _use(transaction: Transaction, state: ServerState) -> _Use:
    return transaction.deferred(_Use, lambda: _Use(state.rules.sharing.half_life))


def charge(transaction: Transaction, state: ServerState, account: Account, core_s: float) -> None:
    """Charge core seconds, weighted, and already decayed up to now."""
    _use(transaction, state).add(account, core_s)


def count_reported(transaction: Transaction, state: ServerState, batch: ReportBatch) -> None:
    """Count attempts in the daily sums that have ended by themselves."""
    result = RunResult.DONE if batch.steps[-1].cause is JobCause.DONE else RunResult.FAILED
    _use(transaction, state).count(sums_of_reports(batch.jobs, batch.reports, result, transaction.now))


def count_ended_attempts(
    transaction: Transaction, state: ServerState, ends: Iterable[tuple[JobRecord, AttemptRecord, JobCause]]
) -> None:
    """Count attempts in the daily sums that end now with these transitions of their jobs."""
    for job, attempt, cause in ends:
        sums = sums_of_attempt(job.owner, attempt, transaction.now, result_of(attempt, cause))
        _use(transaction, state).count(sums)


def correct_sums(
    transaction: Transaction, state: ServerState, job: JobRecord, counted: AttemptRecord, after: AttemptRecord | None
) -> None:
    """Correct the daily sums by a late report of an attempt that was `counted` as interrupted.

    `after` = the attempt with the report; None = the attempt goes on.
    """
    assert counted.ended is not None, "only ends are counted"
    use = _use(transaction, state)
    use.count(sums_of_attempt(job.owner, counted, counted.ended, RunResult.INTERRUPTED), -1)
    if after is not None:
        use.count(sums_of_attempt(job.owner, after, counted.ended, RunResult.INTERRUPTED))


def meter_moves(
    transaction: Transaction, state: ServerState, moves: Iterable[tuple[JobRecord, JobRecord]], book: AttemptBook
) -> None:
    """Stop the meters of jobs that are now suspended, and restart those of jobs that are suspended no more."""
    held = [(before, after) for before, after in moves if after.is_leased]
    paused = [_key(after) for before, after in held if _is_suspended(after) and not _is_suspended(before)]
    going = [_key(after) for before, after in held if _is_suspended(before) and not _is_suspended(after)]
    if paused and state.rules.sharing.discount_suspended:
        book.read(paused)
        stop_metering(transaction, state, _existing(book, paused))
        for key in paused:
            book.change(key, {"metered": None})
    if going:
        book.read(going)
        resume_metering(
            transaction,
            state,
            book,
            [each.key for each in _existing(book, going) if each.metered is None],
            transaction.now,
        )


def stop_metering(transaction: Transaction, state: ServerState, attempts: Iterable[AttemptRecord | LeasedJob]) -> None:
    """Charge for the use of the attempts; the caller stores that their meters have stopped."""
    half_life = state.rules.sharing.half_life
    stopped: dict[tuple[Account, datetime], list[float]] = {}
    for attempt in attempts:
        if attempt.metered is not None:
            stopped.setdefault((attempt.account, attempt.metered), []).append(attempt.weight)
    ended: dict[Account, list[float]] = {}
    for (account, since), weights in stopped.items():
        charge(
            transaction,
            state,
            account,
            accrued(sum(weights), max(0.0, (transaction.now - since).total_seconds()), half_life),
        )
        ended.setdefault(account, []).extend(weights)
    for account, weights in ended.items():
        transaction.after_commit(partial(state.end_charge, account, sum(weights), transaction.now, len(weights)))


def begin_metering(transaction: Transaction, state: ServerState, jobs: Iterable[LeasedJob]) -> None:
    """Add new attempts to the shares; the caller stores when their meters started."""
    for job in jobs:
        if job.metered is not None:
            transaction.after_commit(partial(state.start_charge, job.account, job.weight, transaction.now, job.metered))


def resume_metering(
    transaction: Transaction, state: ServerState, book: AttemptBook, keys: Sequence[AttemptKey], since: datetime
) -> None:
    """Start the meters of attempts again, from `since`."""
    for attempt in _existing(book, keys):
        book.change(attempt.key, {"metered": since})
        transaction.after_commit(partial(state.start_charge, attempt.account, attempt.weight, transaction.now, since))


def _existing(book: AttemptBook, keys: Sequence[AttemptKey]) -> list[AttemptRecord]:
    return [attempt for key in keys if (attempt := book.get(key)) is not None]


def _is_suspended(job: JobRecord) -> bool:
    return job.state is JobState.SUSPENDED


def _key(job: JobRecord) -> AttemptKey:
    return (job.id, job.attempt)
