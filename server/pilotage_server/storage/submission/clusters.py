"""Clusters in the database: their extent, their jobs by state, and the next one of a listing.

The jobs of a cluster are a range of ids, so no index beside the primary key is needed, which each new job and each
transition would have to write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlmodel import Session

from pilotage_server.core.jobs.states import FINAL, JobState
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.tables import LIVE_JOB
from pilotage_server.storage.jobs import JobQuery
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


def newest_clusters(
    session: Session, wanted: JobQuery, before_id: int | None, within: range | None = None
) -> Iterator[ClusterJob | StoredWorkflow]:
    """Yield the newest wanted job of each cluster, the newest cluster first; `before_id` None = from the newest job.

    A workflow takes the place of its clusters. `within` = only the clusters of a workflow with these ids.

    Each step reads one row of an index, whatever the sizes of the clusters before, and one more for each workflow.
    """
    if wanted.nothing:
        return
    conditions, values = _conditions(wanted)
    if within is not None:
        conditions, values = [*conditions, "id >= ? AND id < ?"], [*values, within.start, within.stop]
    text = f"SELECT {_COLUMNS} FROM jobs WHERE {' AND '.join(conditions)}"  # noqa: S608 - names of ours
    last = before_id
    workflow: StoredWorkflow | None = None
    known_from = 0 if within is not None else _LARGEST_ID  # of the jobs from there on it is the newest workflow
    while True:
        below, bound = ("", ()) if last is None else (" AND id < ?", (last,))
        found = sql.rows(session, f"{text}{below} {_newest_first(wanted)} LIMIT 1", *values, *bound)
        if not found:
            return
        job = _cluster_job(found[0])
        if job.id < known_from:
            workflow = newest_workflow(session, job.id)
            known_from = workflow.ids.start if workflow is not None else 0
        whole = workflow if workflow is not None and job.id in workflow.ids else job
        yield whole
        last = whole.ids.start


def _conditions(wanted: JobQuery) -> tuple[list[str], list[object]]:
    columns = {"owner": wanted.owner, "vo": wanted.vo, "pool_id": wanted.pool or None}
    given = {column: value for column, value in columns.items() if value is not None}
    conditions = [_ORIGINAL, *(f"{column} = ?" for column in given)]
    if not wanted.states:
        return conditions, [*given.values()]
    if FINAL.isdisjoint(wanted.states):
        conditions.append(LIVE_JOB)  # for its index
    return [*conditions, "state = ANY(?)"], [*given.values(), _values(wanted.states)]


def _newest_first(wanted: JobQuery) -> str:
    """Return the order; it names the equal columns of an index before the id, so that planners use that index."""
    is_live = wanted.states and FINAL.isdisjoint(wanted.states)
    if wanted.owner is None:
        return "ORDER BY id DESC"
    return "ORDER BY vo DESC, owner DESC, id DESC" if is_live and wanted.vo else "ORDER BY owner DESC, id DESC"


_COUNT = "SELECT state, count(*) FROM jobs WHERE id >= ? AND id < ? GROUP BY state"


def count_by_state(session: Session, ids: range) -> dict[JobState, int]:
    """Return the numbers of jobs by state, of the ids of a cluster."""
    return {JobState(state): count for state, count in sql.rows(session, _COUNT, ids.start, ids.stop)}


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


def _cluster_job(row: Sequence[Any]) -> ClusterJob:
    id_, cluster, jobs, owner, vo, group, name, submitted = row
    return ClusterJob(id_, range(cluster, cluster + jobs), owner, vo, group, name, sql.utc_time(submitted))
