"""A database of the first release: jobs that somebody held are held as before, whatever policies come."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import text

from pilotage_server.core.holds import HoldCode
from pilotage_server.core.jobs import JobState
from pilotage_server.storage.engine import Database, Unit, closing
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.schema import upgrade
from support.first_release import insert_job, make_schema
from support.virtual_clock import START, VirtualClock

EVENT = """
INSERT INTO job_events (job_id, time, from_state, to_state, cause, reason, attempt, actor)
VALUES (:id, :time, '', '', '', '', 0, 'alice')
"""
STATES = {1: JobState.HELD, 2: JobState.WAITING, 3: JobState.DONE}


@pytest.fixture
def old(database_url: str, clock: VirtualClock) -> Iterator[Database]:
    """Return a database of the first release with jobs that last moved two hours after they came."""
    with closing(Database(database_url, clock)) as opened:
        opened.write(_make_old)
        yield opened


def _make_old(unit: Unit) -> None:
    make_schema(unit)
    for job_id, state in STATES.items():
        insert_job(unit, job_id, state)
        for hours in (0, 2):
            unit.session.execute(text(EVENT), {"id": job_id, "time": START + timedelta(hours=hours)})


def test_a_hold_is_somebodys_and_counts_since_it_began(old: Database) -> None:
    upgrade(old)
    jobs = old.read(lambda unit: load_jobs(unit.session, STATES))
    held, waits, done = (jobs[job_id] for job_id in STATES)
    assert (held.hold_code, held.hold_subcode, held.holds) == (HoldCode.USER_REQUEST, 0, 1)
    assert (waits.hold_code, waits.holds, done.hold_code) == (None, 0, None)
    assert [job.state_since for job in (held, waits, done)] == [START + timedelta(hours=2)] * 2 + [None]
