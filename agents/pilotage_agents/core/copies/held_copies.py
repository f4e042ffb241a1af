"""The copies that a router has to bring to an end, counted by route, and how fast those of each route fail.

Rules
-----
Counts are kept up with every change, never counted anew. The failure rate of a route lives on when the table changes,
under the route's name, and can be taken out and put back, for a router that starts again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from pilotage.classads import AdValue
from pilotage_agents.core.copies.copy_life import HeldCopy, Key, Weight
from pilotage_agents.core.copies.sayings import Sayings
from pilotage_agents.core.failure_rate import FailureRate
from pilotage_agents.core.routes.route_table import Route, RouteTable
from pilotage_agents.core.routes.routing import Occupancy


class HeldCopies:
    """All copies by their keys; `owed` are those of which there is something to tell the server."""

    def __init__(self) -> None:
        self.owed: dict[Key, None] = {}
        self._routes: dict[str, Route] = {}
        self._copies: dict[Key, HeldCopy] = {}
        self._on_route: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self._rates: dict[str, FailureRate] = {}
        self._sayings = Sayings()

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._copies)

    def __iter__(self) -> Iterator[HeldCopy]:
        """Yield all, as they were at the beginning."""
        return iter(tuple(self._copies.values()))

    def get(self, key: Key) -> HeldCopy | None:
        """Return a copy, None = it is not one of ours."""
        return self._copies.get(key)

    def put(self, copy: HeldCopy, *, owed: bool = False) -> None:
        """Keep a copy, in place of what was known of it; `owed` = there is something to tell."""
        self._uncount(copy.key)
        self._copies[copy.key] = copy
        self._on_route[copy.route] += 1
        self._running[copy.route] += copy.is_running
        if owed:
            self.owed[copy.key] = None

    def unwanted(self, key: Key, reason: str) -> None:
        """Take note that a copy is to end, because its original was taken away; no matter if it has ended already."""
        copy = self._copies.get(key)
        if copy is not None and copy.outcome is None and not copy.is_unwanted:
            self.put(copy.unwanted(reason))

    def says(self, key: Key, attributes: Mapping[str, AdValue]) -> bool:
        """Take note of all that hooks have said of a copy; returns whether there is something new to tell."""
        is_news = key in self._copies and self._sayings.says(key, attributes)
        if is_news:
            self.owed[key] = None
        return is_news

    def news_of(self, key: Key) -> Mapping[str, AdValue]:
        """Return what hooks have said of a copy, none = the server has heard it, or there is nothing."""
        return self._sayings.news_of(key)

    def heard(self, key: Key, attributes: Mapping[str, AdValue]) -> None:
        """Take note that the server knows this of a copy; what hooks have said since is still to be told."""
        self._sayings.heard(key, attributes)

    def drop(self, key: Key) -> None:
        """Forget a copy."""
        self._uncount(key)
        self._copies.pop(key, None)
        self._sayings.forget(key)
        self.owed.pop(key, None)

    def follow(self, table: RouteTable) -> None:
        """Count by the routes of this table from now on, with their thresholds."""
        self._routes = {route.name: route for route in table.routes}
        for name, rate in self._rates.items():
            if (route := self._routes.get(name)) is not None:
                self._rates[name] = replace(rate, threshold=route.limits.failure_rate)

    def route(self, name: str) -> Route | None:
        """Return a route of the table, None = it has none of this name any more."""
        return self._routes.get(name)

    def was_sent(self, route: str, now: datetime) -> None:
        """Count a job that was sent along a route."""
        self._count(route, now, sent=1)

    def has_ended(self, route: str, weight: Weight, now: datetime) -> None:
        """Count the end of a copy for its route."""
        if weight is not Weight.NEITHER:
            self._count(route, now, succeeded=weight is Weight.SUCCESS, failed=weight is Weight.FAILURE)

    def _count(self, route: str, now: datetime, **ends: int) -> None:
        """Count for a route, if the table has it."""
        if (found := self._routes.get(route)) is not None:
            rate = self._rates.get(route) or FailureRate(found.limits.failure_rate, now)
            self._rates[route] = rate.counted(**ends)

    def adjust(self, now: datetime) -> None:
        """Begin new intervals of failure rates where the old ones are over; what says nothing is forgotten."""
        adjusted = {name: rate.adjusted(self._on_route[name], now) for name, rate in self._rates.items()}
        self._rates = {name: rate for name, rate in adjusted.items() if not rate.is_blank}

    @property
    def rates(self) -> Mapping[str, FailureRate]:
        """How fast the routes of which that is known fail, by name, those of former tables too."""
        return dict(self._rates)

    def resume(self, rates: Mapping[str, FailureRate], now: datetime) -> None:
        """Go on with rates that were kept, in place of those of the same routes."""
        for name, rate in rates.items():
            route = self._routes.get(name)
            threshold = rate.threshold if route is None else route.limits.failure_rate
            resumed = rate.resumed(self._on_route[name], now)
            self._rates[name] = replace(resumed, threshold=threshold)

    def occupied(self) -> Mapping[str, Occupancy]:
        """Return what each route has, by name."""
        return {
            route: Occupancy(copies, copies - self._running[route], self._rates.get(route))
            for route in self._on_route.keys() | self._rates.keys()
            if (copies := self._on_route[route]) or route in self._rates
        }

    def _uncount(self, key: Key) -> None:
        if (before := self._copies.get(key)) is not None:
            self._on_route[before.route] -= 1
            self._running[before.route] -= before.is_running
