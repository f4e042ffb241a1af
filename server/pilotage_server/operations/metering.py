"""What attempts use: charged to their accounts when it ends or pauses, and known to the shares as it goes on.

An attempt is metered from its match to its end; one that a job router holds from its start, for until then it waits in
somebody else's queue. Where suspended time is discounted, the meter stops while its job is suspended. What it has used
is charged in one piece each time the meter stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial

from pilotage_server.core.accounting import Account
from pilotage_server.core.common_reports import HeldJob
from pilotage_server.core.fair_share import accrued
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobState
from pilotage_server.core.leases import AttemptRecord
from pilotage_server.operations.attempt_book import AttemptBook
from pilotage_server.operations.usage_tab import charge
from pilotage_server.operations.world import World
from pilotage_server.storage.attempts import AttemptKey
from pilotage_server.storage.engine import Unit


def meter_moves(unit: Unit, world: World, moves: Iterable[tuple[JobRecord, JobRecord]], book: AttemptBook) -> None:
    """Stop the meters of jobs that are now suspended, and let those go on that are suspended no more."""
    held = [(before, after) for before, after in moves if after.is_leased]
    paused = [_key(after) for before, after in held if _is_suspended(after) and not _is_suspended(before)]
    going = [_key(after) for before, after in held if _is_suspended(before) and not _is_suspended(after)]
    if paused and world.rules.sharing.discount_suspended:
        book.read(paused)
        settle(unit, world, _there(book, paused))
        for key in paused:
            book.change(key, {"metered": None})
    if going:
        book.read(going)
        go_on(unit, world, book, [each.key for each in _there(book, going) if each.metered is None], unit.now)


def settle(unit: Unit, world: World, attempts: Iterable[AttemptRecord | HeldJob]) -> None:
    """Charge for what the attempts have used; their meters stop, which the caller writes down."""
    half_life = world.rules.sharing.half_life
    stopped: dict[tuple[Account, datetime], list[float]] = {}
    for attempt in attempts:
        if attempt.metered is not None:
            stopped.setdefault((attempt.account, attempt.metered), []).append(attempt.weight)
    ended: dict[Account, list[float]] = {}
    for (account, since), weights in stopped.items():
        charge(unit, world, account, accrued(sum(weights), max(0.0, (unit.now - since).total_seconds()), half_life))
        ended.setdefault(account, []).extend(weights)
    for account, weights in ended.items():
        unit.after_commit(partial(world.run_ended, account, sum(weights), unit.now, len(weights)))


def begin_metering(unit: Unit, world: World, jobs: Iterable[HeldJob]) -> None:
    """Let the shares know of attempts that have begun to use something; the caller writes down since when."""
    for job in jobs:
        if job.metered is not None:
            unit.after_commit(partial(world.run_started, job.account, job.weight, unit.now, job.metered))


def go_on(unit: Unit, world: World, book: AttemptBook, keys: Sequence[AttemptKey], since: datetime) -> None:
    """Let the meters of attempts run again, as if from `since` on."""
    for attempt in _there(book, keys):
        book.change(attempt.key, {"metered": since})
        unit.after_commit(partial(world.run_started, attempt.account, attempt.weight, unit.now, since))


def _there(book: AttemptBook, keys: Sequence[AttemptKey]) -> list[AttemptRecord]:
    return [attempt for key in keys if (attempt := book.get(key)) is not None]


def _is_suspended(job: JobRecord) -> bool:
    return job.state is JobState.SUSPENDED


def _key(job: JobRecord) -> AttemptKey:
    return (job.id, job.attempt)
