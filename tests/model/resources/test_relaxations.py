"""Relaxations on random trees and jobs: the edited job is eligible where the relaxation says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pilotage.job_description import JobDescription
from pilotage.resources.eligibility import Ban, Eligible, active_bans, full_verdict, job_fit
from pilotage.resources.relaxations import QueuesOfJob, Relaxation, relaxations, relaxed
from pilotage.resources.requirements import job_needs, read_requirements
from pilotage.resources.tree import QueueId
from pilotage_server.core.resources.tree import ActiveTree
from support.trees import VOS, WORDS, a_tree, sections, trees

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LISTS = ("sites", "banned_sites", "platforms")


def as_read(section: dict[str, Any]) -> dict[str, Any]:
    """Return a section with lists as the readers make them: tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in section.items()}


_times = st.integers(1, 20).map(lambda seconds: timedelta(seconds=seconds))
descriptions = st.builds(
    JobDescription,
    st.just("/bin/true"),
    requirements=sections.map(as_read),
    sites=st.lists(st.sampled_from(("S1", "s2", "elsewhere")), max_size=2).map(tuple),
    banned_sites=st.lists(st.sampled_from(("s1", "elsewhere")), max_size=1).map(tuple),
    platforms=st.lists(WORDS, max_size=1).map(tuple),
    wall_time=st.none() | _times,
    cpu_time=st.none() | _times,
    request_cpus=st.none() | st.integers(1, 20),
    request_memory_mib=st.none() | st.integers(1, 20),
    request_gpus=st.none() | st.integers(0, 2),
)
bans = st.lists(
    st.sampled_from(
        (
            Ban("s1", "a", None, "is broken"),
            Ban("S2", None, None, "downtime", since=NOW + timedelta(seconds=8), downtime=NOW + timedelta(seconds=8)),
        )
    ),
    max_size=2,
)


def eligible_queues(description: JobDescription, vo: str, tree: ActiveTree, closed: list[Ban]) -> set[QueueId]:
    """Return the queues that matching would use: those of the pool's mapping, of which some do not fit the job."""
    requirements = read_requirements(description.requirements or {}, vo, tree.declarations)
    needs, view = job_needs(description), tree.view_for(vo)
    return {
        queue
        for queue in tree.mapper.queues_of(requirements)
        if isinstance(job_fit(needs, view[queue]), Eligible)
        and not active_bans(closed, queue, NOW)
        and isinstance(full_verdict(requirements, needs, view[queue], closed, NOW), Eligible)
    }


def found(description: JobDescription, vo: str, tree: ActiveTree, closed: list[Ban]) -> tuple[Relaxation, ...]:
    view = tree.view_for(vo)
    requirements = read_requirements(description.requirements or {}, vo, tree.declarations)
    verdicts = {
        id_: full_verdict(requirements, job_needs(description), each, closed, NOW) for id_, each in view.items()
    }
    return relaxations(description, vo, QueuesOfJob(view, tree.declarations, closed, NOW), verdicts)


@given(trees, descriptions, st.sampled_from(VOS), bans)
def test_job_that_is_edited_as_a_relaxation_says_gets_these_queues(
    data: dict[str, Any], description: JobDescription, vo: str, closed: list[Ban]
) -> None:
    tree = ActiveTree(1, a_tree(**data))
    before = eligible_queues(description, vo, tree, closed)
    relaxed_jobs = found(description, vo, tree, closed)
    for each in relaxed_jobs:
        after = eligible_queues(relaxed(description, each.field, each.value), vo, tree, closed)
        assert (len(after - before), len(before - after)) == (each.opens, each.closes), each
        assert each.opens > 0
        assert each.example in after
    for field in (*LISTS, *(f"requirements.{name}" for name in description.requirements or {})):
        dropped = eligible_queues(relaxed(description, field, None), vo, tree, closed)
        assert relaxed_jobs or not dropped - before, f"no relaxation, though one without {field} would be eligible"
