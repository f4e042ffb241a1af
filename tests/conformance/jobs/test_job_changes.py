"""Remove, hold, release, reschedule and edit, on every database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from pilotage.errors import InvalidJobError, NotFoundError, StateConflictError
from pilotage.job_description import JobDescription
from pilotage.values.jobs import ChangeResult
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import IllegalTransitionError, JobCause, JobState
from pilotage_server.operations.attempts.transitions import Transition, apply_transition, apply_transitions
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.edit import EditedJob, edit_job
from pilotage_server.operations.jobs.queries import get_description, get_events, get_jobs
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.attempts import load_attempts
from pilotage_server.storage.database.engine import Database
from support.jobs import a_description, a_user, an_operator, end, lease_to
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

ALICE = a_user("alice")


class Jobs:
    """A database with its server state."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.state = ServerState()

    def submit(self, *descriptions: JobDescription) -> tuple[int, ...]:
        given = descriptions or (a_description(),)
        return self.database.write(
            lambda transaction: submit_jobs(transaction, self.state, ALICE, single_groups(given))
        ).job_ids

    def change(
        self, ids: Sequence[int], change: JobChange, identity: Identity = ALICE, reason: str = ""
    ) -> tuple[ChangeResult, ...]:
        return self.database.write(
            lambda transaction: change_jobs(transaction, self.state, identity, ids, change, reason)
        )

    def edit(self, job_id: int, description: JobDescription, identity: Identity = ALICE) -> EditedJob:
        return self.database.write(lambda transaction: edit_job(transaction, self.state, identity, job_id, description))

    def job(self, job_id: int) -> JobRecord:
        return self.database.read(lambda transaction: get_jobs(transaction, an_operator(), [job_id]))[0]

    def waiting(self, job: JobRecord) -> int:
        return self.state.waiting.count(job.task_queue_id)

    def causes(self, job_id: int) -> list[JobCause]:
        return [event.cause for event in self.database.read(lambda transaction: get_events(transaction, ALICE, job_id))]

    def text(self, job_id: int) -> JobDescription:
        return self.database.read(lambda transaction: get_description(transaction, ALICE, job_id))


@pytest.fixture
def jobs(database: Database) -> Jobs:
    return Jobs(database)


def test_held_job_does_not_wait_until_released(jobs: Jobs) -> None:
    (job_id,) = jobs.submit()
    assert jobs.change([job_id], JobChange.HOLD, reason="wrong input") == (ChangeResult(job_id, JobState.HELD),)
    held = jobs.job(job_id)
    assert (held.state, held.reason, jobs.waiting(held)) == (JobState.HELD, "wrong input", 0)
    assert jobs.change([job_id], JobChange.RELEASE) == (ChangeResult(job_id, JobState.WAITING),)
    assert jobs.waiting(jobs.job(job_id)) == 1
    assert jobs.causes(job_id) == [JobCause.ENQUEUED, JobCause.HELD, JobCause.RELEASED]


def test_each_job_of_a_call_gets_its_result_in_order(jobs: Jobs) -> None:
    waiting, held = jobs.submit(a_description(), a_description(hold=True))
    absent = held + 1000
    results = jobs.change([held, absent, waiting, held], JobChange.RELEASE)
    assert [result.job_id for result in results] == [held, absent, waiting, held]
    assert [result.state for result in results] == [JobState.WAITING, "", JobState.WAITING, JobState.WAITING]
    assert [bool(result.refusal) for result in results] == [False, True, True, False]


def test_job_of_another_owner_is_not_found(jobs: Jobs) -> None:
    (job_id,) = jobs.submit()
    assert jobs.change([job_id], JobChange.REMOVE, a_user("bob")) == (
        ChangeResult(job_id, "", f"there is no job {job_id}"),
    )
    assert jobs.job(job_id).state is JobState.WAITING
    assert jobs.change([job_id], JobChange.REMOVE, an_operator())[0].state is JobState.REMOVED


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (JobChange.REMOVE, JobState.REMOVED),
        (JobChange.HOLD, JobState.HELD),
        (JobChange.RESCHEDULE, JobState.WAITING),
    ],
)
def test_change_of_running_job_ends_lease_and_calls_pilot(jobs: Jobs, change: JobChange, state: JobState) -> None:
    called_pilots: list[str] = []
    jobs.state.command_listeners.append(called_pilots.append)
    (job_id,) = jobs.submit()
    lease_to(jobs.database, jobs.state, job_id)
    (result,) = jobs.change([job_id], change)
    after = jobs.job(job_id)
    assert (result.state, after.state, after.is_leased, after.attempt) == (state, state, False, 1)
    assert called_pilots == ["p1"]
    attempt = jobs.database.read(lambda transaction: load_attempts(transaction.session, [(job_id, 1)]))[job_id, 1]
    assert attempt.ended is not None


def test_rescheduled_job_waits_with_reset_counters(jobs: Jobs, clock: VirtualClock) -> None:
    (job_id,) = jobs.submit()
    lease_to(jobs.database, jobs.state, job_id)
    clock.advance(minutes=5)
    end(jobs.database, jobs.state, job_id)
    assert jobs.job(job_id).ended == clock()
    jobs.change([job_id], JobChange.RESCHEDULE)
    after = jobs.job(job_id)
    assert (after.state, after.attempt, after.spent_attempts) == (JobState.WAITING, 1, 0)
    assert (after.exit_code, after.started, after.ended) == (None, None, None)
    assert jobs.waiting(after) == 1


def test_one_call_changes_many_jobs(jobs: Jobs) -> None:
    ids = jobs.submit(a_description(count=500))
    assert {result.state for result in jobs.change(ids, JobChange.HOLD)} == {JobState.HELD}
    assert jobs.waiting(jobs.job(ids[0])) == 0
    assert {result.refusal for result in jobs.change(ids, JobChange.RELEASE)} == {""}
    assert jobs.waiting(jobs.job(ids[0])) == 500


def test_illegal_transition_changes_nothing(jobs: Jobs) -> None:
    first, second = jobs.submit(a_description(), a_description())
    transitions = [
        Transition(jobs.job(first), JobCause.HELD, "server"),
        Transition(jobs.job(second), JobCause.DONE, "server"),
    ]
    with pytest.raises(IllegalTransitionError):
        jobs.database.write(lambda transaction: apply_transitions(transaction, jobs.state, transitions))
    assert jobs.job(first).state is JobState.WAITING
    assert jobs.causes(first) == [JobCause.ENQUEUED]


def test_transition_of_stale_job_is_refused(jobs: Jobs) -> None:
    first, second = jobs.submit(a_description(), a_description())
    stale = jobs.job(first)
    jobs.change([first], JobChange.HOLD)
    with pytest.raises(StateConflictError, match=f"job {first} is no longer WAITING"):
        jobs.database.write(
            lambda transaction: apply_transition(
                transaction, jobs.state, stale, JobCause.REMOVED, reason="", actor="server"
            )
        )
    transitions = [
        Transition(stale, JobCause.REMOVED, "server"),
        Transition(jobs.job(second), JobCause.REMOVED, "server"),
    ]
    results = jobs.database.write(lambda transaction: apply_transitions(transaction, jobs.state, transitions))
    assert results[0] is None
    assert results[1] is not None
    assert (jobs.job(first).state, jobs.job(second).state) == (JobState.HELD, JobState.REMOVED)
    assert jobs.causes(first) == [JobCause.ENQUEUED, JobCause.HELD]


def test_nul_characters_are_removed_from_reason(jobs: Jobs) -> None:
    (job_id,) = jobs.submit()
    jobs.change([job_id], JobChange.HOLD, reason="a\0b")
    assert jobs.job(job_id).reason == "ab"


def test_edited_job_changes_task_queue_without_its_array(jobs: Jobs) -> None:
    ids = jobs.submit(a_description("run.sh", count=3, name="n$(Process)"))
    before = jobs.job(ids[1])
    new = a_description("run.sh", requirements={"Memory": 9000}, priority=7, name="other", lease=timedelta(hours=1))
    edited = jobs.edit(ids[1], new).job
    assert (edited.name, edited.priority, edited.process, edited.cluster) == ("other", 7, 1, ids[0])
    assert edited.lease == timedelta(hours=1)
    assert edited.pool_id != ""
    assert edited.task_queue_id != before.task_queue_id
    assert (jobs.waiting(before), jobs.waiting(edited)) == (2, 1)
    assert jobs.text(ids[1]).requirements == {"Memory": 9000}
    assert jobs.text(ids[2]).requirements is None
    assert jobs.causes(ids[1]) == [JobCause.ENQUEUED, JobCause.EDITED]


def test_edit_that_adds_an_expression_changes_task_queue(jobs: Jobs) -> None:
    (job_id,) = jobs.submit()
    before = jobs.job(job_id)
    edited = jobs.edit(job_id, a_description(rank="KFlops")).job
    assert edited.state is JobState.WAITING
    assert edited.task_queue_id != before.task_queue_id


def test_edit_to_held_keeps_job_held_until_released(jobs: Jobs) -> None:
    (job_id,) = jobs.submit()
    assert jobs.edit(job_id, a_description(hold=True)).job.state is JobState.HELD
    assert jobs.edit(job_id, a_description()).job.state is JobState.HELD
    assert jobs.change([job_id], JobChange.RELEASE)[0].state is JobState.WAITING


def test_invalid_edit_changes_nothing(jobs: Jobs) -> None:
    (job_id,) = jobs.submit(a_description("run.sh"))
    with pytest.raises(InvalidJobError) as refused:
        jobs.edit(job_id, a_description("", request_cpus=0))
    assert [fault.where for fault in refused.value.violations] == ["description.executable", "description.request_cpus"]
    assert jobs.text(job_id).executable == "run.sh"


def test_edit_cannot_make_an_array(jobs: Jobs) -> None:
    ids = jobs.submit(a_description(count=3))
    assert jobs.edit(ids[0], a_description(count=3)).job.id == ids[0]
    with pytest.raises(InvalidJobError, match=r"description\.count"):
        jobs.edit(ids[1], a_description(count=4))


def test_edit_is_refused_for_foreign_or_finished_job(jobs: Jobs) -> None:
    (job_id,) = jobs.submit()
    with pytest.raises(NotFoundError, match=f"job {job_id}"):
        jobs.edit(job_id, a_description(), a_user("bob"))
    jobs.change([job_id], JobChange.REMOVE)
    with pytest.raises(StateConflictError, match="REMOVED"):
        jobs.edit(job_id, a_description())
