"""The filter of the list of jobs: from the address, to calls, and back to an address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlencode

from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage_server.web.formats import moment
from pilotage_server.web.pages import Visit
from pilotage_server.web.sessions import Form

STATES = tuple(name.removeprefix("JOB_STATE_") for name in jobs_pb2.JobState.keys()[1:])
FINAL = ("DONE", "FAILED", "REMOVED")
LIVE = tuple(state for state in STATES if state not in FINAL)

PERIODS = {
    "1h": timedelta(hours=1),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
"""Ages of jobs that the filter offers."""

PAGE = 100
"""Jobs on a page."""

LOOKED_AT = 1000
"""Jobs that one call looks at for those with a name, a site or an age."""

MOST_CALLS = 3
"""Calls of a page that looks for such jobs; the visitor may let it look further."""


@dataclass(frozen=True, slots=True)
class PageFilter:
    """A filter of jobs; an empty field = any. `owner` "" = the visitor, for whom that is all jobs that it may see.

    `name` is a pattern with * and ?, `since` a key of `PERIODS`: the jobs were submitted within it.
    """

    states: tuple[str, ...] = ()
    owner: str = ""
    name: str = ""
    site: str = ""
    since: str = ""
    pool: str = ""

    @property
    def address(self) -> str:
        """The query of the page with this filter."""
        return urlencode([*(("state", state) for state in self.states), *self.fields])

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The fields that are set, without the states."""
        pairs = (("owner", self.owner), ("name", self.name), ("site", self.site), ("since", self.since))
        return [(name, text) for name, text in (*pairs, ("pool", self.pool)) if text]

    @property
    def is_condition(self) -> bool:
        """Whether all jobs with it can be changed at once."""
        return not (self.name or self.since or self.pool)

    @property
    def looks(self) -> bool:
        """Whether jobs have to be looked at one by one."""
        return bool(self.name or self.site or self.since)

    def accepts(self, job: Any, now: datetime) -> bool:
        """Return whether a job has the name, the site and the age."""
        if self.name and not fnmatchcase(job.name.casefold(), self.name.casefold()):
            return False
        if self.site and job.queue.site.casefold() != self.site.casefold():
            return False
        submitted = moment(job.submitted)
        return not self.since or (submitted is not None and submitted >= now - PERIODS[self.since])


def filter_of(visit: Visit) -> PageFilter:
    """Return the filter in the address; unknown states and ages are left out."""
    states = tuple(state for state in visit.request.query_params.getlist("state") if state in STATES)
    return _checked(states, visit.query)


def filter_of_form(form: Form) -> PageFilter:
    """Return the filter in the fields of a form."""
    return _checked(tuple(state for state in form.all("state") if state in STATES), lambda name: form.one(name).strip())


def _checked(states: tuple[str, ...], field: Any) -> PageFilter:
    since = field("since")
    return PageFilter(
        states, field("owner"), field("name"), field("site"), since if since in PERIODS else "", field("pool")
    )


@dataclass(frozen=True, slots=True)
class ListedJobs:
    """Jobs of a page; `next_token` "" = there are no more; `looked_at` = how many were looked at, 0 = only these."""

    jobs: Sequence[Any]
    next_token: str
    looked_at: int = 0


async def find_page(visit: Visit, wanted: PageFilter, token: str) -> ListedJobs:
    """Return the next jobs with this filter, the newest first."""
    size = LOOKED_AT if wanted.looks else PAGE
    request = job_service_pb2.ListJobsRequest(
        page_size=size,
        page_token=token,
        states=[jobs_pb2.JobState.Value(f"JOB_STATE_{state}") for state in wanted.states],
        owner=wanted.owner or "*",
        pool=wanted.pool,
        newest_first=True,
    )
    found: list[Any] = []
    now, looked_at = visit.clock(), 0
    for _ in range(MOST_CALLS if wanted.looks else 1):
        page = await visit.calls("JobService/ListJobs", request)
        looked_at += len(page.jobs)
        found += (job for job in page.jobs if wanted.accepts(job, now))
        request.page_token = page.next_page_token
        if not page.next_page_token or len(found) >= PAGE:
            break
    return ListedJobs(found, request.page_token, looked_at if wanted.looks else 0)


def condition_of(wanted: PageFilter, states: Sequence[str]) -> job_service_pb2.JobCondition:
    """Return the condition that jobs in some of these states must meet, for a filter with `is_condition`."""
    chosen = [state for state in states if not wanted.states or state in wanted.states]
    return job_service_pb2.JobCondition(
        states=[jobs_pb2.JobState.Value(f"JOB_STATE_{state}") for state in chosen],
        site=wanted.site,
        owner=wanted.owner,
    )
