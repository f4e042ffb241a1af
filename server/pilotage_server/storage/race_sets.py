"""Sets of jobs that may be repeated, in the database: how far they are, at a cost that does not grow with them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlmodel import Session

from pilotage_server.core.accounting import Account
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobState
from pilotage_server.core.races import RaceSet
from pilotage_server.storage import bulk
from pilotage_server.storage.job_rows import load_jobs
from pilotage_server.storage.tables.conditions import LIVE_REPEATABLE_JOB

_INSERT = """
    INSERT INTO race_sets (id, last_id, jobs, urgent, vo, "group", owner, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_NEXT = "SELECT id, last_id, jobs, urgent FROM race_sets WHERE id > ? ORDER BY id LIMIT ?"
_SAMPLE = "SELECT state, wall_clock_s FROM jobs WHERE id = ANY(?) AND race_set = ?"
_LIVE = f"SELECT id FROM jobs WHERE race_set = ? AND {LIVE_REPEATABLE_JOB} ORDER BY id LIMIT ?"  # noqa: S608
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


def sample(session: Session, of: RaceSet, ids: Sequence[int]) -> list[tuple[JobState, timedelta]]:
    """Return of those of these jobs that are in the set where they are in their lives, and how long they ran."""
    rows = bulk.rows(session, _SAMPLE, list(ids), of.id)
    return [(JobState(state), timedelta(seconds=ran_s)) for state, ran_s in rows]


def live_jobs(session: Session, set_id: int, limit: int) -> list[JobRecord]:
    """Return at most so many jobs of the set that have not ended, by id."""
    ids = [row[0] for row in bulk.rows(session, _LIVE, set_id, limit)]
    return list(load_jobs(session, ids).values())


def delete_over(session: Session, created_before: datetime, limit: int) -> int:
    """Remove at most `limit` older sets of which every job has ended; return how many."""
    return bulk.once(session, _OVER, bulk.moment(session, created_before), limit)
