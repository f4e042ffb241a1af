"""Submission on every database: whole or not at all, arrays in bulk, ids and events in order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pilotage.errors import InvalidJobError, PermissionDeniedError
from pilotage.job_description import InputFile, JobDescription
from pilotage.values.jobs import SubmittedJobs
from pilotage_server.core.identity import Holder, Identity
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.files import JobLimits
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.operations.jobs.queries import get_description, get_events, get_jobs, read_feed
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.templates import insert_stored
from support.jobs import a_description, a_user, an_operator
from support.virtual_clock import START

ALICE = a_user("alice")
CHECKSUM = "ab" * 32


@pytest.fixture
def state() -> ServerState:
    return ServerState()


def submit(
    database: Database, state: ServerState, *descriptions: JobDescription, identity: Identity = ALICE
) -> SubmittedJobs:
    return database.write(lambda transaction: submit_jobs(transaction, state, identity, single_groups(descriptions)))


def refused(database: Database, state: ServerState, *descriptions: JobDescription) -> list[str]:
    with pytest.raises(InvalidJobError) as error:
        submit(database, state, *descriptions)
    return [violation.where for violation in error.value.violations]


def test_a_job_waits_under_the_name_of_who_submitted_it(database: Database, state: ServerState) -> None:
    (job_id,) = submit(database, state, a_description(name="sim", attributes={"Owner": "root"})).job_ids
    (job,) = database.read(lambda transaction: get_jobs(transaction, ALICE, [job_id]))
    assert (job.owner, job.vo, job.group, job.name) == ("alice", "lhcb", "users", "sim")
    assert (job.state, job.cluster, job.process, job.submitted) == (JobState.WAITING, job_id, 0, START)
    assert state.waiting.count(job.task_queue_id) == 1


def test_an_array_is_jobs_in_a_row_of_one_template(database: Database, state: ServerState) -> None:
    submit(database, state, a_description())
    ids = submit(database, state, a_description(count=5, name="sim-$(Process)", priority=3)).job_ids
    jobs = database.read(lambda transaction: get_jobs(transaction, ALICE, ids))
    assert list(ids) == sorted(ids)
    assert [job.process for job in jobs] == [0, 1, 2, 3, 4]
    assert [job.name for job in jobs] == [f"sim-{number}" for number in range(5)]
    assert {job.cluster for job in jobs} == {ids[0]}
    assert len({job.template_id for job in jobs}) == 1
    assert {job.state for job in jobs} == {JobState.WAITING}
    assert state.waiting.count(jobs[0].task_queue_id) == 1 + 5


def test_a_batch_keeps_its_order_with_arrays_between(database: Database, state: ServerState) -> None:
    batch = [a_description(name="a"), a_description(name="b", count=3), a_description(name="c")]
    ids = submit(database, state, *batch).job_ids
    jobs = database.read(lambda transaction: get_jobs(transaction, ALICE, ids))
    assert [job.name for job in jobs] == ["a", "b", "b", "b", "c"]
    assert [job.process for job in jobs] == [0, 0, 1, 2, 0]
    assert [job.cluster for job in jobs] == [ids[0], ids[1], ids[1], ids[1], ids[4]]


def test_each_new_job_has_one_event_out_of_received(database: Database, state: ServerState) -> None:
    ids = submit(database, state, a_description(), a_description(count=3), a_description(hold=True)).job_ids
    page = database.read(lambda transaction: read_feed(transaction, ALICE, 0))
    assert sorted(event.job_id for event in page.events) == sorted(ids)
    assert {event.from_state for event in page.events} == {JobState.RECEIVED}
    assert {event.actor for event in page.events} == {"alice"}
    assert {event.time for event in page.events} == {START}
    held = database.read(lambda transaction: get_events(transaction, ALICE, ids[-1]))
    assert [(event.cause, event.to_state) for event in held] == [(JobCause.HELD, JobState.HELD)]
    assert page.at_end


def test_listeners_hear_of_a_submission_after_its_commit(database: Database, state: ServerState) -> None:
    heard: list[tuple[int, int]] = []
    state.event_listeners.append(lambda events: heard.extend((event.position, event.job_id) for event in events))
    ids = submit(database, state, a_description(), a_description(count=3)).job_ids
    stored = database.read(lambda transaction: read_feed(transaction, ALICE, 0)).events
    assert set(heard) <= {(event.position, event.job_id) for event in stored}
    assert {job_id for _position, job_id in heard} == {ids[0], ids[1]}


def test_one_fault_refuses_the_whole_batch_and_every_fault_is_named(database: Database, state: ServerState) -> None:
    bad = a_description(requirements={"Memory": -1, "Disk": -1})
    assert refused(database, state, a_description(), bad, a_description("")) == [
        "descriptions[1].requirements.Memory",
        "descriptions[1].requirements.Disk",
        "descriptions[2].executable",
    ]
    assert database.read(lambda transaction: read_feed(transaction, an_operator(), 0)).events == ()


def test_an_empty_batch_is_refused(database: Database, state: ServerState) -> None:
    assert refused(database, state) == ["descriptions"]


def test_more_jobs_than_one_call_may_bring_are_refused(database: Database) -> None:
    state = ServerState(
        rules=replace(ServerState().rules, jobs=JobLimits(max_jobs_per_call=5, max_descriptions_per_call=3))
    )
    assert refused(database, state, a_description(count=3), a_description(count=3)) == ["descriptions"]
    assert refused(database, state, *[a_description()] * 4) == ["descriptions"]
    assert len(submit(database, state, a_description(count=5)).job_ids) == 5


def test_trying_a_submission_changes_nothing(database: Database, state: ServerState) -> None:
    descriptions = [a_description(requirements={"Memory": 1}, attributes={"AcctGroup": "x"})]
    tried = database.read(
        lambda transaction: submit_jobs(transaction, state, ALICE, single_groups(descriptions), validate_only=True)
    )
    assert tried.job_ids == ()
    assert any("AcctGroup" in warning for warning in tried.warnings)
    assert database.read(lambda transaction: read_feed(transaction, ALICE, 0)).events == ()


def test_a_job_with_an_expression_and_a_section_waits_in_its_pool(database: Database, state: ServerState) -> None:
    both = a_description(requirements_expression="TARGET.Memory > 1", requirements={"Memory": 9})
    submitted = submit(database, state, both)
    (job,) = database.read(lambda transaction: get_jobs(transaction, ALICE, submitted.job_ids))
    assert job.state is JobState.WAITING
    assert job.pool_id != ""
    assert state.waiting.count(job.task_queue_id) == 1


def test_a_warning_that_is_not_about_all_jobs_says_which(database: Database, state: ServerState) -> None:
    own = a_description(attributes={"Owner": "root"})
    warnings = submit(database, state, a_description(), own, own).warnings
    assert [warning.rpartition(" (")[2] for warning in warnings] == ["descriptions[1] and 1 more)"]


def test_requirements_that_no_queue_offers_are_a_warning(database: Database, state: ServerState) -> None:
    (warning,) = submit(database, state, a_description(requirements={"Memory": 1})).warnings
    assert "no resource tree yet" in warning


def test_jobs_of_equal_requirements_share_a_pool(database: Database, state: ServerState) -> None:
    one = a_description(requirements={"Memory": 4000, "Tags": ["a", "b"]})
    same = a_description(requirements={"memory": "4000 MB", "tags": ["B", "A"]})
    other = a_description(requirements={"Memory": 4001})
    ids = submit(database, state, one, same, other, a_description()).job_ids
    pools = [job.pool_id for job in database.read(lambda transaction: get_jobs(transaction, ALICE, ids))]
    assert pools[0] == pools[1]
    assert len({*pools}) == 3
    assert pools[3] == ""


def test_the_group_is_one_of_the_callers(database: Database, state: ServerState) -> None:
    member = a_user("alice", "lhcb", "users", "prod")
    submitted = database.write(
        lambda transaction: submit_jobs(transaction, state, member, single_groups([a_description()]), "prod")
    )
    (job,) = database.read(lambda transaction: get_jobs(transaction, ALICE, submitted.job_ids))
    assert job.group == "prod"
    with pytest.raises(PermissionDeniedError, match="admins"):
        database.write(
            lambda transaction: submit_jobs(transaction, state, member, single_groups([a_description()]), "admins")
        )


def test_an_input_file_must_have_been_uploaded_by_the_same_owner(database: Database, state: ServerState) -> None:
    description = a_description(input_files=(InputFile("data", checksum=CHECKSUM),))
    database.write(
        lambda transaction: insert_stored(transaction.session, Holder("lhcb", "bob"), CHECKSUM, 5, transaction.now)
    )
    assert refused(database, state, description) == ["descriptions[0].input_files[0].checksum"]
    database.write(
        lambda transaction: insert_stored(transaction.session, Holder("lhcb", "alice"), CHECKSUM, 5, transaction.now)
    )
    (job_id,) = submit(database, state, description).job_ids
    stored = database.read(lambda transaction: get_description(transaction, ALICE, job_id))
    assert stored.input_files[0].size == 5


def test_what_was_submitted_can_be_read_again(database: Database, state: ServerState) -> None:
    description = a_description("run.sh", arguments="$(Process)", requirements={"Memory": "4 GB"}, count=2)
    ids = submit(database, state, description).job_ids
    assert database.read(lambda transaction: get_description(transaction, ALICE, ids[1])) == description


def test_an_array_of_100_000_is_one_call_of_a_few_seconds(database: Database, state: ServerState) -> None:
    ids = submit(database, state, a_description(count=100_000)).job_ids
    assert len(set(ids)) == 100_000
    last = database.read(lambda transaction: get_jobs(transaction, ALICE, [ids[-1]]))[0]
    assert last.process == 99_999
    assert state.waiting.count(last.task_queue_id) == 100_000
