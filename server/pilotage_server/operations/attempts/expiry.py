"""Expired leases and silent pilots, unless the servers themselves were down or their clock has jumped."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pilotage.values.pilots import PilotState
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.core.pilots.pilots import is_silent
from pilotage_server.operations.attempts.transitions import LostAttempt, release_expired_fences, requeue_or_fail
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import leases
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.pilots import change_pilots, load_silent, remove_slots

_BATCH = 500
"""Jobs of one sweep: a bound on how long the transaction blocks others."""

CLOCK_JUMP = timedelta(seconds=2)
"""A clock that advances by so much more than the boot clock has been set."""


@dataclass(frozen=True, slots=True)
class Expired:
    """The jobs and pilots that a sweep has given up; `more` = more jobs are due.

    `gap` = the time by which all leases were extended first: that without any server, or by which the clock was set.
    """

    jobs: tuple[int, ...]
    pilots: tuple[str, ...]
    more: bool
    gap: timedelta = timedelta(0)


def expire_leases(transaction: Transaction, state: ServerState, elapsed: timedelta | None = None) -> Expired:
    """Requeue the jobs with expired leases, and mark pilots as lost that have been silent for long.

    A server that was suspended could not be reached by its pilots, so each sweep first measures such a gap; `elapsed`
    as for `record_server_life`.
    """
    gap = record_server_life(transaction, state, elapsed)
    expired = leases.lock_expired(transaction.session, transaction.now, _BATCH)
    lost_attempts = [LostAttempt(job, JobCause.LEASE_LOST, f"pilot {job.pilot_stamp} was silent") for job in expired]
    moved = requeue_or_fail(transaction, state, lost_attempts, actor="server")
    jobs = tuple(job.id for job in moved if job is not None)
    released = release_expired_fences(transaction, state, _BATCH)
    return Expired(jobs, _give_up_pilots(transaction, state), more=_BATCH in {len(expired), released}, gap=gap)


def _give_up_pilots(transaction: Transaction, state: ServerState) -> tuple[str, ...]:
    rules = state.rules
    shortest_arrival = min(rules.pilot_submission, rules.pilot_arrival)
    suspects = load_silent(
        transaction.session, transaction.now - rules.pilot_silence, transaction.now - shortest_arrival
    )
    stamps = tuple(pilot.stamp for pilot in suspects if is_silent(pilot, rules, transaction.now))
    values = {"state": PilotState.LOST.value, "reason": "it has been silent for too long", "ended": transaction.now}
    change_pilots(transaction.session, stamps, values)
    remove_slots(transaction.session, stamps)
    return stamps


def record_server_life(transaction: Transaction, state: ServerState, elapsed: timedelta | None = None) -> timedelta:
    """Record that a server is alive; return the time by which all leases have been extended, mostly none.

    Leases are extended by a time without any server, and by what the clock was set forward: pilots count their leases
    on the boot clock, so a lease must not end earlier here. `elapsed` is the time on the boot clock since this server's
    last record, None = this is its first. Call it at the start, and then several times within `rules.life_gap`.
    """
    gap = transaction.now - leases.swap_last_alive(transaction.session, transaction.now)
    if gap <= state.rules.life_gap:
        gap = timedelta(0) if elapsed is None or gap <= elapsed + CLOCK_JUMP else gap - elapsed
    if gap > timedelta(0):
        leases.extend_all(transaction.session, gap)
    return gap
