"""Descriptions that are alike are dealt with together; what comes of it is what comes of each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from pilotage.errors import InvalidInputError
from pilotage.job_description import JobDescription, JobPolicy
from pilotage.jobs.wire import description_to_wire
from pilotage_server.core.jobs.descriptions import DescriptionGroup, single_groups
from pilotage_server.core.rules import Rules
from pilotage_server.core.submission.submit_policy import SubmitPolicy, SubmitTransform
from pilotage_server.operations.jobs.queries import get_description, get_events, get_jobs
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.server_state import ServerState
from pilotage_server.rpc.jobs.wire import submission_from_wire
from pilotage_server.storage.database.engine import Database
from support.jobs import a_description, a_user

ALICE = a_user("alice")
KINDS = (
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

submissions = st.lists(
    st.builds(
        lambda kind, arguments, name: replace(kind, arguments=arguments, name=name),
        st.sampled_from(KINDS),
        st.sampled_from(("", "1", "2", "--seed 3", '"quoted"', "'open")),
        st.sampled_from(("", "sim", "sim-$(Process)", "held")),
    ),
    min_size=1,
    max_size=6,
)


@dataclass(frozen=True)
class Outcome:
    """What became of a submission, but for its ids and times."""

    faults: tuple[Any, ...] = ()
    warnings: tuple[str, ...] = ()
    jobs: tuple[Any, ...] = ()


def outcome(database: Database, state: ServerState, descriptions: Sequence[DescriptionGroup]) -> Outcome:
    """Submit and return what became of it."""
    try:
        done = database.write(lambda transaction: submit_jobs(transaction, state, ALICE, descriptions))
    except InvalidInputError as error:
        return Outcome(faults=error.violations)
    assert list(done.job_ids) == sorted(done.job_ids)
    jobs = tuple(_told(database, job_id, done.job_ids[0]) for job_id in done.job_ids)
    return Outcome(warnings=done.warnings, jobs=jobs)


def _told(database: Database, job_id: int, first: int) -> tuple[Any, ...]:
    (job,) = database.read(lambda transaction: get_jobs(transaction, ALICE, [job_id]))
    events = database.read(lambda transaction: get_events(transaction, ALICE, job_id))
    return (
        job._replace(id=job.id - first, cluster=job.cluster - first, template_id=0),
        database.read(lambda transaction: get_description(transaction, ALICE, job_id)),
        [event._replace(position=0, job_id=0) for event in events],
    )


def together(descriptions: Sequence[JobDescription]) -> tuple[DescriptionGroup, ...]:
    """Return the descriptions as they come over the wire."""
    return submission_from_wire([description_to_wire(each) for each in descriptions])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(submissions, st.sampled_from((Rules(), READS_ARGUMENTS)))
def test_together_is_as_one_by_one(database: Database, submission: list[JobDescription], rules: Rules) -> None:
    state = ServerState(rules)
    apart = outcome(database, state, single_groups(submission))
    assert outcome(database, state, together(submission)) == apart


def test_descriptions_that_are_the_same_are_kept_once(database: Database) -> None:
    job = a_description(arguments="1")
    jobs = database.write(
        lambda transaction: submit_jobs(transaction, ServerState(), ALICE, together([job, job, replace(job, name="b")]))
    )
    templates = database.read(
        lambda transaction: transaction.session.execute(text("SELECT jobs FROM templates ORDER BY id")).all()
    )
    assert len(jobs.job_ids) == 3
    assert [each.jobs for each in templates] == [2, 1]
