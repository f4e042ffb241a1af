"""The installation and its incarnations in the database, and what a restore changes in other tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlmodel import Session

from pilotage_server.core.incarnation import Counters, Incarnation, Installation
from pilotage_server.core.jobs.record import router_stamp
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.tables import LEASED_JOB

_LOAD = "SELECT database_id, schema_name, incarnation, place, store, keys_json FROM installation"
_SET = "UPDATE installation SET incarnation = ?, place = ?, store = ?, keys_json = ?"


def load_installation(session: Session) -> Installation:
    """Return the installation."""
    return _installation(session, _LOAD)


def lock_installation(session: Session) -> Installation:
    """Return the installation and lock it until the transaction ends."""
    return _installation(session, f"{_LOAD} FOR UPDATE")


def _installation(session: Session, query: str) -> Installation:
    ((database_id, schema, incarnation, place, store, keys),) = sql.rows(session, query)
    times = {kid: datetime.fromisoformat(time) for kid, time in json.loads(keys).items()}
    return Installation(database_id, schema, incarnation, place, store, times)


def store_installation(session: Session, new: Installation) -> None:
    """Store the installation; its database and its schema stay."""
    keys = json.dumps({kid: time.isoformat() for kid, time in sorted(new.keys.items())})
    sql.execute(session, _SET, new.incarnation, new.place, new.store, keys)


_SEQUENCE = "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('{0}', 'id')::regclass), 0)"
_SQLITE_SEQUENCE = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = '{0}'), 0)"
_JOBS, _EVENTS = "jobs", "job_events"


def counters(session: Session) -> Counters:
    """Return the highest numbers that the database has given out, also to rows that are gone; without attempts."""
    read = _SQLITE_SEQUENCE if sql.is_sqlite(session) else _SEQUENCE
    (job,), (position,) = (sql.rows(session, read.format(table))[0] for table in (_JOBS, _EVENTS))
    return Counters(job, position, 0)


def highest_attempt(session: Session) -> int:
    """Return the highest number of an attempt; it reads all jobs."""
    ((attempt, floor),) = sql.rows(
        session, "SELECT coalesce(max(attempt), 0), coalesce(max(attempt_floor), 0) FROM jobs"
    )
    return max(int(attempt), int(floor))


def highest_rows(session: Session) -> Counters:
    """Return the highest numbers in rows; unlike those of `counters` they are on disk, whatever happens next."""
    ((job,),) = sql.rows(session, "SELECT coalesce(max(id), 0) FROM jobs")
    ((position,),) = sql.rows(session, "SELECT coalesce(max(id), 0) FROM job_events")
    return Counters(job, position, 0)


_LIST = """
    SELECT number, began, backup_job, backup_position, backup_attempt, base_job, base_position, base_attempt
    FROM incarnations ORDER BY number
"""
_ADD = "INSERT INTO incarnations VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


def load_incarnations(session: Session) -> list[Incarnation]:
    """Return the incarnations that restores have begun, the oldest first."""
    return [
        Incarnation(number, sql.utc_time(began), Counters(*numbers[:3]), Counters(*numbers[3:]))
        for number, began, *numbers in sql.rows(session, _LIST)
    ]


def add_incarnation(session: Session, new: Incarnation) -> None:
    """Store an incarnation, and let the ids of jobs and events continue above its base."""
    sql.execute(session, _ADD, new.number, sql.column_time(session, new.began), *new.backup, *new.base)
    for table, base in ((_JOBS, new.base.job), (_EVENTS, new.base.position)):
        if sql.is_sqlite(session):
            sql.execute(session, f"DELETE FROM sqlite_sequence WHERE name = '{table}'")  # noqa: S608 - names of ours
            sql.execute(session, "INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", table, base)
        else:
            sql.rows(session, f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), ?)", base)


_LEASES = "SELECT DISTINCT lease_s FROM jobs"
_FENCE = "UPDATE jobs SET fenced_until = ?, attempt_floor = ? WHERE lease_s = ?"
_FENCE_PARTS = "UPDATE submission_parts SET fenced_until = ?, attempt_floor = ?"
_HOLD_WAITING = """
    UPDATE jobs SET lease_until = fenced_until
    WHERE state = 'WAITING' AND (lease_until IS NULL OR lease_until < fenced_until)
"""
_RENEW = f"UPDATE jobs SET lease_until = fenced_until WHERE {LEASED_JOB} AND pilot_stamp NOT LIKE ?"  # noqa: S608
_ALIVE = "UPDATE server_life SET last_alive = ?"
_SEEN = "UPDATE pilots SET last_seen = ? WHERE ended IS NULL AND last_seen IS NOT NULL"
_NODES = "UPDATE node_settings SET version = version + ?"


def fence_all_jobs(session: Session, now: datetime, usual: timedelta, floor: int) -> int:
    """Fence every job for its lease from now on, renew all leases but those of routers; return how many jobs wait.

    `usual` = the default lease. `floor` = no attempt number up to it is given out again. Pilots count as seen now.
    """
    longest = usual
    for (lease_s,) in sql.rows(session, _LEASES):
        lease = timedelta(seconds=lease_s) if lease_s else usual
        longest = max(longest, lease)
        sql.execute(session, _FENCE, sql.column_time(session, now + lease), floor, lease_s)
    # Jobs of these parts may have been stored and started in the lost time.
    sql.execute(session, _FENCE_PARTS, sql.column_time(session, now + longest), floor)
    fenced = sql.execute(session, _HOLD_WAITING)
    sql.execute(session, _RENEW, f"{router_stamp('')}%")
    sql.execute(session, _ALIVE, sql.column_time(session, now))
    sql.execute(session, _SEEN, sql.column_time(session, now))
    return fenced


def raise_node_versions(session: Session, step: int) -> None:
    """Make the settings of nodes newer than any that their pilots may have got in the lost time."""
    sql.execute(session, _NODES, step)


_NEEDED = """
    SELECT input.checksum, job.id FROM jobs AS job JOIN input_files AS input ON input.template_id = job.template_id
    WHERE job.ended IS NULL ORDER BY input.checksum, job.id
"""


def needed_inputs(session: Session) -> Mapping[str, Sequence[int]]:
    """Return the input files of jobs that have not ended, by checksum, with these jobs."""
    found: dict[str, list[int]] = {}
    for checksum, job_id in sql.rows(session, _NEEDED):
        found.setdefault(checksum, []).append(job_id)
    return found


_FILES = """
    SELECT checksum FROM input_files UNION SELECT checksum FROM output_files UNION SELECT checksum FROM stored_files
    ORDER BY 1
"""


def all_files(session: Session) -> list[str]:
    """Return the checksums of all files that the database knows."""
    return [checksum for (checksum,) in sql.rows(session, _FILES)]
