"""Sends jobs along their routes: takes them from the server, makes their copies, and hands these to the targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from uuid import uuid4

import structlog

from pilotage.classads import AdValue
from pilotage.errors import InvalidInputError, PilotageError, WorldError
from pilotage_agents.batch_systems.base import NotSubmitted, Submitted, Unanswered
from pilotage_agents.core.copies.copy_descriptions import ROUTE_NAME, described_copy, with_environment
from pilotage_agents.core.copies.copy_life import HeldCopy, Key, Weight, gone
from pilotage_agents.core.routes.backlog import Backlog
from pilotage_agents.core.routes.route_choice import Choice
from pilotage_agents.core.routes.route_copies import copy_of
from pilotage_agents.core.routes.route_table import QueueTarget, Route, RouteTable
from pilotage_agents.router.copy_ends import CopyEnds
from pilotage_agents.router.route_edges import (
    CopyAnswer,
    CopyOutcome,
    CopyRequest,
    CopyTarget,
    NewCopy,
    NotRouted,
    NotThisWay,
    RefusedByJob,
    RoutableJob,
    Routed,
)
from pilotage_agents.router.route_shared import Shared
from pilotage_agents.router.side_by_side import side_by_side

log = structlog.get_logger()

_MOST_SUBMITTED_AT_ONCE = 50
"""So many copies a target has to take within its time."""

SUBMISSIONS = "submissions"
"""What a target is asked about when it is to take copies: one that takes none still says how its copies are."""

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
    """Makes copies of jobs by a table, beside the rounds; what cannot be sent is given back."""

    def __init__(self, shared: Shared, ends: CopyEnds, backlog: Backlog) -> None:
        self._shared = shared
        self._copies = shared.copies
        self._errands = shared.errands
        self._ends = ends
        self._backlog = backlog
        self._on_their_way: dict[str, frozenset[Key]] = {}

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
        for route, part in groupby(sorted(orders, key=_route), key=_route):
            self._begin(route, list(part), table)
        await self._errands.grace()
        return Taken(refused, Counter(order.route.name for order in orders))

    def is_sending(self, copy: HeldCopy) -> bool:
        """Whether a copy is on its way to its target."""
        return self._errands.is_out(_key(copy.route)) and copy.key in self._on_their_way[copy.route]

    def busy(self) -> Set[str]:
        """Return the routes whose targets have not taken yet what was sent along them."""
        return {route for route in self._on_their_way if self._errands.is_out(_key(route))}

    def _begin(self, route: str, orders: Sequence[_Order], table: RouteTable) -> None:
        self._on_their_way[route] = frozenset(order.copy.key for order in orders)
        self._errands.begin(_key(route), partial(self._send_along, orders, table))

    async def _send_along(self, orders: Sequence[_Order], table: RouteTable) -> None:
        """Make the copies of a route, and hand them to its target; after a failure the others are not tried."""
        made = await side_by_side(self._made(order, table) for order in orders)
        requests = [request for request in made if request is not None]
        copies = {order.copy.name: order.copy for order in orders}
        for start in range(0, len(requests), _MOST_SUBMITTED_AT_ONCE):
            some = requests[start : start + _MOST_SUBMITTED_AT_ONCE]
            await self._submit([(copies[request.name], request) for request in some])

    async def _submit(self, requests: Sequence[tuple[HeldCopy, CopyRequest]]) -> None:
        """Hand copies of a route to their target; where that has just fallen silent they are not tried."""
        places, target = self._shared.places, requests[0][0].target
        await places.open(target)
        if obstacle := places.obstacle(target, SUBMISSIONS):
            for copy, _ in requests:
                self._give_back(copy, obstacle, Weight.NEITHER)
            return
        wanted = [(copy, request) for copy, request in requests if self._is_wanted(copy)]
        for copy, _ in wanted:
            self._copies.put(replace(copy, was_sent=True))
        answers = await self._answers(target, [request for _, request in wanted]) if wanted else ()
        for (copy, _), answer in zip(wanted, answers, strict=True):
            self._settle(self._copies.get(copy.key) or replace(copy, was_sent=True), answer)

    async def _answers(self, target: str, asked: Sequence[CopyRequest]) -> Sequence[CopyAnswer]:
        """Return what a target says to copies; one that has tried none of them is left alone for a while."""
        said: list[CopyAnswer] = []

        async def submit(place: CopyTarget) -> None:
            said.extend(await place.submit(asked, self._shared.link))
            untried = [each.reason for each in said if isinstance(each, NotSubmitted) and not each.was_tried]
            if len(untried) == len(said):
                raise WorldError(untried[0], transient=True)

        await self._shared.places.ask(target, submit, about=SUBMISSIONS)
        return said or [Unanswered("its target gave no answer")] * len(asked)

    def _is_wanted(self, copy: HeldCopy) -> bool:
        """Return whether a copy is still to be sent; one whose original was taken away meanwhile is over."""
        known = self._copies.get(copy.key)
        if known is not None and known.is_unwanted:
            self._ends.end(known, *gone(known))
        return known is not None and not known.is_unwanted

    def _settle(self, copy: HeldCopy, answer: CopyAnswer) -> None:
        match answer:
            case Submitted(reference):
                self._copies.put(replace(copy, reference=reference), owed=True)
            case NotSubmitted(reason, was_tried):
                self._give_back(copy, reason, Weight.FAILURE if was_tried else Weight.NEITHER)
            case NotThisWay(reason):
                self._bar(copy)
                self._give_back(copy, reason, Weight.NEITHER)
            case RefusedByJob(reason):
                self._ends.end(copy, CopyOutcome("REFUSED_BY_JOB", copy.status, reason), Weight.NEITHER)
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
            self._bar(order.copy)
            self._give_back(order.copy, str(error), Weight.NEITHER)
            return None
        except PilotageError as error:
            self._give_back(order.copy, str(error), Weight.FAILURE)
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

    def _bar(self, copy: HeldCopy) -> None:
        """Keep the original of a copy from its route for a while."""
        self._backlog.bar(copy.key.job_id, copy.route, self._shared.clock())

    def _give_back(self, copy: HeldCopy, reason: str, weight: Weight) -> None:
        log.warning("job could not be sent", copy=copy.name, route=copy.route, reason=reason)
        self._ends.end(copy, CopyOutcome("DECLINED", copy.status, reason), weight)


def _new_copy(choice: Choice) -> NewCopy:
    target = choice.route.target
    queue = target.queue if isinstance(target, QueueTarget) else None
    return NewCopy(choice.job_id, choice.route.name, str(target), queue)


def _route(order: _Order) -> str:
    return order.copy.route


def _key(route: str) -> tuple[str, str]:
    return "send", route
