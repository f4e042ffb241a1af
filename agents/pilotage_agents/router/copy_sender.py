"""Sends jobs along their routes: takes them from the server, makes their copies, and hands these to the targets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from uuid import uuid4

import structlog

from pilotage.classads import AdValue
from pilotage.errors import InvalidInputError, PilotageError
from pilotage_agents.batch_systems.base import NotSubmitted, Submitted, Unanswered
from pilotage_agents.core.copies.copy_descriptions import ROUTE_NAME, described_copy, with_environment
from pilotage_agents.core.copies.copy_life import HeldCopy, Key, Weight
from pilotage_agents.core.routes.backlog import Backlog
from pilotage_agents.core.routes.route_choice import Choice
from pilotage_agents.core.routes.route_copies import copy_of
from pilotage_agents.core.routes.route_table import QueueTarget, Route, RouteTable
from pilotage_agents.router.copy_ends import CopyEnds
from pilotage_agents.router.route_edges import (
    CopyAnswer,
    CopyOutcome,
    CopyRequest,
    NewCopy,
    NotRouted,
    RefusedByJob,
    RoutableJob,
    Routed,
)
from pilotage_agents.router.route_shared import Shared
from pilotage_agents.side_by_side import side_by_side

log = structlog.get_logger()

_MOST_SUBMITTED_AT_ONCE = 50
"""So many copies a target has to take within its time."""

ROUTED_FROM, ROUTED_BY = "RoutedFromJobId", "RoutedBy"


@dataclass(frozen=True, slots=True)
class Taken:
    """Jobs that the server did not give, with reasons, and how many it gave to each route."""

    refused: Mapping[int, str]
    given: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Order:
    """A copy to be made of a job that is the router's now."""

    copy: HeldCopy
    job: RoutableJob
    route: Route


class CopySender:
    """Makes copies of jobs by a table; what cannot be sent is given back."""

    def __init__(self, shared: Shared, ends: CopyEnds, backlog: Backlog) -> None:
        self._shared = shared
        self._copies = shared.copies
        self._ends = ends
        self._backlog = backlog

    async def send(self, choices: Sequence[Choice], jobs: Mapping[int, RoutableJob], table: RouteTable) -> Taken:
        """Send the jobs that were chosen; raises a PilotageError when the server cannot be asked for them."""
        wanted = [choice for choice in choices if choice.job_id in jobs]
        if not wanted:
            return Taken({}, {})
        answers = await self._shared.link.route(uuid4().hex, [_new_copy(choice) for choice in wanted])
        now = self._shared.clock()
        orders, refused = [], {}
        for choice, answer in zip(wanted, answers, strict=True):
            match answer:
                case Routed(job_id, attempt):
                    copy = HeldCopy(Key(job_id, attempt), choice.route.name, str(choice.route.target), now)
                    self._copies.put(copy)
                    self._backlog.drop(job_id)
                    self._copies.was_sent(choice.route.name, now)
                    orders.append(_Order(copy, jobs[job_id], choice.route))
                case NotRouted(job_id, reason):
                    refused[job_id] = reason
        async with asyncio.TaskGroup() as group:
            for target, part in groupby(sorted(orders, key=_target), key=_target):
                group.create_task(self._send_to(target, list(part), table))
        return Taken(refused, Counter(order.route.name for order in orders))

    async def _send_to(self, target: str, orders: Sequence[_Order], table: RouteTable) -> None:
        made = await side_by_side(self._made(order, table) for order in orders)
        requests = [(order.copy, request) for order, request in zip(orders, made, strict=True) if request is not None]
        for start in range(0, len(requests), _MOST_SUBMITTED_AT_ONCE):
            await self._submit(target, requests[start : start + _MOST_SUBMITTED_AT_ONCE])

    async def _submit(self, target: str, requests: Sequence[tuple[HeldCopy, CopyRequest]]) -> None:
        """Hand copies to their target; where that has just fallen silent they are not tried."""
        link, places = self._shared.link, self._shared.places
        if silence := places.silence(target):
            for copy, _ in requests:
                await self._give_back(copy, f"its target gives no answer: {silence}", Weight.NEITHER)
            return
        sent = [replace(copy, was_sent=True) for copy, _ in requests]
        for copy in sent:
            self._copies.put(copy)
        answers = await places.ask(target, lambda place: place.submit([request for _, request in requests], link))
        if answers is None:
            answers = (Unanswered("its target gave no answer"),) * len(sent)
        for copy, answer in zip(sent, answers, strict=True):
            await self._settle(copy, answer)

    async def _settle(self, copy: HeldCopy, answer: CopyAnswer) -> None:
        match answer:
            case Submitted(reference):
                self._copies.put(replace(copy, reference=reference), owed=True)
            case NotSubmitted(reason, was_tried):
                await self._give_back(copy, reason, Weight.FAILURE if was_tried else Weight.NEITHER)
            case RefusedByJob(reason):
                await self._ends.over(copy, CopyOutcome("REFUSED_BY_JOB", copy.status, reason), Weight.NEITHER)
            case Unanswered(reason):
                log.warning("submission was not answered", copy=copy.name, route=copy.route, reason=reason)

    async def _made(self, order: _Order, table: RouteTable) -> CopyRequest | None:
        """Return the copy to be made, None = none can be: then the job is given back.

        What a hook refuses counts against its route. What is the job's own fault does not, but the job takes this route
        no more.
        """
        job = with_environment(order.job)
        try:
            ad = await self._copy_ad(order, job, table)
            description = described_copy(job, ad)
        except InvalidInputError as error:
            self._backlog.bar(order.job.job_id, order.route.name, self._shared.clock())
            await self._give_back(order.copy, str(error), Weight.NEITHER)
            return None
        except PilotageError as error:
            await self._give_back(order.copy, str(error), Weight.FAILURE)
            return None
        name, key, route = order.copy.name, order.copy.key, order.route
        whose = (job.owner, job.vo, job.group)
        return CopyRequest(name, *key, route.name, description, ad, *whose, shared_proxy=route.shared_proxy)

    async def _copy_ad(self, order: _Order, job: RoutableJob, table: RouteTable) -> dict[str, AdValue]:
        translated = await self._shared.hooks.translate(order.copy, order.route, job.ad)
        ad = copy_of(translated, order.route, table)
        ad |= {ROUTED_FROM: str(job.job_id), ROUTED_BY: self._shared.name, ROUTE_NAME: order.route.name}
        await self._shared.hooks.made(order.copy, ad)
        return ad

    async def _give_back(self, copy: HeldCopy, reason: str, weight: Weight) -> None:
        log.warning("job could not be sent", copy=copy.name, route=copy.route, reason=reason)
        await self._ends.over(copy, CopyOutcome("DECLINED", copy.status, reason), weight)


def _new_copy(choice: Choice) -> NewCopy:
    target = choice.route.target
    queue = target.queue if isinstance(target, QueueTarget) else None
    return NewCopy(choice.job_id, choice.route.name, str(target), queue)


def _target(order: _Order) -> str:
    return order.copy.target
