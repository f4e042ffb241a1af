"""A database of the first release: what runs in it is charged on to whom it was charged before."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import text

from pilotage_server.core.accounting import Account
from pilotage_server.core.fair_share import accrued
from pilotage_server.core.jobs import JobState
from pilotage_server.core.rules import Rules
from pilotage_server.operations.load_world import load_world
from pilotage_server.storage.engine import Database, Unit, closing
from pilotage_server.storage.schema import upgrade
from support.first_release import insert_job, make_schema
from support.virtual_clock import START, VirtualClock

ATTEMPT = """
INSERT INTO attempts (job_id, attempt, pilot_stamp, site, ce, queue, node, slot, cpus, matched, ended, outcome, reason,
    cpu_s, wall_s, suspended_s, peak_memory_mib, reported)
VALUES (7, :attempt, 'p1', 'A', 'c', 'q', 'n', 's', 4, :now, :ended, '', '', 0, 0, 0, 0, :reported)
"""


@pytest.fixture
def old(database_url: str, clock: VirtualClock) -> Iterator[Database]:
    """Return a database of the first release with a job in its second attempt."""
    with closing(Database(database_url, clock)) as opened:
        opened.write(_make_old)
        yield opened


def _make_old(unit: Unit) -> None:
    make_schema(unit)
    insert_job(unit, 7, JobState.RUNNING, attempt=2)
    for attempt, ended in ((1, START), (2, None)):
        values = {"attempt": attempt, "now": START, "ended": ended, "reported": ended is not None}
        unit.session.execute(text(ATTEMPT), values)


def test_what_runs_is_charged_on_to_its_owner_by_its_cores(old: Database, clock: VirtualClock) -> None:
    clock.advance(timedelta(hours=2))
    upgrade(old)
    world = old.read(lambda unit: load_world(unit, Rules()))
    use = world.shares.use(Account("lhcb", "users", "alice"), clock())
    assert (use.cores, use.runs) == (4, 1)
    assert use.core_s == pytest.approx(accrued(4, 7200, timedelta(days=1)))
