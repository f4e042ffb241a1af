"""Servers that share a database are killed and started at will: no job is lost or given twice, and limits hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import select

from pilotage.job_description import JobDescription
from pilotage_server.core.jobs.states import FINAL, LEASED, JobState
from pilotage_server.storage.database.engine import Database, closing
from pilotage_server.storage.database.tables import metadata
from support.postgresql import PostgresqlServer
from support.server import HastyPilot, Progress, ServerFleet, server_fleet
from support.wire_grid import WireGrid, submission

EVENTS = metadata.tables["job_events"]
JOBS = metadata.tables["jobs"]

OWNERS = {"alice": 300, "bob": 300, "carol": 60}
"""How many jobs each has."""
AT_MOST = 3
"""So many of carol's jobs run at once."""
PILOTS = 6
SLOTS = 4


@pytest.fixture
def database_url(postgresql_server: PostgresqlServer) -> Iterator[str]:
    url = postgresql_server.new_database()
    yield url.render_as_string(hide_password=False)
    postgresql_server.drop(url)


class Step:
    """One event of the feed: whose job went from where to where."""

    def __init__(self, job_id: int, owner: str, from_state: str, to_state: str) -> None:
        self.job_id = job_id
        self.owner = owner
        self.before = JobState(from_state)
        self.after = JobState(to_state)

    @property
    def leases(self) -> int:
        """By how much the number of leases has changed."""
        return (self.after in LEASED) - (self.before in LEASED)


def steps_of(database_url: str) -> list[Step]:
    """Return what has happened, in the order of commits."""
    query = select(EVENTS.c.job_id, JOBS.c.owner, EVENTS.c.from_state, EVENTS.c.to_state)
    with closing(Database(database_url)) as database:
        rows = database.read(
            lambda transaction: transaction.session.execute(
                query.join(JOBS, JOBS.c.id == EVENTS.c.job_id).order_by(EVENTS.c.id)
            ).all()
        )
    return [Step(*row) for row in rows]


def most_at_once(steps: Sequence[Step], owner: str) -> int:
    """Return how many jobs of an owner held a lease at once, at most."""
    running = most = 0
    for step in steps:
        running += step.leases if step.owner == owner else 0
        most = max(most, running)
    return most


def run_all(fleet: ServerFleet, killings: int) -> Progress:
    """Let pilots finish the jobs of all owners while servers are killed and started again, one after the other."""
    progress = Progress(sum(OWNERS.values()))
    with ExitStack() as stack:
        grid = WireGrid(fleet.servers[0])
        stack.callback(grid.close)
        grid.put_tree()
        for owner, count in OWNERS.items():
            grid.user(owner).SubmitJobs(submission([JobDescription("/bin/true", count=count)]))
        credentials = [grid.start_pilot().token for _ in range(PILOTS)]
        channels = [stack.enter_context(fleet.channel(token)) for token in credentials]
        pilots = [HastyPilot(channel, SLOTS, progress, number) for number, channel in enumerate(channels)]
        for pilot in pilots:
            pilot.start()
        try:
            for number in range(killings):
                progress.wait_for((number + 1) / (killings + 1))
                victim = fleet.servers[number % len(fleet.servers)]
                victim.kill()
                victim.start()
            progress.wait_for(1)
        finally:
            progress.stop()
            for pilot in pilots:
                pilot.join()
    return progress


@pytest.mark.parametrize("servers", [2, 4])
def test_whoever_is_killed_no_job_is_lost_or_given_twice_and_limits_hold(
    servers: int, tmp_path: Path, database_url: str
) -> None:
    limit = {"site": "SITE", "attribute": "owner", "value": "carol", "at_most": AT_MOST}
    with server_fleet(tmp_path, database_url, servers, running_limits=[limit]) as fleet:
        progress = run_all(fleet, killings=servers)
    steps = steps_of(database_url)
    jobs = sum(OWNERS.values())
    assert Counter(attempt for _, attempt in progress.given) == {1: jobs}
    assert len(set(progress.given)) == jobs
    assert Counter(step.after for step in steps if step.after in FINAL) == {JobState.DONE: jobs}
    assert sum(step.leases > 0 for step in steps) == jobs
    assert most_at_once(steps, "carol") == AT_MOST
    matched = [step.owner for step in steps if step.after is JobState.MATCHED]
    # Later, jobs that ran while a server was away are charged for seconds, all others for milliseconds.
    before_first_kill = Counter(matched[: jobs // (servers + 2)])
    assert 0.4 < before_first_kill["alice"] / (before_first_kill["alice"] + before_first_kill["bob"]) < 0.6
