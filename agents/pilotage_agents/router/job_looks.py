"""Looks at waiting jobs on the server, and judges which routes each may take."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import structlog

from pilotage.classads import InvalidClassAdError
from pilotage_agents.core.routes.backlog import Backlog
from pilotage_agents.core.routes.route_judge import Judge
from pilotage_agents.core.routes.route_table import RouteTable
from pilotage_agents.router.route_edges import RoutableJob, RouterLink

log = structlog.get_logger()

MOST_AT_ONCE = 500
"""So many jobs are looked at in a call: their ads are large, and none is kept for long."""


class JobLooks:
    """Judges the jobs of a backlog by a table, as many as are needed and no more."""

    def __init__(self, link: RouterLink, table: RouteTable) -> None:
        self.table = table
        self._link = link
        self._judge = Judge(table)

    @property
    def look_at_time(self) -> bool:
        """Whether a job may fulfil something else later, though nothing has changed."""
        return self._judge.looks_at_time

    async def judge_next(self, backlog: Backlog) -> dict[int, RoutableJob]:
        """Judge the first jobs of the backlog that are not judged; returns those that may take a route, by id."""
        job_ids = backlog.unjudged(MOST_AT_ONCE)
        jobs = await self.look_at(job_ids, backlog)
        fitting = {}
        for job_id in job_ids:
            if (job := jobs.get(job_id)) is None:
                continue
            routes = self._routes_of(job)
            backlog.judged(job_id, routes)
            if routes:
                fitting[job_id] = job
        return fitting

    async def look_at(self, job_ids: Sequence[int], backlog: Backlog) -> dict[int, RoutableJob]:
        """Return those of the jobs that wait, by id; the others are dropped: an event tells when they wait again."""
        found = {job.job_id: job for job in await self._link.look_at(job_ids)} if job_ids else {}
        waiting = {job_id: job for job_id, job in found.items() if job.is_waiting}
        _drop_all(backlog, set(job_ids) - waiting.keys())
        return waiting

    def _routes_of(self, job: RoutableJob) -> tuple[str, ...]:
        try:
            return tuple(self.table.routes[place].name for place in self._judge.fulfilled(job.ad))
        except InvalidClassAdError as error:
            log.warning("job cannot be judged", job_id=job.job_id, reason=str(error))
            return ()


def _drop_all(backlog: Backlog, job_ids: Collection[int]) -> None:
    for job_id in job_ids:
        backlog.drop(job_id)
