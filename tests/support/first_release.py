"""Databases as the first release left them: its schema, and its jobs."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import text

from pilotage_server.core.jobs import JobState
from pilotage_server.storage.engine import Unit
from support.virtual_clock import START

_JOB = """
INSERT INTO jobs (id, template_id, cluster, process, owner, vo, "group", name, state, reason, priority, task_queue_id,
    pool_id, attempt, spent_attempts, lease_s, pilot_stamp, site, ce, queue, node, slot, submitted)
VALUES (:id, 1, :id, 0, 'alice', 'lhcb', 'users', '', :state, '', 0, 1, '', :attempt, 0, 0, 'p1', 'A', 'c', 'q', 'n',
    's', :now)
"""


def migrations(unit: Unit) -> Config:
    """Return what leads a database from release to release, in a transaction."""
    config = Config()
    config.set_main_option("script_location", str(files("pilotage_server.storage") / "migrations"))
    config.attributes["connection"] = unit.session.connection()
    return config


def make_schema(unit: Unit) -> None:
    """Give an empty database the tables of the first release."""
    command.upgrade(migrations(unit), "0001")


def insert_job(unit: Unit, job_id: int, state: JobState, attempt: int = 0) -> None:
    """Store a job of alice's that came in at the beginning."""
    values: dict[str, Any] = {"id": job_id, "state": state.value, "attempt": attempt, "now": START}
    unit.session.execute(text(_JOB), values)
