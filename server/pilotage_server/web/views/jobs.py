"""The list of jobs, and changes of several jobs at a time: a page says how many, and a second form makes the change."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from pilotage.v1 import job_service_pb2
from pilotage_server.web.calls import CallFailedError
from pilotage_server.web.formats import state_name
from pilotage_server.web.pages import PageMaker, PageView, Shown, Visit
from pilotage_server.web.sessions import Form, PageError, own_path, read_form
from pilotage_server.web.views.job_filters import (
    FINAL,
    LIVE,
    PERIODS,
    STATES,
    ListedJobs,
    PageFilter,
    filter_of,
    filter_of_form,
    find_page,
)

MOST_CHANGED = 50_000
"""Jobs that one form changes at most; commands change more."""

MOST_SEARCHES = 50
"""Calls that look for all jobs with a filter; each has bounded work."""

CHANGED_AT_ONCE = 5_000
"""Jobs of one call: others need not wait for long."""

SHOWN_REFUSALS = 20


@dataclass(frozen=True, slots=True)
class OfferedChange:
    """A change that forms offer: the verb, its effect for people, and the states of the jobs that it concerns."""

    verb: str
    effect: str
    states: Sequence[str]

    @property
    def number(self) -> Any:
        """The change in the protocol."""
        return job_service_pb2.JobChange.Value(f"JOB_CHANGE_{self.verb.upper()}")


CHANGES = {
    each.verb: each
    for each in (
        OfferedChange(
            "hold",
            "Payloads that run are killed, and the jobs are kept.",
            [state for state in LIVE if state != "HELD"],
        ),
        OfferedChange("release", "The jobs wait again.", ["HELD"]),
        OfferedChange("remove", "Payloads that run are killed, and the jobs end.", LIVE),
        OfferedChange("reschedule", "The jobs return to the queue and run again.", [*LIVE, *FINAL]),
    )
}


async def collect_jobs(visit: Visit) -> Shown:
    """Return the jobs with the filter of the address."""
    wanted = filter_of(visit)
    token = visit.query("page")
    found, fault = ListedJobs((), ""), ""
    try:
        found = await find_page(visit, wanted, token)
    except CallFailedError as failed:
        if failed.problem.status != HTTPStatus.BAD_REQUEST:
            raise
        fault = str(failed)  # such as an expression that cannot be read: it stays in the form
    return {
        "fault": fault,
        "wanted": wanted,
        "found": found,
        "is_first": not token,
        "states": STATES,
        "periods": PERIODS,
        "changes": [CHANGES[verb] for verb in ("hold", "release", "remove")],
    }


JOBS = PageView("/jobs", "Jobs", ("JobService/ListJobs",), "jobs.html", collect_jobs)


class JobChanges:
    """The two steps of a change of jobs: what it would do, and the change."""

    def __init__(self, pages: PageMaker) -> None:
        self._pages = pages

    async def confirm(self, visit: Visit) -> Response:
        """Return the page that says how many jobs the change concerns, and whose they are."""
        form = await read_form(visit.request)
        change, back = _change_of(form), own_path(form.one("back"))
        wanted = filter_of_form(form) if form.one("all") else None
        concerned = await _marked(visit, form, change) if wanted is None else await _search(visit, wanted, change)
        shown = {
            "change": change,
            "concerned": concerned,
            "count": len(concerned.ids),
            "most": MOST_CHANGED,
            "wanted": wanted,
            "request_id": secrets.token_hex(16),
            "back": back,
        }
        return self._pages.page("change.html", visit, shown, path=JOBS.path)

    async def make(self, visit: Visit) -> Response:
        """Make the change, and return the page that says what became of it."""
        form = await read_form(visit.request)
        change, condition = _change_of(form), None
        if form.one("all"):
            wanted = filter_of_form(form)
            condition = wanted.condition(visit.clock(), change.states)
            concerned = await _search(visit, wanted, change)
            if concerned.is_too_much:
                raise PageError(HTTPStatus.CONFLICT, "the filter matches too many jobs now; use the command")
            ids = concerned.ids
        else:
            ids = _ids_of(form)
        results: list[Any] = []
        for part, start in enumerate(range(0, len(ids), CHANGED_AT_ONCE)):
            request = job_service_pb2.ChangeJobsRequest(
                request_id=f"{form.one('request_id')[:50]}-{part}",
                job_ids=ids[start : start + CHANGED_AT_ONCE],
                change=change.number,
                reason=form.one("reason").strip() or "by the web page",
                only=condition,
            )
            results += (await visit.calls("JobService/ChangeJobs", request)).results
        refused = [result for result in results if result.refusal]
        shown = {
            "change": change,
            "changed": len(results) - len(refused),
            "refused": len(refused),
            "refusals": refused[:SHOWN_REFUSALS],
            "back": own_path(form.one("back")),
        }
        return self._pages.page("changed.html", visit, shown, path=JOBS.path)


def _change_of(form: Form) -> OfferedChange:
    change = CHANGES.get(form.one("change"))
    if change is None:
        raise PageError(HTTPStatus.BAD_REQUEST, f"the form names no change; there are {', '.join(CHANGES)}")
    return change


def _ids_of(form: Form) -> list[int]:
    texts = form.all("id")
    if not texts:
        raise PageError(HTTPStatus.BAD_REQUEST, "no job is selected; go back and mark some")
    if not all(text.isascii() and text.isdigit() and len(text) < 19 for text in texts):
        raise PageError(HTTPStatus.BAD_REQUEST, "the form names jobs that are no numbers")
    return sorted({int(text) for text in texts})


@dataclass(frozen=True, slots=True)
class ConcernedJobs:
    """Jobs that a change concerns, and their numbers by owner and by state.

    `left` = marked jobs whose states the change does not concern; `is_too_much` = there are more than a
    form changes, or the search was given up before its end.
    """

    ids: Sequence[int]
    owners: Sequence[tuple[str, int]]
    states: Sequence[tuple[str, int]]
    left: int = 0
    is_too_much: bool = False


async def _marked(visit: Visit, form: Form, change: OfferedChange) -> ConcernedJobs:
    marked = (await visit.calls("JobService/GetJobs", job_service_pb2.GetJobsRequest(job_ids=_ids_of(form)))).jobs
    jobs = [job for job in marked if state_name(job.state) in change.states]
    owners, states = Counter(_owner(job) for job in jobs), Counter(state_name(job.state) for job in jobs)
    return ConcernedJobs(
        [job.id for job in jobs], owners.most_common(), states.most_common(), left=len(marked) - len(jobs)
    )


async def _search(visit: Visit, wanted: PageFilter, change: OfferedChange) -> ConcernedJobs:
    """Return the jobs with the filter that the change concerns."""
    condition = wanted.condition(visit.clock(), change.states)
    request = job_service_pb2.SearchJobsRequest(condition=condition)
    ids: list[int] = []
    owners, states = Counter[str](), Counter[str]()
    for _ in range(MOST_SEARCHES if condition.states else 0):
        page = await visit.calls("JobService/SearchJobs", request)
        ids += (job_id for run in page.runs for job_id in range(run.first, run.first + run.count))
        owners.update({_owner(each): each.jobs for each in page.owners})
        states.update({state_name(each.state): each.jobs for each in page.states})
        request.page_token = page.next_page_token
        if not page.next_page_token or len(ids) > MOST_CHANGED:
            break
    is_too_much = len(ids) > MOST_CHANGED or bool(request.page_token)
    return ConcernedJobs(ids, owners.most_common(), states.most_common(), is_too_much=is_too_much)


def _owner(of: Any) -> str:
    return f"{of.owner} ({of.vo})"
