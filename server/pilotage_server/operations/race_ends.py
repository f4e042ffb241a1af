"""The ends of races: who has won, what becomes of the others, and what it has cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobCause
from pilotage_server.core.races import Race, RaceEnd, end_of, is_copy_in, lost_core_s
from pilotage_server.storage import races as stored
from pilotage_server.storage.attempts import load_attempts_of
from pilotage_server.storage.engine import Unit


class Finisher(NamedTuple):
    """A job that has made the last of its steps in a race, maybe, and what caused them."""

    job: JobRecord
    causes: tuple[JobCause, ...]


class SettledRace(NamedTuple):
    """A race that ends now, and who took part."""

    race: Race
    end: RaceEnd
    racers: Sequence[JobRecord]


def settled_races(unit: Unit, finishers: Sequence[Finisher]) -> list[SettledRace]:
    """Return the races that end with these; nobody else may move those who take part until the commit.

    Raises
    ------
    OvertakenError
        Somebody else is moving one of them.
    """
    racers = stored.lock_racers(unit.session, [each.job.race for each in finishers])
    causes = {each.job.id: each.causes for each in finishers}
    settled: list[SettledRace] = []
    for race in stored.load_open(unit.session, racers).values():
        original = next(job for job in racers[race.job_id] if job.id == race.job_id)
        copies = [job for job in racers[race.job_id] if is_copy_in(job, race)]
        end = end_of(original, copies, causes.get(original.id, ()))
        if end is not None:
            settled.append(SettledRace(race._replace(attempt=original.attempt), end, (original, *copies)))
    return settled


def close_races(unit: Unit, settled: Sequence[SettledRace]) -> None:
    """Write down how races have ended, now that all who took part have made their last steps."""
    for race, end, racers in settled:
        attempts = load_attempts_of(unit.session, [job.id for job in racers])
        cost = race.lost_core_s + lost_core_s(race, end, attempts, unit.now)
        if end.won_by is not None:
            original = racers[0]
            home = (original.id, original.attempt + 1)
            stored.bring_home(unit.session, (end.won_by.id, end.won_by.attempt), home, end.outcome)
        stored.close(unit.session, race._replace(winner=end.winner, outcome=end.outcome, lost_core_s=cost), unit.now)
