"""Files in the database: who has uploaded what, what jobs bring, what they left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, func, select, update
from sqlmodel import Session

from pilotage_server.core.job_files import OutputFile
from pilotage_server.storage import bulk, many_rows
from pilotage_server.storage.attempts import ATTEMPTS, AttemptKey
from pilotage_server.storage.inserting import insert_if_absent
from pilotage_server.storage.jobs import chunks
from pilotage_server.storage.tables import metadata
from pilotage_server.storage.templates import INPUT_FILES

STORED = metadata.tables["stored_files"]
OUTPUTS = metadata.tables["output_files"]


class Holder(NamedTuple):
    """Who has uploaded a content; a pilot has no VO."""

    vo: str
    owner: str


def _of(holder: Holder) -> ColumnElement[bool]:
    return (STORED.c.vo == holder.vo) & (STORED.c.owner == holder.owner)


def sizes_of(session: Session, holder: Holder, checksums: Iterable[str]) -> dict[str, int]:
    """Return the sizes in bytes of those contents that the holder has uploaded."""
    found: dict[str, int] = {}
    for chunk in chunks(sorted(set(checksums))):
        query = select(STORED.c.checksum, STORED.c.size).where(STORED.c.checksum.in_(chunk), _of(holder))
        found |= {row.checksum: row.size for row in session.execute(query)}
    return found


def refresh_stored(session: Session, holder: Holder, checksums: Iterable[str], now: datetime) -> None:
    """Let the holder's uploads count as new, so that they are kept until a job names them."""
    for chunk in chunks(sorted(checksums)):
        mine = STORED.c.checksum.in_(chunk) & _of(holder)
        session.execute(update(STORED).where(mine).values(stored=now))


def insert_stored(session: Session, holder: Holder, checksum: str, size: int, now: datetime) -> None:
    """Note that the holder has uploaded a content; once more is as good as once."""
    row = {"checksum": checksum, "vo": holder.vo, "owner": holder.owner, "size": size, "stored": now}
    if not insert_if_absent(session, STORED, row):
        refresh_stored(session, holder, [checksum], now)


def insert_outputs(session: Session, left: Sequence[tuple[AttemptKey, OutputFile]]) -> None:
    """Note what attempts left behind."""
    columns: many_rows.Columns = {
        "job_id": [job_id for (job_id, _), _ in left],
        "attempt": [attempt for (_, attempt), _ in left],
        "name": [file.name for _, file in left],
        "checksum": [file.checksum for _, file in left],
        "size": [file.size for _, file in left],
        "truncated": [file.truncated for _, file in left],
    }
    many_rows.add(session, OUTPUTS, columns)


_OF_JOBS = """
    SELECT job_id, attempt, name, checksum, size, truncated FROM output_files WHERE job_id = ANY(?)
    ORDER BY job_id, attempt, name
"""


def outputs_of(session: Session, job_id: int, attempt: int) -> tuple[OutputFile, ...]:
    """Return what an attempt left behind, by name."""
    key = (job_id, attempt)
    return tuple(outputs_of_many(session, [key]).get(key, ()))


def outputs_of_many(session: Session, keys: Sequence[AttemptKey]) -> dict[AttemptKey, list[OutputFile]]:
    """Return what attempts left behind, by job and number, each by name; those that left nothing are left out."""
    wanted, found = set(keys), dict[AttemptKey, list[OutputFile]]()
    for job_id, attempt, name, checksum, size, truncated in bulk.rows(
        session, _OF_JOBS, sorted({key[0] for key in keys})
    ):
        if (job_id, attempt) in wanted:
            kept = OutputFile(name, checksum, size, bool(truncated))
            found.setdefault((job_id, attempt), []).append(kept)
    return found


def last_ended_attempt(session: Session, job_id: int) -> int:
    """Return the job's last attempt that has ended; 0 = none has."""
    query = select(func.max(ATTEMPTS.c.attempt)).where(ATTEMPTS.c.job_id == job_id, ATTEMPTS.c.ended.is_not(None))
    return session.execute(query).scalar_one() or 0


def brings(session: Session, template_id: int, checksum: str) -> bool:
    """Return whether the jobs of the template bring this content."""
    mine = INPUT_FILES.c.template_id == template_id, INPUT_FILES.c.checksum == checksum
    return session.execute(select(INPUT_FILES.c.name).where(*mine).limit(1)).first() is not None


def left(session: Session, job_id: int, checksum: str) -> bool:
    """Return whether an attempt of the job left this content."""
    mine = OUTPUTS.c.job_id == job_id, OUTPUTS.c.checksum == checksum
    return session.execute(select(OUTPUTS.c.name).where(*mine).limit(1)).first() is not None
