"""Random graphs of jobs with random outcomes: exactly those jobs are blocked whose parents have not done their part.

Where several parents are one, such as a cluster, a bad end of one of them may count at once or when the others have
ended. So the model knows what is certain and what is possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pilotage.job_description import JobDescription
from pilotage.values.attempts import AttemptKey
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage.values.selections import JobSelection
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.record import JobRecord, is_matchable
from pilotage_server.core.jobs.states import FINAL, JobState
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.transaction import Transaction
from support.database import quick_sqlite
from support.grid import Grid, a_slot
from support.jobs import a_user
from support.virtual_clock import VirtualClock

ALICE = a_user("alice")
kinds = st.sampled_from(list(DependencyKind))
often_ok = st.sampled_from([DependencyKind.AFTER_OK, DependencyKind.AFTER_OK, *DependencyKind])
places = st.integers(0, 30)


@dataclass
class Futile:
    """Jobs that cannot run as things stand, and those of them that are settled."""

    certain: set[int] = field(default_factory=set)
    possible: set[int] = field(default_factory=set)
    surely_settled: set[int] = field(default_factory=set)
    possibly_settled: set[int] = field(default_factory=set)


@dataclass
class ModelWait:
    """What a job waits for: once all parents have done it, it is met for ever."""

    kind: DependencyKind
    parents: tuple[int, ...]
    is_met: bool = False
    may_be_met: bool = False

    def look(self, jobs: dict[int, JobRecord], futile: Futile) -> None:
        self.is_met |= all(self._has_done(jobs[parent], futile.surely_settled) for parent in self.parents)
        self.may_be_met |= all(self._has_done(jobs[parent], futile.possibly_settled) for parent in self.parents)

    def _has_done(self, parent: JobRecord, settled: set[int]) -> bool:
        match self.kind:
            case DependencyKind.AFTER_OK:
                return parent.state is JobState.DONE
            case DependencyKind.AFTER:
                return parent.state in FINAL or parent.starts > 0
            case DependencyKind.AFTER_ANY:
                return parent.state in FINAL
            case DependencyKind.AFTER_SETTLED:
                return parent.state in FINAL or parent.id in settled

    def is_futile(self, jobs: dict[int, JobRecord], futile: Futile) -> bool:
        """Whether it is certain that it cannot be met as things stand."""
        if self.kind is DependencyKind.AFTER_SETTLED or self.may_be_met:
            return False
        return all(
            self._has_done(parent, set()) or parent.state in FINAL or parent.id in futile.certain
            for parent in map(jobs.__getitem__, self.parents)
        )

    def may_be_futile(self, jobs: dict[int, JobRecord], futile: Futile) -> bool:
        if self.kind is DependencyKind.AFTER_SETTLED or self.is_met:
            return False
        return any(
            not self._has_done(parent, set()) and (parent.state in FINAL or parent.id in futile.possible)
            for parent in map(jobs.__getitem__, self.parents)
        )


@dataclass
class DescribedJobs:
    """The jobs of one description, with what they wait for."""

    ids: tuple[int, ...]
    waits: list[ModelWait] = field(default_factory=list)

    def look(self, jobs: dict[int, JobRecord], futile: Futile) -> None:
        """Update what they wait for, after the jobs that they wait for; add them to the futile ones."""
        for wait in self.waits:
            wait.look(jobs, futile)
        live = {job_id for job_id in self.ids if jobs[job_id].state not in FINAL}
        turns = [wait for wait in self.waits if wait.kind is DependencyKind.AFTER_SETTLED]
        if any(wait.is_futile(jobs, futile) for wait in self.waits):
            futile.certain |= live
            futile.surely_settled |= live if all(wait.is_met for wait in turns) else set()
        if any(wait.may_be_futile(jobs, futile) for wait in self.waits):
            futile.possible |= live
            futile.possibly_settled |= live if all(wait.may_be_met for wait in turns) else set()


class RandomGraphs(RuleBasedStateMachine):
    """Submissions that depend on each other, and one pilot that runs their jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.open = ExitStack()
        folder = self.open.enter_context(TemporaryDirectory())
        clock = VirtualClock()
        self.grid = Grid(self.open.enter_context(quick_sqlite(Path(folder, "pilotage.db"), clock)), clock)
        self.pilot = self.grid.start_pilot()
        self.described: list[DescribedJobs] = []

    def teardown(self) -> None:
        self.open.close()

    def _jobs(self) -> dict[int, JobRecord]:
        return self.grid.jobs([job_id for each in self.described for job_id in each.ids])

    def _after_step(self) -> None:
        self.grid.advance()
        jobs, futile = self._jobs(), Futile()
        for each in self.described:
            each.look(jobs, futile)

    def _some_job(self, place: int) -> int:
        ids = [job_id for each in self.described for job_id in each.ids]
        return ids[place % len(ids)]

    @initialize(kind=kinds, chain=st.lists(often_ok, min_size=4, max_size=4))
    def submit_cluster_with_descendants(self, kind: DependencyKind, chain: Sequence[DependencyKind]) -> None:
        self.submit([3], [], [], [], hold=False)
        self.submit([1], [], [(kind, 0, 0, True)], [], hold=False)
        links = [(link, nth, nth + 1) for nth, link in enumerate(chain[1:])]
        self.submit([1, 2, 1, 1], links, [(chain[0], 0, 0, False)], [(DependencyKind.AFTER_SETTLED, 0, 2)], hold=False)

    @rule(
        counts=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        inner=st.lists(st.tuples(kinds, places, places), max_size=3),
        outer=st.lists(st.tuples(kinds, places, places, st.booleans()), max_size=3),
        ranges=st.lists(st.tuples(kinds, places, places), max_size=1),
        hold=st.booleans(),
    )
    def submit(
        self,
        counts: Sequence[int],
        inner: Sequence[tuple[DependencyKind, int, int]],
        outer: Sequence[tuple[DependencyKind, int, int, bool]],
        ranges: Sequence[tuple[DependencyKind, int, int]],
        hold: bool,
    ) -> None:
        descriptions = [JobDescription("/bin/true", count=count, hold=hold) for count in counts]
        dependencies: list[Dependency] = []
        waits: list[list[ModelWait]] = [[] for _ in counts]
        for kind, one, other in inner:
            parent, child = sorted((one % len(counts), other % len(counts)))
            if parent != child:
                dependencies.append(Dependency(child, kind, (), (parent,)))
        for kind, one, other in ranges:
            first, last = sorted((one % len(counts), other % len(counts)))
            if last + 1 < len(counts):
                dependencies.append(Dependency(len(counts) - 1, kind, ranges=((first, last),)))
        for kind, place, child, whole in outer if self.described else ():
            cluster = self.described[place % len(self.described)].ids
            name = JobSelection(cluster[0], None if whole else (place % len(cluster),) * 2)
            dependencies.append(Dependency(child % len(counts), kind, (name,)))
            parents = cluster if whole else (cluster[place % len(cluster)],)
            waits[child % len(counts)].append(ModelWait(kind, parents))

        def write(transaction: Any, state: Any) -> Sequence[int]:
            groups = single_groups(descriptions)
            return submit_jobs(transaction, state, ALICE, groups, dependencies=dependencies).job_ids

        ids = iter(self.grid.write(write))
        new = [
            DescribedJobs(tuple(next(ids) for _ in range(count)), wait)
            for count, wait in zip(counts, waits, strict=True)
        ]
        for dependency in dependencies:
            for first, last in (*((parent, parent) for parent in dependency.descriptions), *dependency.ranges):
                parents = tuple(id_ for each in new[first : last + 1] for id_ in each.ids)
                new[dependency.description].waits.append(ModelWait(dependency.kind, parents))
        self.described += new
        self._after_step()

    @rule(slots=st.integers(1, 3))
    def start(self, slots: int) -> None:
        for match in self.pilot.request_jobs(*[a_slot(f"slot{number}") for number in range(slots)]).matches:
            self.pilot.start(match)
            self._after_step()

    @precondition(lambda self: self.pilot.held)
    @rule(place=places, exit_code=st.sampled_from([0, 1]))
    def finish(self, place: int, exit_code: int) -> None:
        lease: AttemptKey = self.pilot.held[place % len(self.pilot.held)]
        self.pilot.finish(lease, exit_code)  # type: ignore[arg-type]
        self._after_step()

    @precondition(lambda self: self.described)
    @rule(place=places, change=st.sampled_from(list(JobChange)))
    def change(self, place: int, change: JobChange) -> None:
        self.grid.change(change, self._some_job(place))
        self.pilot.beat()  # it gives up what was taken from it
        self._after_step()

    @invariant()
    def exactly_jobs_with_unmet_waits_are_blocked(self) -> None:
        jobs = self._jobs()
        for each in self.described:
            is_free = jobs[each.ids[0]].blocked_by == 0
            assert is_free or not all(wait.is_met for wait in each.waits)
            assert not is_free or all(wait.may_be_met for wait in each.waits)
            for job_id in each.ids:
                job = jobs[job_id]
                assert (job.blocked_by == 0) == is_free
                assert (job.state is JobState.BLOCKED) == (not is_free and job.state not in {JobState.HELD, *FINAL})
                assert is_free or job.starts == 0

    @invariant()
    def memory_counts_waiting_jobs(self) -> None:
        counts = {each.task_queue.id: each.count for each in self.grid.state.waiting.waiting()}
        waiting = [job.task_queue_id for job in self._jobs().values() if is_matchable(job)]
        assert counts == Counter(waiting)

    @invariant()
    def tables_have_no_leftovers(self) -> None:
        if all(wait.is_met for each in self.described for wait in each.waits):
            assert self.grid.read(_count_rows) == 0


def _count_rows(transaction: Transaction, _: ServerState) -> int:
    tables = ("blocks", "dependency_sources", "dependencies", "parent_events")
    return sum(sql.rows(transaction.session, f"SELECT count(*) FROM {table}")[0][0] for table in tables)


RandomGraphs.TestCase.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
TestRandomGraphs = RandomGraphs.TestCase
