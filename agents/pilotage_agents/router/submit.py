"""Submits routed jobs to their targets, and ends them.

`RoutedJobSender` requests jobs from the server, makes their ads and descriptions, and submits them. `RoutedJobEnds`
collects the output of a routed job, runs the hooks of its end, and counts the result for its route. Both work in
background tasks, beside the router's cycles.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import groupby, islice
from uuid import uuid4

import structlog

from pilotage.classads.library import AdValue
from pilotage.errors import InvalidInputError, PilotageError, WorldError
from pilotage.jobs.report_limits import sanitized_attributes
from pilotage.values.routing import NewRoutedJob, RoutableJob
from pilotage_agents.batch_systems.base import NotSubmitted, Submitted, Unanswered
from pilotage_agents.router.context import RouterContext
from pilotage_agents.router.core.apply import routed_ad
from pilotage_agents.router.core.description import ROUTE_NAME, routed_description, with_environment
from pilotage_agents.router.core.model import CollectedFile, RoutedJobOutcome
from pilotage_agents.router.core.route_selection import RouteBacklog, RouteChoice
from pilotage_agents.router.core.routed_job import (
    RoutedJobKey,
    RouteResult,
    TrackedJob,
    end_of_gone,
    ended_ad,
    route_result,
)
from pilotage_agents.router.core.table import QueueTarget, Route, RouteTable
from pilotage_agents.router.ports import (
    NotRouted,
    RefusedByJob,
    Routed,
    RoutedJobAnswer,
    RoutedJobRequest,
    RoutedJobTarget,
    RouteUnsuitable,
)
from pilotage_agents.router.tasks import gather_bounded

log = structlog.get_logger()


class _Stage(StrEnum):
    """The background task of a routed job."""

    UPDATE = "update"
    COLLECT = "collect"
    FINALISE = "finalise"
    CLEAN = "clean"


_ENDING = (_Stage.COLLECT, _Stage.FINALISE, _Stage.CLEAN)

End = tuple[TrackedJob, RoutedJobOutcome, RouteResult]
"""A routed job, its outcome, and the result for its route."""

_MAX_LOADED = 500

_MAX_FETCHES = 16
"""The largest number of routed jobs whose output is fetched from a target at a time."""


@dataclass(frozen=True, slots=True)
class _Collected:
    """A routed job whose payload ended by itself, and its output; `reason` says what is missing."""

    routed: TrackedJob
    files: tuple[CollectedFile, ...]
    reason: str = ""


class RoutedJobEnds:
    """Ends routed jobs in background tasks; after a failure the next cycle tries again.

    A routed job ends once. No other part of the router may request its status while it is ending.
    """

    def __init__(self, context: RouterContext) -> None:
        self._jobs = context.jobs
        self._link = context.link
        self._targets = context.targets
        self._hooks = context.hooks
        self._clock = context.clock
        self._background_tasks = context.background_tasks
        self._gates: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_MAX_FETCHES))
        self._collected: dict[RoutedJobKey, _Collected] = {}
        self._uncleaned: dict[RoutedJobKey, End] = {}

    def run_update_hooks(self, jobs: Iterable[TrackedJob]) -> None:
        """Run the update hooks of running jobs; a running hook is not started again."""
        for routed in jobs:
            if self._hooks.has_hooks(routed):
                self._background_tasks.start((_Stage.UPDATE, routed.key), partial(self._update, routed))

    def collect(self, jobs: Iterable[TrackedJob]) -> None:
        """Start to fetch the output of ended payloads; until then the jobs are shown as completing."""
        for routed in jobs:
            before = self._jobs.get(routed.key)
            self._jobs.put(routed, report_due=before is None or before.status.state is not routed.status.state)
            self._background_tasks.start((_Stage.COLLECT, routed.key), partial(self._fetch, routed))

    def is_ending(self, routed: TrackedJob) -> bool:
        """Whether the output of a routed job is being fetched, or hooks have still to run."""
        key = routed.key
        is_out = any(self._background_tasks.is_running((stage, key)) for stage in _ENDING)
        return is_out or key in self._collected or key in self._uncleaned

    def stop_fetching(self, routed: TrackedJob) -> None:
        """Stop the fetch of a routed job's output; the next poll decides again."""
        self._background_tasks.cancel((_Stage.COLLECT, routed.key))

    async def finish_collected(self) -> None:
        """End the routed jobs whose output was fetched; raises a PilotageError if the server does not answer."""
        while collected := list(islice(self._collected.values(), _MAX_LOADED)):
            asked = [each.routed.key.job_id for each in collected if self._needs_ad(each.routed)]
            ads = {job.job_id: job.ad for job in await self._link.load_jobs(asked)} if asked else {}
            for each in collected:
                self._finish(each, ads.get(each.routed.key.job_id, {}))
                del self._collected[each.routed.key]

    def retry_cleanup(self) -> None:
        """Run failed cleanup hooks again."""
        for key, end in list(self._uncleaned.items()):
            if self._jobs.get(key) is None:
                del self._uncleaned[key]
            else:
                self._background_tasks.start((_Stage.CLEAN, key), partial(self._clean, *end))

    def end(self, routed: TrackedJob, outcome: RoutedJobOutcome, result: RouteResult) -> None:
        """End a routed job after its cleanup hook, if it has one."""
        if not self._hooks.has_hooks(routed):
            self._record_end(routed, outcome, result)
            return
        self._background_tasks.cancel((_Stage.UPDATE, routed.key))
        self._uncleaned[routed.key] = end = (routed, outcome, result)
        self._background_tasks.start((_Stage.CLEAN, routed.key), partial(self._clean, *end))

    async def _update(self, routed: TrackedJob) -> None:
        await self._hooks.update(routed)
        reported = self._hooks.attributes_of(routed)
        if self._jobs.update_attributes(routed.key, reported) and (
            unreported := reported.keys() - sanitized_attributes(reported).keys()
        ):
            example = min(unreported)
            log.warning(
                "hook returns attributes that cannot be reported",
                routed_job=routed.name,
                attributes=len(unreported),
                example=example,
            )

    async def _fetch(self, routed: TrackedJob) -> None:
        async with self._gates[routed.target]:
            collected = await self._targets.ask(
                routed.target, lambda opened: _collect_output(opened, routed), about=routed.name
            )
            if collected is None:
                return
            try:
                await self._link.upload(collected.files)
            except PilotageError as error:
                log.warning("output cannot be uploaded to the server now", routed_job=routed.name, reason=str(error))
                return
        self._collected[routed.key] = collected

    def _finish(self, collected: _Collected, ad: Mapping[str, AdValue]) -> None:
        routed = collected.routed
        source = {**ended_ad(ad, routed.status), **self._hooks.attributes_of(routed)}
        if self._hooks.has_hooks(routed):
            self._background_tasks.start((_Stage.FINALISE, routed.key), partial(self._finalise, collected, source))
        else:
            self.end(routed, *self._end_of_collected(collected, source))

    async def _finalise(self, collected: _Collected, source: Mapping[str, AdValue]) -> None:
        if why := await self._hooks.finalise(collected.routed, source):
            self.end(collected.routed, RoutedJobOutcome("EVICTED", collected.routed.status, why), RouteResult.FAILURE)
        else:
            self.end(collected.routed, *self._end_of_collected(collected, source))

    def _end_of_collected(
        self, collected: _Collected, source: Mapping[str, AdValue]
    ) -> tuple[RoutedJobOutcome, RouteResult]:
        routed = collected.routed
        if (known := self._jobs.get(routed.key)) is not None and known.is_unwanted:
            return end_of_gone(known)
        if collected.reason:
            return RoutedJobOutcome("OUTPUT_LOST", routed.status, collected.reason), RouteResult.FAILURE
        return RoutedJobOutcome("EXITED", routed.status, files=collected.files), route_result(
            self._jobs.route(routed.route), source
        )

    async def _clean(self, routed: TrackedJob, outcome: RoutedJobOutcome, result: RouteResult) -> None:
        if await self._hooks.run_cleanup(routed):
            self._record_end(routed, outcome, result)
            del self._uncleaned[routed.key]

    def _record_end(self, routed: TrackedJob, outcome: RoutedJobOutcome, result: RouteResult) -> None:
        """Record the end of a routed job, unless the router no longer tracks it."""
        if self._jobs.get(routed.key) is None:
            return
        self._jobs.put(replace(routed, outcome=outcome), report_due=True)
        self._jobs.count_end(routed.route, result, self._clock())
        if outcome.outcome != "EXITED":
            log.info(
                "routed job ended",
                routed_job=routed.name,
                route=routed.route,
                outcome=outcome.outcome,
                reason=outcome.reason,
            )

    def _needs_ad(self, routed: TrackedJob) -> bool:
        route = self._jobs.route(routed.route)
        return self._hooks.has_hooks(routed) or (route is not None and route.failure_test is not None)


async def _collect_output(opened: RoutedJobTarget, routed: TrackedJob) -> _Collected:
    """Return the output of a routed job; output that is lost for good does not block the end. Raises WorldError."""
    try:
        return _Collected(routed, await opened.collect(routed.reference))
    except WorldError as error:
        if error.transient:
            raise
        log.warning("output of a routed job is lost", routed_job=routed.name, reason=str(error))
        return _Collected(routed, (), f"the output is lost: {error}")


_MAX_SUBMITTED = 50
"""The largest number of jobs in a submission, so that a target accepts them within its time."""

SUBMISSIONS = "submissions"
"""The subject of submissions: a target that accepts none may still report statuses."""

ROUTED_FROM, ROUTED_BY = "RoutedFromJobId", "RoutedBy"


@dataclass(frozen=True, slots=True)
class SendResult:
    """Jobs that the server refused, with reasons, and the number of jobs given to each route."""

    refused: Mapping[int, str]
    sent: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _SendOrder:
    """A job that the server gave, to be submitted."""

    routed: TrackedJob
    job: RoutableJob
    route: Route


class RoutedJobSender:
    """Submits jobs by a table in background tasks; a job that cannot be submitted is given back."""

    def __init__(self, context: RouterContext, ends: RoutedJobEnds, backlog: RouteBacklog) -> None:
        self._context = context
        self._jobs = context.jobs
        self._background_tasks = context.background_tasks
        self._ends = ends
        self._backlog = backlog
        self._submitting: dict[str, frozenset[RoutedJobKey]] = {}

    async def send(
        self, choices: Sequence[RouteChoice], jobs: Mapping[int, RoutableJob], table: RouteTable
    ) -> SendResult:
        """Request and submit the chosen jobs; raises a PilotageError if the server does not answer."""
        wanted = [choice for choice in choices if choice.job_id in jobs]
        if not wanted:
            return SendResult({}, {})
        answers = await self._context.link.route(uuid4().hex, [_new_routed_job(choice) for choice in wanted])
        now = self._context.clock()
        orders, refused = [], {}
        for choice, answer in zip(wanted, answers, strict=True):
            match answer:
                case Routed(job_id, attempt):
                    routed = TrackedJob(RoutedJobKey(job_id, attempt), choice.route.name, str(choice.route.target), now)
                    self._jobs.put(routed)
                    self._backlog.remove(job_id)
                    self._jobs.count_sent(choice.route.name, now)
                    orders.append(_SendOrder(routed, jobs[job_id], choice.route))
                case NotRouted(job_id, reason):
                    refused[job_id] = reason
        for route, group in groupby(sorted(orders, key=_route), key=_route):
            of_route = list(group)
            self._submitting[route] = frozenset(order.routed.key for order in of_route)
            self._background_tasks.start(_key(route), partial(self._send_along, of_route, table))
        await self._background_tasks.wait_grace()
        return SendResult(refused, Counter(order.route.name for order in orders))

    def is_sending(self, routed: TrackedJob) -> bool:
        """Whether the submission of a routed job is running."""
        return self._background_tasks.is_running(_key(routed.route)) and routed.key in self._submitting[routed.route]

    def busy(self) -> Set[str]:
        """Return the routes whose last submission is still running."""
        return {route for route in self._submitting if self._background_tasks.is_running(_key(route))}

    async def _send_along(self, orders: Sequence[_SendOrder], table: RouteTable) -> None:
        """Submit the jobs of a route in groups."""
        prepared = await gather_bounded(self._make_request(order, table) for order in orders)
        requests = [request for request in prepared if request is not None]
        jobs = {order.routed.name: order.routed for order in orders}
        for start in range(0, len(requests), _MAX_SUBMITTED):
            some = requests[start : start + _MAX_SUBMITTED]
            await self._submit([(jobs[request.name], request) for request in some])

    async def _submit(self, requests: Sequence[tuple[TrackedJob, RoutedJobRequest]]) -> None:
        """Submit jobs of a route; if the target is paused, they are given back untried."""
        targets, target = self._context.targets, requests[0][0].target
        await targets.open(target)
        if obstacle := targets.obstacle(target, SUBMISSIONS):
            for routed, _ in requests:
                self._give_back(routed, obstacle, RouteResult.NEITHER)
            return
        wanted = [(routed, request) for routed, request in requests if self._is_wanted(routed)]
        for routed, _ in wanted:
            self._jobs.put(replace(routed, was_sent=True))
        answers = await self._answers(target, [request for _, request in wanted]) if wanted else ()
        for (routed, _), answer in zip(wanted, answers, strict=True):
            self._apply_answer(self._jobs.get(routed.key) or replace(routed, was_sent=True), answer)

    async def _answers(self, target: str, asked: Sequence[RoutedJobRequest]) -> Sequence[RoutedJobAnswer]:
        """Return a target's answers; a target that tried none is paused."""
        reported: list[RoutedJobAnswer] = []

        async def submit(opened: RoutedJobTarget) -> None:
            reported.extend(await opened.submit(asked, self._context.link))
            untried = [each.reason for each in reported if isinstance(each, NotSubmitted) and not each.was_tried]
            if len(untried) == len(reported):
                raise WorldError(untried[0], transient=True)

        await self._context.targets.ask(target, submit, about=SUBMISSIONS)
        return reported or [Unanswered("the target gave no answer")] * len(asked)

    def _is_wanted(self, routed: TrackedJob) -> bool:
        """Return whether a job is still to be submitted; one that is no longer wanted ends."""
        known = self._jobs.get(routed.key)
        if known is not None and known.is_unwanted:
            self._ends.end(known, *end_of_gone(known))
        return known is not None and not known.is_unwanted

    def _apply_answer(self, routed: TrackedJob, answer: RoutedJobAnswer) -> None:
        match answer:
            case Submitted(reference):
                self._jobs.put(replace(routed, reference=reference), report_due=True)
            case NotSubmitted(reason, was_tried):
                self._give_back(routed, reason, RouteResult.FAILURE if was_tried else RouteResult.NEITHER)
            case RouteUnsuitable(reason):
                self._close_route(routed)
                self._give_back(routed, reason, RouteResult.NEITHER)
            case RefusedByJob(reason):
                self._ends.end(routed, RoutedJobOutcome("REFUSED_BY_JOB", routed.status, reason), RouteResult.NEITHER)
            case Unanswered(reason):
                log.warning("submission was not answered", routed_job=routed.name, route=routed.route, reason=reason)

    async def _make_request(self, order: _SendOrder, table: RouteTable) -> RoutedJobRequest | None:
        """Return the request for a job, None = it cannot be made, and the job is given back.

        A refusal by a hook counts against the route. A fault of the job itself does not, but closes the route to it.
        """
        job = with_environment(order.job)
        try:
            ad = await self._make_ad(order, job, table)
            description = routed_description(job, ad)
        except InvalidInputError as error:
            self._close_route(order.routed)
            self._give_back(order.routed, str(error), RouteResult.NEITHER)
            return None
        except PilotageError as error:
            self._give_back(order.routed, str(error), RouteResult.FAILURE)
            return None
        name, key, route = order.routed.name, order.routed.key, order.route
        whose = (job.owner, job.vo, job.group)
        return RoutedJobRequest(name, *key, route.name, description, ad, *whose, shared_proxy=route.shared_proxy)

    async def _make_ad(self, order: _SendOrder, job: RoutableJob, table: RouteTable) -> dict[str, AdValue]:
        translated = await self._context.hooks.translate(order.routed, order.route, job.ad)
        ad = routed_ad(translated, order.route, table)
        ad |= {ROUTED_FROM: str(job.job_id), ROUTED_BY: self._context.name, ROUTE_NAME: order.route.name}
        await self._context.hooks.save_ad(order.routed, ad)
        return ad

    def _close_route(self, routed: TrackedJob) -> None:
        """Close the route to the original of a routed job for a while."""
        self._backlog.close_route(routed.key.job_id, routed.route, self._context.clock())

    def _give_back(self, routed: TrackedJob, reason: str, result: RouteResult) -> None:
        log.warning("job could not be sent", routed_job=routed.name, route=routed.route, reason=reason)
        self._ends.end(routed, RoutedJobOutcome("DECLINED", routed.status, reason), result)


def _new_routed_job(choice: RouteChoice) -> NewRoutedJob:
    target = choice.route.target
    queue = target.queue if isinstance(target, QueueTarget) else None
    return NewRoutedJob(choice.job_id, choice.route.name, str(target), queue)


def _route(order: _SendOrder) -> str:
    return order.routed.route


def _key(route: str) -> tuple[str, str]:
    return "send", route
