"""The one way to move jobs: decided by the table of steps, stored by compare-and-set, told as events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from pilotage.errors import StateConflictError
from pilotage_server.core.job_events import JobEvent
from pilotage_server.core.job_policies import UNDER_POLICY
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.job_steps import changes_of_step, waits
from pilotage_server.core.jobs import JobCause, JobState
from pilotage_server.core.races import cause_in_race, may_end_race
from pilotage_server.core.waiting import Head
from pilotage_server.operations.arrivals import arrive, depart
from pilotage_server.operations.attempt_book import AttemptBook
from pilotage_server.operations.event_outbox import tell
from pilotage_server.operations.lease_ends import LeaseEnd, leases_ended
from pilotage_server.operations.metering import meter_moves
from pilotage_server.operations.race_ends import Finisher, close_races, settled_races
from pilotage_server.operations.running_counts import count_moves
from pilotage_server.operations.task_queueing import placed_again
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.job_rows import compare_and_set


class Move(NamedTuple):
    """A step that a job is to take, and who causes it; `changes` are fields of its record that change with it."""

    job: JobRecord
    cause: JobCause
    actor: str
    reason: str = ""
    changes: Mapping[str, Any] = MappingProxyType({})


def step(
    unit: Unit, world: World, job: JobRecord, cause: JobCause, *, reason: str, actor: str, **changes: Any
) -> JobRecord:
    """Move one job and return its record after the step.

    Raises
    ------
    IllegalTransitionError
        The job's state has no such step.
    StateConflictError
        Somebody else has moved the job since it was loaded.
    """
    (moved,) = steps(unit, world, [Move(job, cause, actor, reason, changes)])
    if moved is None:
        raise StateConflictError(f"job {job.id} is no longer {job.state} in attempt {job.attempt}")
    return moved


def steps(unit: Unit, world: World, moves: Sequence[Move]) -> tuple[JobRecord | None, ...]:
    """Move jobs, each at most once, and return their records after it; None = somebody else has moved that one.

    What follows for others who race with them is not told.

    Raises
    ------
    IllegalTransitionError
        Some job's state has no such step; then no job has moved.
    """
    courses = Courses(unit, world, AttemptBook(unit.session))
    for move in moves:
        courses.take(move)
    moved = courses.store()
    courses.settle()
    return tuple(moved.get(move.job.id) for move in moves)


@dataclass(slots=True)
class _Course:
    """The steps of one job, one after the other: what it was, what it is, and what has changed."""

    before: JobRecord
    after: JobRecord
    changes: dict[str, Any]
    events: list[JobEvent]
    lease_end: LeaseEnd | None = None
    comes_back: bool = False

    def take(self, unit: Unit, move: Move) -> None:
        """Go on by a step."""
        job, cause, actor, reason, decided = move
        # PostgreSQL keeps no zero characters, and a reason may come from a payload's last words.
        reason = reason.replace("\0", "")
        changes = changes_of_step(job, cause, reason, unit.now, decided)
        self.changes.update(changes)
        self.after = after = job.changed(changes)
        if job.is_leased and not after.is_leased:
            self.lease_end = LeaseEnd(job, cause, reason)
        if after.state is JobState.WAITING and job.state is not JobState.WAITING:
            self.comes_back = True
        self.events.append(JobEvent(0, job.id, unit.now, job.state, after.state, cause, reason, after.attempt, actor))


class Courses:
    """Steps of jobs: each taken in memory at once, those of all jobs stored together.

    `book` has the attempts whose leases end; what is changed in it is written with them.
    """

    def __init__(self, unit: Unit, world: World, book: AttemptBook) -> None:
        self._unit = unit
        self._world = world
        self._book = book
        self._courses: dict[int, _Course] = {}
        self._finishers: list[Finisher] = []

    def take(self, move: Move) -> JobRecord:
        """Let a job take a step, and return its record after it; `move.job` is as the step before has left it.

        Raises
        ------
        IllegalTransitionError
            The job's state has no such step.
        """
        if move.job.race:
            move = move._replace(cause=cause_in_race(move.job, move.cause))
        course = self._courses.get(move.job.id)
        if course is None:
            course = self._courses[move.job.id] = _Course(move.job, move.job, {}, [])
        course.take(self._unit, move)
        return course.after

    def store(self) -> dict[int, JobRecord]:
        """Store what was taken, and return the records of the jobs by id; somebody else has moved those left out."""
        self._place()
        courses = list(self._courses.values())
        befores = [course.before for course in courses]
        moved = compare_and_set(self._unit.session, befores, [course.changes for course in courses])
        self._follow_up([course for course in courses if course.before.id in moved])
        self._book.write()
        self._courses = {}
        return {course.before.id: course.after for course in courses if course.before.id in moved}

    def settle(self) -> None:
        """End the races that what was stored has decided.

        To be called when all else has been written that the steps have brought, as results are shared here.
        """
        if not self._finishers:
            return
        settled = settled_races(self._unit, self._finishers)
        for each in settled:
            for job, cause, reason, changes in each.end.steps:
                self.take(Move(job, cause, "server", reason, changes))
        self.store()
        close_races(self._unit, settled)
        self._finishers = []

    def _place(self) -> None:
        """Let jobs that come back to wait do so in the task queues where what they have behind them leads."""
        comers = {id_: course for id_, course in self._courses.items() if course.comes_back}
        pooled = {id_ for id_, course in comers.items() if "pool_id" in course.changes}
        places = placed_again(self._unit, self._world, [course.after for course in comers.values()], pooled)
        for id_, task_queue_id in places.items():
            course = comers[id_]
            course.changes["task_queue_id"] = task_queue_id
            course.after = course.after.changed({"task_queue_id": task_queue_id})

    def _follow_up(self, courses: Sequence[_Course]) -> None:
        """Do what follows from the steps: for attempts, accounts, what waits, policies, and those who listen."""
        unit, world = self._unit, self._world
        ends = [course.lease_end for course in courses if course.lease_end is not None]
        leases_ended(unit, world, ends, self._book)
        meter_moves(unit, world, [(course.before, course.after) for course in courses], self._book)
        count_moves(unit, world, [(course.before, course.after) for course in courses])
        depart(unit, world, [course.before for course in courses if waits(course.before)])
        waiting = [course.after for course in courses if waits(course.after)]
        arrive(unit, world, [(job.task_queue_id, Head(job.priority, job.id)) for job in waiting])
        changed = [job.id for job in (course.after for course in courses) if job.watch and job.state in UNDER_POLICY]
        if changed:
            unit.after_commit(partial(world.look_at, changed))
        for course in courses:
            for event in course.events:
                tell(unit, world, event)
            if course.before.race:
                self._note_racer(course)

    def _note_racer(self, course: _Course) -> None:
        causes = tuple(event.cause for event in course.events)
        if may_end_race(course.after, causes):
            self._finishers.append(Finisher(course.after, causes))
