"""Crashes of servers that share a database: no job is lost or granted twice, and running limits hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import select

from pilotage.job_description import JobDescription
from pilotage.v1 import jobs_pb2
from pilotage_server.core.jobs.states import FINAL, LEASED, JobState
from pilotage_server.storage.database.engine import Database, closing
from pilotage_server.storage.database.tables import metadata
from support.object_store import Bucket, ObjectStore
from support.postgresql import PostgresqlServer
from support.process_grid import TREE, ProcessGrid
from support.server import PollingPilot, Progress, RunningServer, ServerFleet, server_fleet
from support.wire_grid import WireGrid, submission

EVENTS = metadata.tables["job_events"]
JOBS = metadata.tables["jobs"]

JOBS_PER_OWNER = {"alice": 300, "bob": 300, "carol": 60}
"""The number of jobs of each owner."""
RUNNING_LIMIT = 3
"""The limit of carol's running jobs."""
PILOTS = 6
SLOTS = 4


@pytest.fixture
def database_url(postgresql_server: PostgresqlServer) -> Iterator[str]:
    url = postgresql_server.new_database()
    yield url.render_as_string(hide_password=False)
    postgresql_server.drop(url)


class StateChange:
    """One event of the feed: a job changes its state."""

    def __init__(self, job_id: int, owner: str, from_state: str, to_state: str) -> None:
        self.job_id = job_id
        self.owner = owner
        self.before = JobState(from_state)
        self.after = JobState(to_state)

    @property
    def leases(self) -> int:
        """The change of the number of leases."""
        return (self.after in LEASED) - (self.before in LEASED)


def transitions_of(database_url: str) -> list[StateChange]:
    """Return all transitions in the order of commits."""
    query = select(EVENTS.c.job_id, JOBS.c.owner, EVENTS.c.from_state, EVENTS.c.to_state)
    with closing(Database(database_url)) as database:
        rows = database.read(
            lambda transaction: transaction.session.execute(
                query.join(JOBS, JOBS.c.id == EVENTS.c.job_id).order_by(EVENTS.c.id)
            ).all()
        )
    return [StateChange(*row) for row in rows]


def peak_leases(transitions: Sequence[StateChange], owner: str) -> int:
    """Return the largest number of leases that an owner held at once."""
    running = peak = 0
    for transition in transitions:
        running += transition.leases if transition.owner == owner else 0
        peak = max(peak, running)
    return peak


def run_all(fleet: ServerFleet, kills: int) -> Progress:
    """Run the jobs of all owners while servers are killed and restarted one after the other."""
    progress = Progress(sum(JOBS_PER_OWNER.values()))
    with ExitStack() as stack:
        grid = WireGrid(fleet.servers[0])
        stack.callback(grid.close)
        grid.put_tree()
        for owner, count in JOBS_PER_OWNER.items():
            grid.user(owner).SubmitJobs(submission([JobDescription("/bin/true", count=count)]))
        credentials = [grid.start_pilot().token for _ in range(PILOTS)]
        channels = [stack.enter_context(fleet.channel(token)) for token in credentials]
        pilots = [PollingPilot(channel, SLOTS, progress, number) for number, channel in enumerate(channels)]
        for pilot in pilots:
            pilot.start()
        try:
            for number in range(kills):
                progress.wait_for((number + 1) / (kills + 1))
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
def test_jobs_run_once_within_limits_while_servers_are_killed(servers: int, tmp_path: Path, database_url: str) -> None:
    limit = {"site": "SITE", "attribute": "owner", "value": "carol", "at_most": RUNNING_LIMIT}
    with server_fleet(tmp_path, database_url, servers, running_limits=[limit]) as fleet:
        progress = run_all(fleet, kills=servers)
    transitions = transitions_of(database_url)
    jobs = sum(JOBS_PER_OWNER.values())
    assert Counter(attempt for _, attempt in progress.given) == {1: jobs}
    assert len(set(progress.given)) == jobs
    assert Counter(transition.after for transition in transitions if transition.after in FINAL) == {JobState.DONE: jobs}
    assert sum(transition.leases > 0 for transition in transitions) == jobs
    assert peak_leases(transitions, "carol") == RUNNING_LIMIT
    matched = [transition.owner for transition in transitions if transition.after is JobState.MATCHED]
    # Later, jobs that ran while a server was away are charged for seconds, all others for milliseconds.
    before_first_kill = Counter(matched[: jobs // (servers + 2)])
    assert 0.4 < before_first_kill["alice"] / (before_first_kill["alice"] + before_first_kill["bob"]) < 0.6


async def test_servers_share_files_in_an_object_store(
    tmp_path: Path, database_url: str, object_store: ObjectStore, bucket: Bucket
) -> None:
    with server_fleet(tmp_path, database_url, 2, heartbeat_s=1, **bucket.settings) as fleet:
        one, two = (ProcessGrid(server, tmp_path / "grid") for server in fleet.servers)
        for grid in (one, two):
            grid.put_tree(TREE)  # a server learns of the trees of others a moment later
        data = jobs_pb2.InputFile(name="data", checksum=one.upload(b"of server one"))
        job_id = one.submit(script="cat data - < data > both", input_files=[data], output_files=["both"])
        two.folder.mkdir()
        async with two.pilot():
            job = await two.done(job_id)
        assert job.state == jobs_pb2.JOB_STATE_DONE, job
        assert one.output(job_id)["both"] == b"of server oneof server one"
        assert not (tmp_path / "files").exists()
        other = {**object_store.new_bucket().settings, "signing_key": str(tmp_path / "key.pem")}
        stranger = RunningServer(tmp_path / "stranger", database=database_url, **other)
        assert "its file store is a new one, without an id" in stranger.start_fails()
