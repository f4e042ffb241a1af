"""The kept counts of jobs by minute and VO, and the numbers of jobs that they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlmodel import Session

from pilotage_server.core.accounting.job_counts import JobCounts
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.sql import insert_if_absent
from pilotage_server.storage.database.tables import ENDED_JOB, HELD_JOB, metadata

COUNTS = metadata.tables["job_counts"]

_ENDED = f"SELECT vo, state, count(*) FROM jobs WHERE {ENDED_JOB} AND ended >= ? AND ended < ? GROUP BY vo, state"  # noqa: S608
_HELD = f"SELECT count(*) FROM (SELECT 1 FROM jobs WHERE {HELD_JOB} {{}} LIMIT ?) AS counted"  # noqa: S608


def count_ended(session: Session, start: datetime, end: datetime) -> dict[tuple[str, str], int]:
    """Return the numbers of jobs that have ended from `start` on and before `end`, by VO and state."""
    times = sql.column_time(session, start), sql.column_time(session, end)
    return {(vo, state): count for vo, state, count in sql.rows(session, _ENDED, *times)}


def count_held(session: Session, vo: str | None, most: int) -> int:
    """Return the number of held jobs of a VO, counted up to `most`; None = of all VOs."""
    of_vo = () if vo is None else (vo,)
    ((count,),) = sql.rows(session, _HELD.format("AND vo = ?" if of_vo else ""), *of_vo, most)
    return int(count)


def newest_minute(session: Session) -> int:
    """Return the newest minute with counts; 0 = there is none."""
    ((minute,),) = sql.rows(session, "SELECT max(minute) FROM job_counts")
    return minute or 0


def add_counts(session: Session, minute: int, counts: Mapping[str, JobCounts]) -> None:
    """Keep the counts of a minute by VO, unless another server has done it."""
    for vo, each in counts.items():
        values = {"waiting": int(each.waiting), "running": int(each.running)}
        ended = {"done": each.done, "failed": each.failed, "removed": each.removed}
        insert_if_absent(session, COUNTS, {"minute": minute, "vo": vo, **values, **ended})


def delete_counts(session: Session, before: int) -> None:
    """Remove the counts of all minutes before this one."""
    sql.execute(session, "DELETE FROM job_counts WHERE minute < ?", before)


_SUMS = ", ".join(f"sum({name})" for name in ("waiting", "running", "done", "failed", "removed"))
_HISTORY = f"""
    SELECT minute / ?, count(DISTINCT minute), {_SUMS} FROM job_counts
    WHERE minute >= ? AND minute < ? {{}} GROUP BY 1 ORDER BY 1
"""  # noqa: S608 - names of columns


def load_history(session: Session, vo: str | None, first: int, end: int, step: int) -> list[tuple[int, JobCounts]]:
    """Return the counts of the minutes from `first` to before `end`, for each `step` minutes that have some.

    Each has the minute with which it begins. None = of all VOs.
    """
    of_vo = () if vo is None else (vo,)
    rows = sql.rows(session, _HISTORY.format("AND vo = ?" if of_vo else ""), step, first, end, *of_vo)
    return [
        (
            int(part) * step,
            JobCounts(
                float(waiting) / minutes, float(running) / minutes, int(done), int(failed), int(removed), minutes
            ),
        )
        for part, minutes, waiting, running, done, failed, removed in rows
    ]
