"""The ends of races: the winner, the transitions of the other jobs, and the cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.core.races.races import Race, RaceEnd, is_copy_in, lost_core_s, race_end
from pilotage_server.storage import races as stored
from pilotage_server.storage.attempts import load_attempts_of
from pilotage_server.storage.database.transaction import Transaction


class Finisher(NamedTuple):
    """A job that may have decided its race, and the causes of its transitions."""

    job: JobRecord
    causes: tuple[JobCause, ...]


class SettledRace(NamedTuple):
    """A race that ends now, with its jobs."""

    race: Race
    end: RaceEnd
    racers: Sequence[JobRecord]


def settled_races(transaction: Transaction, finishers: Sequence[Finisher]) -> list[SettledRace]:
    """Return the races that these jobs have decided. Their jobs stay locked until the commit.

    Raises
    ------
    WriteConflictError
        Another transaction is changing one of the jobs.
    """
    racers = stored.lock_racers(transaction.session, [each.job.race for each in finishers])
    causes = {each.job.id: each.causes for each in finishers}
    settled: list[SettledRace] = []
    for race in stored.load_open(transaction.session, racers).values():
        original = next(job for job in racers[race.job_id] if job.id == race.job_id)
        copies = [job for job in racers[race.job_id] if is_copy_in(job, race)]
        end = race_end(original, copies, causes.get(original.id, ()))
        if end is not None:
            settled.append(SettledRace(race._replace(attempt=original.attempt), end, (original, *copies)))
    return settled


def close_races(transaction: Transaction, settled: Sequence[SettledRace]) -> None:
    """Store the results of races after the last transitions of their jobs."""
    for race, end, racers in settled:
        attempts = load_attempts_of(transaction.session, [job.id for job in racers])
        cost = race.lost_core_s + lost_core_s(race, end, attempts, transaction.now)
        if end.winning_copy is not None:
            original = racers[0]
            home = (original.id, original.next_attempt)
            stored.store_winner(transaction.session, (end.winning_copy.id, end.winning_copy.attempt), home, end.outcome)
        stored.close(
            transaction.session,
            race._replace(winner=end.winner, outcome=end.outcome, lost_core_s=cost),
            transaction.now,
        )
