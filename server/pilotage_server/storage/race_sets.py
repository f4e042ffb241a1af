"""Sets of jobs that may be repeated, in the database: how far they are, at a cost that does not grow with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from sqlmodel import Session

from pilotage_server.core.accounting import Account
from pilotage_server.core.jobs import JobState
from pilotage_server.core.races import RaceSet
from pilotage_server.core.stragglers import LONGEST_TAIL, LiveJob, Sampled
from pilotage_server.storage import bulk
from pilotage_server.storage.tables.conditions import LIVE_REPEATABLE_JOB

_INSERT = """
    INSERT INTO race_sets (id, last_id, jobs, urgent, vo, "group", owner, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_NEXT = "SELECT id, last_id, jobs, urgent FROM race_sets WHERE id > ? ORDER BY id LIMIT ?"
_SAMPLE = "SELECT race_set, id, state, wall_clock_s FROM jobs WHERE id = ANY(?)"
_ALL_LIVE = f"""
    SELECT race_set, jobs.id, state FROM race_sets JOIN jobs ON jobs.race_set = race_sets.id
    WHERE race_sets.id = ANY(?) AND {LIVE_REPEATABLE_JOB} ORDER BY race_set, jobs.id
"""  # noqa: S608
_LIVE_AFTER = f"""
    SELECT race_set, id, state FROM jobs WHERE race_set = ? AND id > ? AND {LIVE_REPEATABLE_JOB} ORDER BY id LIMIT ?
"""  # noqa: S608
_IS_OVER = f"NOT EXISTS (SELECT 1 FROM jobs WHERE race_set = race_sets.id AND {LIVE_REPEATABLE_JOB})"  # noqa: S608
_OVER = f"""
    DELETE FROM race_sets WHERE id IN (SELECT id FROM race_sets WHERE created < ? AND {_IS_OVER} ORDER BY id LIMIT ?)
"""  # noqa: S608


def insert_set(session: Session, account: Account, new: RaceSet, now: datetime) -> None:
    """Store a new set of an account's jobs."""
    whose = account.vo, account.group, account.owner
    bulk.once(session, _INSERT, new.id, new.last_id, new.jobs, new.urgent, *whose, bulk.moment(session, now))


def next_sets(session: Session, after_id: int, limit: int) -> list[RaceSet]:
    """Return at most so many sets that come after this id, by id."""
    return [
        RaceSet(id_, last_id, jobs, bool(urgent))
        for id_, last_id, jobs, urgent in bulk.rows(session, _NEXT, after_id, limit)
    ]


def samples(session: Session, asked: Mapping[int, Sequence[int]]) -> dict[int, list[Sampled]]:
    """Return where jobs are in their lives and how long they ran, by their sets; `asked` are their ids by set.

    Ids of which there are no such jobs in that set are left out.
    """
    found: dict[int, list[Sampled]] = {set_id: [] for set_id in asked}
    wanted = {set_id: frozenset(ids) for set_id, ids in asked.items()}
    for set_id, id_, state, ran_s in bulk.rows(session, _SAMPLE, sorted(frozenset().union(*wanted.values()))):
        if id_ in wanted.get(set_id, ()):
            found[set_id].append((JobState(state), timedelta(seconds=ran_s)))
    return found


def live_jobs(session: Session, sets: Iterable[RaceSet]) -> dict[int, list[LiveJob]]:
    """Return the jobs of these sets that have not ended, by set and id: of one with many the first LONGEST_TAIL + 1."""
    found: dict[int, list[LiveJob]] = {}
    small: list[int] = []
    for of in sets:
        found[of.id] = []
        if of.jobs <= LONGEST_TAIL:
            small.append(of.id)
        else:
            found[of.id] = live_jobs_after(session, of, 0)
    for set_id, id_, state in bulk.rows(session, _ALL_LIVE, small):
        found[set_id].append(LiveJob(id_, JobState(state)))
    return found


def live_jobs_after(session: Session, of: RaceSet, after_job: int) -> list[LiveJob]:
    """Return the jobs of a set that come after this one and have not ended, by id: the first LONGEST_TAIL + 1."""
    rows = bulk.rows(session, _LIVE_AFTER, of.id, after_job, LONGEST_TAIL + 1)
    return [LiveJob(id_, JobState(state)) for _, id_, state in rows]


def delete_over(session: Session, created_before: datetime, limit: int) -> int:
    """Remove at most `limit` older sets of which every job has ended; return how many."""
    return bulk.once(session, _OVER, bulk.moment(session, created_before), limit)
