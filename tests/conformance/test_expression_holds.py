"""Jobs that the first release held for their expressions are released by a server that evaluates them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text, update

from pilotage_server.core.alike import alone
from pilotage_server.core.job_changes import JobChange
from pilotage_server.core.job_events import JobEvent
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobState
from pilotage_server.core.optimizers import OWNER_HOLD
from pilotage_server.operations.change_jobs import change_jobs
from pilotage_server.operations.expression_holds import release_expression_holds
from pilotage_server.operations.job_events import get_events
from pilotage_server.operations.submit import submit_jobs
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Database
from pilotage_server.storage.jobs import JOBS, load_job
from pilotage_server.storage.templates import TEMPLATES
from support.submissions import a_description, a_user

ALICE = a_user()
FIRST_RELEASE = (
    "its ClassAd expression (requirements_expression) cannot be evaluated yet: a later release of this server will; "
    "edit the job to run it without"
)


class Upgrade:
    """A database that the first release has left, and a server of this one."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.world = World()

    def held(self, reason: str = FIRST_RELEASE, **fields: Any) -> int:
        """Store a job that is held, and return its id."""
        given = [a_description(**{"requirements_expression": "TARGET.Memory > 1", **fields})]
        (job_id,) = self.database.write(lambda unit: submit_jobs(unit, self.world, ALICE, alone(given))).job_ids
        if not fields.get("hold"):
            hold = JobChange.HOLD
            self.database.write(lambda unit: change_jobs(unit, self.world, ALICE, [job_id], hold, reason))
        said = update(JOBS).where(JOBS.c.id == job_id).values(reason=reason)
        self.database.write(lambda unit: unit.session.execute(said))
        return job_id

    def start(self) -> int:
        """Let the server start, and return how many jobs it looked at."""
        return self.database.write(lambda unit: release_expression_holds(unit, self.world))

    def job(self, job_id: int) -> JobRecord:
        return self.database.read(lambda unit: load_job(unit.session, job_id))

    def last_event(self, job_id: int) -> JobEvent:
        return self.database.read(lambda unit: get_events(unit, ALICE, job_id))[-1]


@pytest.fixture
def upgrade(database: Database) -> Upgrade:
    return Upgrade(database)


def test_a_job_held_for_its_expression_waits_and_its_events_say_why(upgrade: Upgrade) -> None:
    job_id = upgrade.held()
    assert upgrade.start() == 1
    job = upgrade.job(job_id)
    assert job.state is JobState.WAITING
    assert upgrade.world.waiting.count(job.task_queue_id) == 1
    event = upgrade.last_event(job_id)
    assert (event.actor, event.reason) == ("server", "this release of the server evaluates ClassAd expressions")


def test_a_second_start_finds_nothing(upgrade: Upgrade) -> None:
    upgrade.held()
    upgrade.start()
    assert upgrade.start() == 0


def test_jobs_held_for_other_reasons_stay_held(upgrade: Upgrade) -> None:
    ids = [upgrade.held("wrong input"), upgrade.held("its ClassAd expression (rank) is not to my liking")]
    assert upgrade.start() == 0
    assert {upgrade.job(job_id).state for job_id in ids} == {JobState.HELD}


def test_a_job_that_its_owner_wanted_held_stays_held_with_that_reason(upgrade: Upgrade) -> None:
    job_id = upgrade.held(hold=True)
    upgrade.start()
    job = upgrade.job(job_id)
    assert (job.state, job.reason) == (JobState.HELD, OWNER_HOLD)
    assert upgrade.start() == 0


def test_a_job_whose_expression_is_not_allowed_stays_held_with_the_reason(upgrade: Upgrade) -> None:
    job_id = upgrade.held()
    forbidden = "REPLACE(description_json, 'TARGET.Memory > 1', 'random() > 1')"
    change = update(TEMPLATES).values(description_json=text(forbidden))
    upgrade.database.write(lambda unit: unit.session.execute(change))
    assert upgrade.start() == 1
    job = upgrade.job(job_id)
    assert job.state is JobState.HELD
    assert job.reason.startswith("edit the job: its requirements_expression is not allowed, random functions")
    assert upgrade.start() == 0
