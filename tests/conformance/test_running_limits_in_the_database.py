"""How many jobs of a kind run at once under a limit, on every database."""

from __future__ import annotations

import pytest

from pilotage_server.core.rules import Rules, RunningLimit
from pilotage_server.operations.limit_keys import rekey_for_limits
from pilotage_server.storage.engine import Database
from support.grid import LONG, Grid, a_slot
from support.submissions import a_user
from support.virtual_clock import VirtualClock


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def test_a_running_limit_is_exact(database: Database, clock: VirtualClock) -> None:
    limit = RunningLimit("cern", None, None, "JobType", "mc", at_most=2)
    grid = Grid(database, clock, LONG, "CERN/ce02/q", "FNAL/ce/q", rules=Rules(running_limits=(limit,)))
    ids = grid.submit(count=5, attributes={"jobtype": "MC"})
    (other,) = grid.submit(attributes={"JobType": "user"})
    pilot = grid.start_pilot()
    taken = pilot.ask(*(a_slot(f"s{n}") for n in range(4))).matches
    assert sorted(match.job_id for match in taken) == sorted([*ids[:2], other])
    assert grid.start_pilot("CERN/ce02/q").claim() == []
    assert grid.start_pilot("FNAL/ce/q").claim() == [ids[2]]
    pilot.finish(next(match for match in taken if match.job_id == ids[0]))
    assert grid.start_pilot("CERN/ce02/q").claim(a_slot("a"), a_slot("b")) == [ids[3]]


def test_the_end_of_a_job_that_a_limit_counts_is_told_to_who_waits_for_another(
    database: Database, clock: VirtualClock
) -> None:
    limit = RunningLimit("CERN", None, None, "owner", "alice", 1)
    grid = Grid(database, clock, rules=Rules(running_limits=(limit,)))
    first, _ = grid.submit(a_user("alice"), count=2)
    grid.submit(a_user("bob"))
    pilot = grid.start_pilot()
    match = pilot.take()
    assert match.job_id == first
    told: list[str] = []
    grid.world.on_enqueued.append(lambda task_queue, count: told.append(task_queue.account.owner))
    pilot.finish(match)
    assert told == ["alice"]


def test_a_new_limit_tells_jobs_apart_that_came_before_it(database: Database, clock: VirtualClock) -> None:
    before = Grid(database, clock)
    ids = before.submit(attributes={"JobType": "MC"}) + before.submit(attributes={"JobType": "user"})
    ids += before.submit(attributes={"JobType": "mc"})
    limit = RunningLimit("CERN", None, None, "jobtype", "MC", at_most=1)
    after = Grid(database, clock, rules=Rules(running_limits=(limit,)))
    assert after.write(rekey_for_limits) == 1
    assert after.write(rekey_for_limits) == 0
    assert len({job.task_queue_id for job in after.jobs(ids).values()}) == 3  # values are kept as they were written
    assert after.start_pilot().claim(*(a_slot(f"s{n}") for n in range(3))) == ids[:2]
