"""The filter of the list of jobs: from the address, to a condition of calls, and back to an address."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from pilotage.rpc.wire import time_to_wire
from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage_server.web.pages import Visit
from pilotage_server.web.sessions import Form, PageError, checked_choice

STATES = tuple(name.removeprefix("JOB_STATE_") for name in jobs_pb2.JobState.keys()[1:])
FINAL = ("DONE", "FAILED", "REMOVED")
LIVE = tuple(state for state in STATES if state not in FINAL)

PERIODS = {
    "1h": timedelta(hours=1),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
"""Ages of states that the filter offers."""

PAGE = 100
"""Jobs on a page."""

LOOKING_S = 0.15
"""How long a page looks for rare jobs, call by call; then the visitor may let it look further."""

_TEXTS = ("owner", "name", "site", "pool", "where", "ids")
_IDS = re.compile(r"([1-9][0-9]{0,17})-([1-9][0-9]{0,17})", re.ASCII)


@dataclass(frozen=True, slots=True)
class PageFilter:
    """A filter of jobs; an empty field = any.

    `name` is a pattern with * and ?, `where` a ClassAd expression, and `since` a key of `PERIODS`: the present state
    began within it. `ids` are the first and the last id, such as 12-40.
    """

    states: tuple[str, ...] = ()
    owner: str = ""
    name: str = ""
    site: str = ""
    pool: str = ""
    where: str = ""
    ids: str = ""
    since: str = ""

    @property
    def address(self) -> str:
        """The query of the page with this filter."""
        return urlencode([*(("state", state) for state in self.states), *self.fields])

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The fields that are set, without the states."""
        return [(name, text) for name in (*_TEXTS, "since") if (text := getattr(self, name))]

    def condition(self, now: datetime, states: Sequence[str] = ()) -> job_service_pb2.JobCondition:
        """Return the condition of calls; `states` = only jobs in these states too."""
        chosen = [state for state in states or self.states if not self.states or state in self.states]
        return job_service_pb2.JobCondition(
            states=[jobs_pb2.JobState.Value(f"JOB_STATE_{state}") for state in chosen],
            owner=self.owner or "*",
            vo="*",
            name=self.name,
            site=self.site,
            pool=self.pool,
            where=self.where,
            runs=_runs(self.ids),
            since=time_to_wire(now - PERIODS[self.since]) if self.since else None,
        )


def _runs(ids: str) -> list[job_service_pb2.IdRun]:
    """Return the run of ids, none if the text has none."""
    match = _IDS.fullmatch(ids)
    first, last = map(int, match.groups()) if match else (1, 0)
    return [job_service_pb2.IdRun(first=first, count=last - first + 1)] if first <= last else []


def jobs_address(of: Any, state: str = "") -> str:
    """Return the address of the list of the jobs of a step or a workflow, or only of those in a state."""
    first = of.first if isinstance(of, job_service_pb2.WorkflowStep) else of.id
    return f"/jobs?{PageFilter((state,) if state else (), ids=f'{first}-{first + of.jobs - 1}').address}"


def filter_of(visit: Visit) -> PageFilter:
    """Return the filter in the address; raises PageError, since a filter that is left out selects other jobs."""
    return _checked(visit.request.query_params.getlist("state"), visit.query)


def filter_of_form(form: Form) -> PageFilter:
    """Return the filter in the fields of a form; raises PageError."""
    return _checked(form.all("state"), lambda name: form.one(name).strip())


def _checked(states: Sequence[str], field: Callable[[str], str]) -> PageFilter:
    known = tuple(checked_choice("state", state, STATES) for state in states if state)
    texts = {name: field(name) for name in _TEXTS}
    if texts["ids"] and not _runs(texts["ids"]):
        raise PageError(HTTPStatus.BAD_REQUEST, "ids are the first and the last id, such as 12-40")
    return PageFilter(known, **texts, since=checked_choice("since", field("since"), PERIODS))


@dataclass(frozen=True, slots=True)
class ListedJobs:
    """Jobs of a page; `next_token` "" = there are no more. A page that is not full has looked at many jobs."""

    jobs: Sequence[Any]
    next_token: str

    @property
    def is_full(self) -> bool:
        """Whether the page has as many jobs as it may have."""
        return len(self.jobs) >= PAGE


async def find_page(visit: Visit, wanted: PageFilter, token: str) -> ListedJobs:
    """Return the next jobs with this filter, the newest first."""
    request = job_service_pb2.ListJobsRequest(
        page_size=PAGE, page_token=token, condition=wanted.condition(visit.clock()), newest_first=True
    )
    found: list[Any] = []
    until_s = visit.calls.clock() + LOOKING_S
    while True:
        request.page_size = PAGE - len(found)
        page = await visit.calls("JobService/ListJobs", request)
        found += page.jobs
        request.page_token = page.next_page_token
        if not page.next_page_token or len(found) >= PAGE or visit.calls.clock() >= until_s:
            return ListedJobs(found, page.next_page_token)
