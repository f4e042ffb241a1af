"""Clusters in the database: their extent, their jobs by state, and the next one of a listing.

The jobs of a cluster are a range of ids, so no index beside the primary key is needed, which each new job and each
transition would have to write.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlmodel import Session

from pilotage_server.core.jobs.states import JobState
from pilotage_server.storage.database import sql
from pilotage_server.storage.queries.selection import FoundJob, JobFinder
from pilotage_server.storage.submission.workflows import StoredWorkflow, newest_workflow


class ClusterJob(NamedTuple):
    """A job as one of its cluster, which has the ids `ids`; the name has its macros."""

    id: int
    ids: range
    owner: str
    vo: str
    group: str
    name: str
    submitted: datetime


_LARGEST_ID = 2**63 - 1
_ORIGINAL = "race IN (0, id)"
_COLUMNS = 'id, cluster, cluster_jobs, owner, vo, "group", name, submitted'
_FROM = f"SELECT {_COLUMNS} FROM jobs WHERE id >= ? AND {_ORIGINAL} ORDER BY id LIMIT 1"  # noqa: S608 - names of ours


def load_first_job(session: Session, job_id: int) -> ClusterJob | None:
    """Return the job with this id, else the next one: the first that is left of a cluster with this id."""
    return next(map(_cluster_job, sql.rows(session, _FROM, job_id)), None)


class NewestClusters(NamedTuple):
    """Clusters by their newest wanted jobs, and workflows; the next page continues before `position`, 0 = no more."""

    clusters: Sequence[ClusterJob | StoredWorkflow]
    position: int


def newest_clusters(
    session: Session, finder: JobFinder, before_id: int, most: int, most_jobs: int, *, with_workflows: bool
) -> NewestClusters:
    """Return the clusters of the jobs that a finder finds from the newest on, behind `before_id`; 0 = from the newest.

    A page ends with `most` clusters, or once they have `most_jobs` jobs. With workflows, each takes the place of its
    clusters. Each step reads one row of an index, whatever the sizes of the clusters before, and one more for each
    workflow.
    """
    found: list[ClusterJob | StoredWorkflow] = []
    jobs = 0
    position = before_id
    workflow: StoredWorkflow | None = None
    known_from = _LARGEST_ID if with_workflows else 0  # of the jobs from there on it is the newest workflow
    while len(found) < most and jobs < most_jobs:
        page = finder.next(position, 1)
        if not page.jobs:
            return NewestClusters(found, page.position)
        job = _cluster_of(page.jobs[0])
        if job.id < known_from:
            workflow = newest_workflow(session, job.id)
            known_from = workflow.ids.start if workflow is not None else 0
        whole = workflow if workflow is not None and job.id in workflow.ids else job
        found.append(whole)
        jobs += len(whole.ids)
        position = whole.ids.start
        if position <= 1:
            return NewestClusters(found, 0)
    return NewestClusters(found, position)


_COUNT = "SELECT state, count(*) FROM jobs WHERE id >= ? AND id < ? GROUP BY state"


def count_by_state(session: Session, ids: range) -> dict[JobState, int]:
    """Return the numbers of jobs by state, of the ids of a cluster."""
    return {JobState(state): count for state, count in sql.rows(session, _COUNT, ids.start, ids.stop)}


_COUNT_EACH_SQLITE = """
    SELECT each.key, state, count(*) FROM json_each(?) AS each CROSS JOIN jobs
    ON jobs.id >= json_extract(each.value, '$[0]') AND jobs.id < json_extract(each.value, '$[1]')
    GROUP BY each.key, state
"""
_COUNT_EACH_POSTGRESQL = """
    SELECT nth - 1, state, count(*) FROM unnest(?::bigint[], ?::bigint[]) WITH ORDINALITY AS each (start, stop, nth)
    JOIN jobs ON jobs.id >= each.start AND jobs.id < each.stop
    GROUP BY nth, state
"""


def count_each_by_state(session: Session, ranges: Sequence[range]) -> list[dict[JobState, int]]:
    """Return the numbers of jobs by state, of each of many ranges of ids."""
    counts: list[dict[JobState, int]] = [{} for _ in ranges]
    if sql.is_sqlite(session):
        found = sql.rows(session, _COUNT_EACH_SQLITE, [[ids.start, ids.stop] for ids in ranges])
    else:
        starts, stops = [ids.start for ids in ranges], [ids.stop for ids in ranges]
        found = sql.rows(session, _COUNT_EACH_POSTGRESQL, starts, stops)
    for place, state, count in found:
        counts[place][JobState(state)] = count
    return counts


_RUNS = """
    SELECT min(id), count(*) FROM (
        SELECT id, id - row_number() OVER (ORDER BY id) AS gaps FROM jobs WHERE id >= ? AND id < ? AND state = ANY(?)
    ) AS runs GROUP BY gaps ORDER BY 1
"""


def find_runs(
    session: Session, ids: range, counts: Mapping[JobState, int], states: Collection[JobState]
) -> tuple[range, ...]:
    """Return the runs of those ids of a cluster whose jobs are in one of the states; `counts` are those of the ids."""
    wanted = sum(count for state, count in counts.items() if state in states)
    if wanted in (0, len(ids)):
        return (ids,) if wanted else ()  # the common case, which needs no sorting
    runs = sql.rows(session, _RUNS, ids.start, ids.stop, _values(states))
    return tuple(range(first, first + count) for first, count in runs)


def _values(states: Collection[JobState]) -> list[str]:
    return sorted(state.value for state in states)


def _cluster_of(job: FoundJob) -> ClusterJob:
    submitted = sql.utc_time(job.submitted)
    return ClusterJob(job.id, job.cluster_ids, job.owner, job.vo, job.group, job.name, submitted)


def _cluster_job(row: Sequence[Any]) -> ClusterJob:
    id_, cluster, jobs, owner, vo, group, name, submitted = row
    return ClusterJob(id_, range(cluster, cluster + jobs), owner, vo, group, name, sql.utc_time(submitted))
