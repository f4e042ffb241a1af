"""Copies of jobs in the database: which router made them of which attempt, and what finds them again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlmodel import Session

from pilotage.job_description import Value
from pilotage_server.core.routes import CopyRecord
from pilotage_server.storage import bulk, many_rows
from pilotage_server.storage.attempts import ATTEMPTS, AttemptKey
from pilotage_server.storage.job_rows import JOBS
from pilotage_server.storage.lingering import LAST_TAKEN
from pilotage_server.storage.pools import section_from_json, section_to_json
from pilotage_server.storage.tables import metadata
from pilotage_server.storage.tables.conditions import LINGERING_JOB, TIMED_JOB

COPIES = metadata.tables["copies"]

_OF_JOBS = "SELECT job_id, attempt, router, route, target, reference, routed FROM copies WHERE job_id = ANY(?)"

_SAID = "SELECT attributes_json FROM copies WHERE job_id = ? AND attempt = ?"

_BINDING = f"""
    SELECT jobs.id, attempts.attempt FROM jobs JOIN attempts ON attempts.job_id = jobs.id
    WHERE {TIMED_JOB} AND attempts.pilot_stamp = ? AND NOT attempts.reported
        AND (attempts.ended IS NULL OR ({LINGERING_JOB} AND attempts.attempt = ({LAST_TAKEN})))
    ORDER BY jobs.lease_until DESC, jobs.id LIMIT ?
"""  # noqa: S608 - of our own texts only


def insert_copies(session: Session, copies: Sequence[CopyRecord]) -> None:
    """Store new copies."""
    columns = {name: [getattr(copy, name) for copy in copies] for name in CopyRecord._fields}
    many_rows.add(session, COPIES, columns)


def load_copies(session: Session, keys: Iterable[AttemptKey]) -> dict[AttemptKey, CopyRecord]:
    """Return the copies by job and attempt; those that there are not are left out."""
    wanted = set(keys)
    if not wanted:
        return {}
    rows = bulk.rows(session, _OF_JOBS, sorted({job_id for job_id, _ in wanted}))
    return {copy.key: copy for copy in map(_copy, rows) if copy.key in wanted}


def last_copy(session: Session, job_id: int) -> CopyRecord | None:
    """Return the copy that was made of a job last; None = none was."""
    copies = map(_copy, bulk.rows(session, _OF_JOBS, [job_id]))
    return max(copies, key=lambda copy: copy.attempt, default=None)


def _copy(row: Sequence[Any]) -> CopyRecord:
    """Return the copy of one row of _OF_JOBS."""
    job_id, attempt, router, route, target, reference, routed = row
    return CopyRecord(job_id, attempt, router, route, target, reference, bulk.time_of(routed))


def copies_that_bind(session: Session, stamp: str, most: int) -> list[AttemptKey]:
    """Return copies that keep their jobs from waiting for another place, at most so many of those of a router.

    Of the jobs that hold leases or linger its own come first: what a router holds ends last of all.
    """
    return [(job_id, attempt) for job_id, attempt in bulk.rows(session, _BINDING, stamp, most)]


def set_references(session: Session, told: Sequence[tuple[AttemptKey, str]]) -> None:
    """Keep what finds copies again at their targets."""
    many_rows.change(session, COPIES, _keys([key for key, _ in told]), {"reference": [text for _, text in told]})


def set_attributes(session: Session, told: Sequence[tuple[AttemptKey, Mapping[str, Value]]]) -> None:
    """Keep what hooks have said of copies, in place of what was kept."""
    texts = [section_to_json(attributes) for _, attributes in told]
    many_rows.change(session, COPIES, _keys([key for key, _ in told]), {"attributes_json": texts})


def load_attributes(session: Session, key: AttemptKey) -> dict[str, Value]:
    """Return what hooks have said of a copy."""
    said = [text for (text,) in bulk.rows(session, _SAID, *key) if text is not None]
    return section_from_json(said[0]) if said else {}


def set_nodes(session: Session, told: Sequence[tuple[AttemptKey, str]]) -> None:
    """Keep on which nodes copies run: with their attempts, and with their jobs where it is the job's last attempt."""
    nodes = {"node": [node for _, node in told]}
    keys = _keys([key for key, _ in told])
    many_rows.change(session, ATTEMPTS, keys, nodes)
    many_rows.change(session, JOBS, {"id": keys["job_id"], "attempt": keys["attempt"]}, nodes)


def _keys(keys: Sequence[AttemptKey]) -> many_rows.Columns:
    return {"job_id": [job_id for job_id, _ in keys], "attempt": [attempt for _, attempt in keys]}
