"""Submission on every database: atomicity, arrays, groups of descriptions, order of ids and events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from pilotage.errors import InvalidInputError, InvalidJobError, PermissionDeniedError
from pilotage.job_description import InputFile, JobDescription, JobPolicy
from pilotage.jobs.wire import description_to_wire
from pilotage.values.jobs import SubmittedJobs
from pilotage_server.core.identity import Holder, Identity
from pilotage_server.core.jobs.descriptions import DescriptionGroup, single_groups
from pilotage_server.core.jobs.files import JobLimits
from pilotage_server.core.jobs.record import FeedEvent
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.core.rules import Rules
from pilotage_server.core.submission.submit_policy import SubmitPolicy, SubmitTransform
from pilotage_server.operations.dry_run import try_submission
from pilotage_server.operations.jobs.queries import get_description, get_events, get_jobs, read_feed
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.server_state import ServerState
from pilotage_server.operations.startup.loading import load_state
from pilotage_server.rpc.jobs.wire import submission_from_wire
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.submission.templates import insert_stored
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


def test_job_waits_under_the_name_of_its_submitter(database: Database, state: ServerState) -> None:
    (job_id,) = submit(database, state, a_description(name="sim", attributes={"Owner": "root"})).job_ids
    (job,) = database.read(lambda transaction: get_jobs(transaction, ALICE, [job_id]))
    assert (job.owner, job.vo, job.group, job.name) == ("alice", "lhcb", "users", "sim")
    assert (job.state, job.cluster, job.process, job.submitted) == (JobState.WAITING, job_id, 0, START)
    assert state.waiting.count(job.task_queue_id) == 1


def test_array_has_consecutive_jobs_and_one_template(database: Database, state: ServerState) -> None:
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


def test_batch_keeps_order_of_jobs_and_arrays(database: Database, state: ServerState) -> None:
    batch = [a_description(name="a"), a_description(name="b", count=3), a_description(name="c")]
    ids = submit(database, state, *batch).job_ids
    jobs = database.read(lambda transaction: get_jobs(transaction, ALICE, ids))
    assert [job.name for job in jobs] == ["a", "b", "b", "b", "c"]
    assert [job.process for job in jobs] == [0, 0, 1, 2, 0]
    assert [job.cluster for job in jobs] == [ids[0], ids[1], ids[1], ids[1], ids[4]]


def test_each_new_job_has_one_event_from_received(database: Database, state: ServerState) -> None:
    ids = submit(database, state, a_description(), a_description(count=3), a_description(hold=True)).job_ids
    page = database.read(lambda transaction: read_feed(transaction, ALICE, 0))
    assert sorted(event.job_id for event in page.events) == sorted(ids)
    assert {event.from_state for event in page.events} == {JobState.RECEIVED}
    assert {event.actor for event in page.events} == {"alice"}
    assert {event.time for event in page.events} == {START}
    held = database.read(lambda transaction: get_events(transaction, ALICE, ids[-1]))
    assert [(event.cause, event.to_state) for event in held] == [(JobCause.HELD, JobState.HELD)]
    assert page.at_end


def test_listeners_get_events_after_commit(database: Database, state: ServerState) -> None:
    published: list[FeedEvent] = []
    committed: list[FeedEvent] = []

    def record(events: Sequence[FeedEvent]) -> None:
        published.extend(events)
        committed.extend(database.read(lambda transaction: read_feed(transaction, ALICE, 0)).events)

    state.event_listeners.append(record)
    ids = submit(database, state, a_description(), a_description(count=3)).job_ids
    assert {(event.position, event.job_id) for event in published} <= {
        (event.position, event.job_id) for event in committed
    }
    assert {event.job_id for event in published} == {ids[0], ids[1]}


def test_one_fault_refuses_batch_and_all_faults_are_listed(database: Database, state: ServerState) -> None:
    bad = a_description(requirements={"Memory": -1, "Disk": -1})
    assert refused(database, state, a_description(), bad, a_description("")) == [
        "descriptions[1].requirements.Memory",
        "descriptions[1].requirements.Disk",
        "descriptions[2].executable",
    ]
    assert database.read(lambda transaction: read_feed(transaction, an_operator(), 0)).events == ()


def test_empty_batch_is_refused(database: Database, state: ServerState) -> None:
    assert refused(database, state) == ["descriptions"]


def test_too_many_jobs_in_one_call_are_refused(database: Database) -> None:
    state = ServerState(
        rules=replace(ServerState().rules, jobs=JobLimits(max_jobs_per_call=5, max_descriptions_per_call=3))
    )
    assert refused(database, state, a_description(count=3), a_description(count=3)) == ["descriptions"]
    assert refused(database, state, *[a_description()] * 4) == ["descriptions"]
    assert len(submit(database, state, a_description(count=5)).job_ids) == 5


def test_dry_run_of_a_submission_changes_nothing(database: Database, state: ServerState) -> None:
    descriptions = [a_description(requirements={"Memory": 1}, attributes={"AcctGroup": "x"})]
    tried = database.read(lambda transaction: try_submission(transaction, state, ALICE, single_groups(descriptions)))
    assert [outlook.jobs for outlook in tried.outlooks] == [1]
    assert any("AcctGroup" in warning for warning in tried.warnings)
    assert database.read(lambda transaction: read_feed(transaction, ALICE, 0)).events == ()


def test_job_with_expression_and_section_waits_in_its_pool(database: Database, state: ServerState) -> None:
    both = a_description(requirements_expression="TARGET.Memory > 1", requirements={"Memory": 9})
    submitted = submit(database, state, both)
    (job,) = database.read(lambda transaction: get_jobs(transaction, ALICE, submitted.job_ids))
    assert job.state is JobState.WAITING
    assert job.pool_id != ""
    assert state.waiting.count(job.task_queue_id) == 1


def test_warning_about_some_jobs_names_them(database: Database, state: ServerState) -> None:
    own = a_description(attributes={"Owner": "root"})
    warnings = submit(database, state, a_description(), own, own).warnings
    assert [warning.rpartition(" (")[2] for warning in warnings] == ["descriptions[1] and 1 more)"]


def test_unsatisfied_requirements_cause_a_warning(database: Database, state: ServerState) -> None:
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


def test_group_must_be_one_of_the_callers(database: Database, state: ServerState) -> None:
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


def test_input_file_must_be_uploaded_by_the_same_owner(database: Database, state: ServerState) -> None:
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


def test_submitted_description_is_read_back_unchanged(database: Database, state: ServerState) -> None:
    description = a_description("run.sh", arguments="$(Process)", requirements={"Memory": "4 GB"}, count=2)
    ids = submit(database, state, description).job_ids
    assert database.read(lambda transaction: get_description(transaction, ALICE, ids[1])) == description


def test_submit_transforms_read_keywords_and_pool(database: Database) -> None:
    expression = 'strcat(Site[0], " ", CPUTime, " ", JobRequirements.Memory, " ", SubmitPool)'
    rules = Rules(submission=SubmitPolicy((SubmitTransform("Wanted", expression),)))
    state = database.read(lambda transaction: load_state(transaction, rules))
    description = a_description(sites=("CERN",), cpu_time=timedelta(seconds=60), requirements={"Memory": 4000})
    (job_id,) = submit(database, state, description).job_ids

    (job,) = database.read(lambda transaction: get_jobs(transaction, ALICE, [job_id]))
    stored = database.read(lambda transaction: get_description(transaction, ALICE, job_id))
    assert stored.attributes == {"Wanted": f"CERN 60 4000 {job.pool_id}"}


DESCRIPTIONS = (
    a_description(),
    a_description(requirements={"Memory": 2000}, priority=3),
    a_description(count=3, stdout="out.$(Process)"),
    a_description(hold=True),
    a_description(requirements_expression="TARGET.Memory > 1 && TARGET.NoSlotHasThis"),
    a_description(requirements_expression='MY.Arguments != "1"'),
    a_description(rank="eval(JobBatchName)"),
    a_description(policy=JobPolicy(periodic_hold='JobBatchName == "held"')),
    a_description(attributes={"Owner": "root"}),
    a_description(lease=timedelta(seconds=1)),
)
READS_ARGUMENTS = Rules(submission=SubmitPolicy((SubmitTransform("Wished", "strcat(MY.Arguments, MY.JobBatchName)"),)))

description_lists = st.lists(
    st.builds(
        lambda description, arguments, name: replace(description, arguments=arguments, name=name),
        st.sampled_from(DESCRIPTIONS),
        st.sampled_from(("", "1", "2", "--seed 3", '"quoted"', "'open")),
        st.sampled_from(("", "sim", "sim-$(Process)", "held")),
    ),
    min_size=1,
    max_size=6,
)


@dataclass(frozen=True)
class SubmissionResult:
    """The result of a submission without ids and times."""

    faults: tuple[Any, ...] = ()
    warnings: tuple[str, ...] = ()
    jobs: tuple[Any, ...] = ()


def submission_result(
    database: Database, state: ServerState, descriptions: Sequence[DescriptionGroup]
) -> SubmissionResult:
    """Submit and return the result."""
    try:
        done = database.write(lambda transaction: submit_jobs(transaction, state, ALICE, descriptions))
    except InvalidInputError as error:
        return SubmissionResult(faults=error.violations)
    assert list(done.job_ids) == sorted(done.job_ids)
    jobs = tuple(stored_job(database, job_id, done.job_ids[0]) for job_id in done.job_ids)
    return SubmissionResult(warnings=done.warnings, jobs=jobs)


def stored_job(database: Database, job_id: int, first: int) -> tuple[Any, ...]:
    (job,) = database.read(lambda transaction: get_jobs(transaction, ALICE, [job_id]))
    events = database.read(lambda transaction: get_events(transaction, ALICE, job_id))
    return (
        job._replace(id=job.id - first, cluster=job.cluster - first, template_id=0),
        database.read(lambda transaction: get_description(transaction, ALICE, job_id)),
        [event._replace(position=0, job_id=0) for event in events],
    )


def grouped(descriptions: Sequence[JobDescription]) -> tuple[DescriptionGroup, ...]:
    """Return the descriptions as a call groups them."""
    return submission_from_wire([description_to_wire(description) for description in descriptions])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(description_lists, st.sampled_from((Rules(), READS_ARGUMENTS)))
def test_grouped_submission_has_outcome_of_single_ones(
    database: Database, submission: list[JobDescription], rules: Rules
) -> None:
    state = ServerState(rules)
    singly = submission_result(database, state, single_groups(submission))
    assert submission_result(database, state, grouped(submission)) == singly


def test_equal_descriptions_share_a_template(database: Database) -> None:
    job = a_description(arguments="1")
    jobs = database.write(
        lambda transaction: submit_jobs(transaction, ServerState(), ALICE, grouped([job, job, replace(job, name="b")]))
    )
    templates = database.read(
        lambda transaction: transaction.session.execute(text("SELECT jobs FROM templates ORDER BY id")).all()
    )
    assert len(jobs.job_ids) == 3
    assert [template.jobs for template in templates] == [2, 1]
