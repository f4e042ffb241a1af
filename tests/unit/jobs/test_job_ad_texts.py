"""Ads of many jobs as text say what each job's own ad says."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from pilotage.classads.text import ad_text
from pilotage.job_description import JobDescription, JobPolicy
from pilotage.resources.tree import QueueId
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.queueing.job_ads import JobAdTexts, full_job_ad
from support.jobs import a_job
from support.virtual_clock import START

VALUES = st.sampled_from(["plain", "$(Process)", 'it"s\n', 5, 0.5, True, ("a", "$(Process)"), ()])
NAMES = st.sampled_from(["Colour", "colour", "RouteName", "NumJobStarts", "Owner", "with space", "Cmd"])

descriptions = st.builds(
    JobDescription,
    executable=st.sampled_from(["/bin/true", "run.$(Process)"]),
    arguments=st.sampled_from(["", "1 2", "--seed $(Process)"]),
    attributes=st.dictionaries(NAMES, VALUES, max_size=3),
    requirements_expression=st.sampled_from(["", "TARGET.Memory > 5 // enough"]),
    policy=st.sampled_from([JobPolicy(), JobPolicy(periodic_remove="NumJobStarts > 3")]),
    count=st.sampled_from([None, 3]),
)

records = st.builds(
    a_job,
    template_id=st.integers(0, 2),
    id=st.integers(1, 9),
    process=st.integers(0, 2),
    state=st.sampled_from([JobState.WAITING, JobState.MATCHED, JobState.HELD, JobState.DONE]),
    attempt=st.integers(0, 2),
    pilot_stamp=st.sampled_from(["", "router:main"]),
    queue=st.sampled_from([None, QueueId("S", "c", "q")]),
    node=st.sampled_from(["", "n1"]),
    slot=st.sampled_from(["", "east"]),
    exit_code=st.sampled_from([None, 3]),
)


@given(st.tuples(descriptions, descriptions, descriptions), st.lists(records, min_size=1, max_size=6))
def test_every_ad_is_that_of_its_job_alone(templates: Sequence[JobDescription], jobs: Sequence[JobRecord]) -> None:
    texts, now = JobAdTexts(most=2), START + timedelta(minutes=1)
    for job in jobs:
        description = templates[job.template_id]
        assert texts.text(job, description, now) == ad_text(full_job_ad(job, description, now))
