"""A database of the first release: its templates know how many jobs they have, and go with the last one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from pilotage_server.core.jobs import JobState
from pilotage_server.storage.engine import Database, closing
from pilotage_server.storage.schema import upgrade
from pilotage_server.storage.templates import release_templates
from pilotage_server.storage.unit import Unit
from support.first_release import insert_job, make_schema
from support.virtual_clock import VirtualClock

TEMPLATE = """
INSERT INTO templates (id, owner, vo, "group", description_json) VALUES (1, 'alice', 'lhcb', 'users', '{}')
"""


@pytest.fixture
def upgraded(database_url: str, clock: VirtualClock) -> Iterator[Database]:
    """Return a database of the first release, with an array of two jobs, as this release makes it."""
    with closing(Database(database_url, clock)) as opened:
        opened.write(_make_old)
        upgrade(opened)
        yield opened


def _make_old(unit: Unit) -> None:
    make_schema(unit)
    unit.session.execute(text(TEMPLATE))
    for job_id in (1, 2):
        insert_job(unit, job_id, JobState.DONE)


def test_a_template_of_before_goes_with_its_last_job(upgraded: Database) -> None:
    left = []
    for _ in range(2):
        upgraded.write(lambda unit: release_templates(unit.session, {1: 1}))
        left.append(upgraded.read(lambda unit: unit.session.execute(text("SELECT jobs FROM templates")).all()))
    assert left == [[(1,)], []]
