"""A grid with jobs that depend on each other, which tests run one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pilotage.job_description import JobDescription
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage_client.dependencies import read_parent
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.operations.jobs.new_jobs import store_part
from pilotage_server.operations.jobs.queries import get_events, get_jobs
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.engine import Database
from support.grid import Grid, Pilot, a_slot
from support.jobs import a_user
from support.virtual_clock import VirtualClock

ALICE = a_user("alice")
TRUE = JobDescription("/bin/true")


class DependentJobs:
    """A grid with one pilot, and submissions with dependencies."""

    def __init__(self, database: Database, clock: VirtualClock) -> None:
        self.grid = Grid(database, clock)
        self.pilot: Pilot = self.grid.start_pilot()

    def accept(
        self, descriptions: Sequence[JobDescription], dependencies: Sequence[Dependency], user: Identity = ALICE
    ) -> list[int]:
        """Submit; of a long submission only the first part is stored."""

        def submit(transaction: Any, state: Any) -> Sequence[int]:
            groups = single_groups(descriptions)
            return submit_jobs(transaction, state, user, groups, dependencies=dependencies).job_ids

        return list(self.grid.write(submit))

    def store_part(self, submission: int) -> bool:
        return self.grid.write(lambda transaction, state: store_part(transaction, state, submission))

    def submit(self, *dependencies: Dependency, count: int = 1, **fields: Any) -> list[int]:
        """Submit so many jobs with dependencies, each by its own description."""
        return self.accept([JobDescription("/bin/true", **fields)] * count, dependencies)

    def child(self, kind: DependencyKind, *parents: int | str, **fields: Any) -> int:
        """Submit a job, or an array, that depends on these parents; returns the first id."""
        names = tuple(read_parent(str(parent)) for parent in parents)
        return self.submit(Dependency(0, kind, names), **fields)[0]

    def run(self, *job_ids: int, exit_code: int | None = 0) -> None:
        """Run the jobs that wait, which must be these; `exit_code` None = they only start."""
        matches = {match.job_id: match for match in self.pilot.request_jobs(*self._slots(len(job_ids))).matches}
        assert set(matches) == set(job_ids)
        for job_id in job_ids:
            self.pilot.start(matches[job_id])
            if exit_code is not None:
                self.pilot.finish(matches[job_id], exit_code)
        self.grid.advance()

    def _slots(self, count: int) -> list[Any]:
        return [a_slot(f"slot{number}") for number in range(count + 1)]

    def finish(self, job_id: int, exit_code: int = 0) -> None:
        """End a job that runs."""
        lease = next(lease for lease in self.pilot.held if lease.job_id == job_id)
        self.pilot.finish(lease, exit_code)  # type: ignore[arg-type]
        self.grid.advance()

    def change(self, change: JobChange, *job_ids: int) -> None:
        self.grid.change(change, *job_ids)
        self.grid.advance()

    def states(self, *job_ids: int) -> list[JobState]:
        jobs = self.grid.jobs(job_ids)
        return [jobs[job_id].state for job_id in job_ids]

    def seen(self, job_id: int) -> JobRecord:
        return self.grid.read(lambda transaction, _: get_jobs(transaction, ALICE, [job_id]))[0]

    def causes(self, job_id: int) -> list[JobCause]:
        return [event.cause for event in self.grid.read(lambda transaction, _: get_events(transaction, ALICE, job_id))]

    def rows(self) -> dict[str, int]:
        """Return how many rows the tables of dependencies have that are not empty."""
        tables = ("blocks", "dependency_sources", "dependencies", "parent_events")

        def count(transaction: Any, _: Any) -> dict[str, int]:
            return {table: sql.rows(transaction.session, f"SELECT count(*) FROM {table}")[0][0] for table in tables}

        return {table: rows for table, rows in self.grid.read(count).items() if rows}
