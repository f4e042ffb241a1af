"""Routed jobs and published routes of job routers in the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlmodel import Session

from pilotage.job_description import Value
from pilotage_server.core.jobs.record import router_stamp
from pilotage_server.core.routing import RoutedJobRecord, RouterRoutes, table_from_json, table_to_json
from pilotage_server.storage.attempts import ATTEMPTS, AttemptKey
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.tables import FENCED_JOB, TIMED_JOB, UNREPORTED, metadata
from pilotage_server.storage.jobs import JOBS
from pilotage_server.storage.leases import LAST_TAKEN
from pilotage_server.storage.pools import section_from_json, section_to_json

COPIES = metadata.tables["copies"]

_OF_JOBS = "SELECT job_id, attempt, router, route, target, reference, routed FROM copies WHERE job_id = ANY(?)"

_ATTRIBUTES_OF_COPY = "SELECT attributes_json FROM copies WHERE job_id = ? AND attempt = ?"

_BINDING = f"""
    SELECT jobs.id, attempts.attempt FROM jobs JOIN attempts ON attempts.job_id = jobs.id
    WHERE {TIMED_JOB} AND attempts.pilot_stamp = ? AND NOT attempts.reported
        AND (attempts.ended IS NULL OR ({FENCED_JOB} AND attempts.attempt = ({LAST_TAKEN})))
    ORDER BY jobs.lease_until DESC, jobs.id LIMIT ?
"""  # noqa: S608 - of our own texts only


def insert_routed_jobs(session: Session, copies: Sequence[RoutedJobRecord]) -> None:
    """Store new routed jobs."""
    columns = {name: [getattr(copy, name) for copy in copies] for name in RoutedJobRecord._fields}
    sql.insert_rows(session, COPIES, columns)


def load_routed_jobs(session: Session, keys: Iterable[AttemptKey]) -> dict[AttemptKey, RoutedJobRecord]:
    """Return the existing ones of these routed jobs."""
    wanted = set(keys)
    if not wanted:
        return {}
    rows = sql.rows(session, _OF_JOBS, sorted({job_id for job_id, _ in wanted}))
    return {copy.key: copy for copy in map(_copy, rows) if copy.key in wanted}


def last_copy(session: Session, job_id: int) -> RoutedJobRecord | None:
    """Return the last routed job of a job; None = there is none."""
    copies = map(_copy, sql.rows(session, _OF_JOBS, [job_id]))
    return max(copies, key=lambda copy: copy.attempt, default=None)


def _copy(row: Sequence[Any]) -> RoutedJobRecord:
    """Return the routed job of one row of _OF_JOBS."""
    job_id, attempt, router, route, target, reference, routed = row
    return RoutedJobRecord(job_id, attempt, router, route, target, reference, sql.utc_time(routed))


def binding_attempts(session: Session, stamp: str, most: int) -> list[AttemptKey]:
    """Return at most `most` attempts of a router that lease or fence their jobs.

    The query selects its attempts among jobs with a lease or a fence, since the lease of a router expires last of all.
    """
    return [(job_id, attempt) for job_id, attempt in sql.rows(session, _BINDING, stamp, most)]


def set_references(session: Session, references: Sequence[tuple[AttemptKey, str]]) -> None:
    """Store the ids of routed jobs at their targets."""
    sql.update_rows(
        session, COPIES, _keys([key for key, _ in references]), {"reference": [text for _, text in references]}
    )


def set_attributes(session: Session, changes: Sequence[tuple[AttemptKey, Mapping[str, Value]]]) -> None:
    """Replace the attributes of routed jobs that hooks have set."""
    texts = [section_to_json(attributes) for _, attributes in changes]
    sql.update_rows(session, COPIES, _keys([key for key, _ in changes]), {"attributes_json": texts})


def load_attributes(session: Session, key: AttemptKey) -> dict[str, Value]:
    """Return the attributes of a routed job that hooks have set."""
    texts = [text for (text,) in sql.rows(session, _ATTRIBUTES_OF_COPY, *key) if text is not None]
    return section_from_json(texts[0]) if texts else {}


def set_nodes(session: Session, changes: Sequence[tuple[AttemptKey, str]]) -> None:
    """Store the nodes of routed jobs: in their attempts, and in their jobs if it is the job's last attempt."""
    nodes = {"node": [node for _, node in changes]}
    keys = _keys([key for key, _ in changes])
    sql.update_rows(session, ATTEMPTS, keys, nodes)
    sql.update_rows(session, JOBS, {"id": keys["job_id"], "attempt": keys["attempt"]}, nodes)


def _keys(keys: Sequence[AttemptKey]) -> sql.Columns:
    return {"job_id": [job_id for job_id, _ in keys], "attempt": [attempt for _, attempt in keys]}


_PUT = """
    INSERT INTO routers (name, told, routes_json) VALUES (?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET told = excluded.told, routes_json = excluded.routes_json
"""
_LOAD = "SELECT name, told, routes_json FROM routers ORDER BY name"
_KNOWN = "SELECT 1 FROM routers WHERE name = ?"
_FORGET = "DELETE FROM routers WHERE name = ?"
_DELETE_GONE = f"""
    DELETE FROM routers WHERE told < ? AND NOT EXISTS (SELECT 1 FROM turns WHERE agent = name AND until >= ?)
        AND NOT EXISTS (SELECT 1 FROM attempts WHERE pilot_stamp = ? || name AND {UNREPORTED})
    RETURNING name
"""  # noqa: S608 - of our own texts only


def put_router(session: Session, routes: RouterRoutes) -> None:
    """Replace the published routes of a router."""
    sql.execute(session, _PUT, routes.router, sql.column_time(session, routes.reported), table_to_json(routes.table))


def load_routers(session: Session) -> tuple[RouterRoutes, ...]:
    """Return the published routes of all routers, by name."""
    rows = sql.rows(session, _LOAD)
    return tuple(RouterRoutes(name, sql.utc_time(reported), table_from_json(text)) for name, reported, text in rows)


def is_known(session: Session, name: str) -> bool:
    """Whether the router has published routes."""
    return bool(sql.rows(session, _KNOWN, name))


def forget_router(session: Session, name: str) -> None:
    """Remove the published routes of a router."""
    sql.execute(session, _FORGET, name)


def delete_gone(session: Session, since: datetime) -> int:
    """Remove the routers without a report, leadership or open routed jobs since then; return how many."""
    before = sql.column_time(session, since)
    return len(sql.rows(session, _DELETE_GONE, before, before, router_stamp("")))
