"""The routed jobs that a router tracks until their ends, counted by route, with the failure rates of the routes.

Rules
-----
- Counts change with every update and are never recomputed.
- A failure rate belongs to the name of its route. It outlives a change of the table, and another router can restore it.
- Attributes from hooks are reported once each time that they change. A router that adopts a routed job does not know
  what the server has, and reports all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from pilotage.classads.library import AdValue
from pilotage.job_description import NOTHING
from pilotage_agents.router.core.failure_rate import FailureRate
from pilotage_agents.router.core.route_selection import Occupancy
from pilotage_agents.router.core.routed_job import RoutedJobKey, RouteResult, TrackedJob
from pilotage_agents.router.core.table import Route, RouteTable

Attributes = Mapping[str, AdValue]


class HookAttributes:
    """Attributes that hooks have reported, and those that the server has confirmed, by routed job."""

    def __init__(self) -> None:
        self._reported: dict[RoutedJobKey, Attributes] = {}
        self._confirmed: dict[RoutedJobKey, Attributes] = {}

    def update(self, key: RoutedJobKey, attributes: Attributes) -> bool:
        """Set all attributes that hooks have reported of a routed job; returns whether they are new."""
        if not attributes or self._reported.get(key) == attributes:
            return False
        self._reported[key] = attributes
        return True

    def unreported(self, key: RoutedJobKey) -> Attributes:
        """Return the attributes of a routed job if the server has not confirmed them, else none."""
        attributes = self._reported.get(key, NOTHING)
        return NOTHING if attributes == self._confirmed.get(key) else attributes

    def confirm(self, key: RoutedJobKey, attributes: Attributes) -> None:
        """Record that the server has these attributes; none = nothing was reported."""
        if attributes:
            self._confirmed[key] = attributes

    def remove(self, key: RoutedJobKey) -> None:
        """Forget a routed job."""
        self._reported.pop(key, None)
        self._confirmed.pop(key, None)


class TrackedJobs:
    """All tracked routed jobs by key; `reports_due` holds those with something to report."""

    def __init__(self) -> None:
        self.reports_due: dict[RoutedJobKey, None] = {}
        self._routes: dict[str, Route] = {}
        self._jobs: dict[RoutedJobKey, TrackedJob] = {}
        self._on_route: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self._rates: dict[str, FailureRate] = {}
        self._hook_attributes = HookAttributes()

    def __len__(self) -> int:
        """Return the number of routed jobs."""
        return len(self._jobs)

    def __iter__(self) -> Iterator[TrackedJob]:
        """Yield a snapshot of all routed jobs."""
        return iter(tuple(self._jobs.values()))

    def get(self, key: RoutedJobKey) -> TrackedJob | None:
        """Return a routed job, None = this router does not track it."""
        return self._jobs.get(key)

    def put(self, routed: TrackedJob, *, report_due: bool = False) -> None:
        """Add or replace a routed job; `report_due` = there is something to report."""
        self._discount(routed.key)
        self._jobs[routed.key] = routed
        self._on_route[routed.route] += 1
        self._running[routed.route] += routed.is_running
        if report_due:
            self.reports_due[routed.key] = None

    def mark_unwanted(self, key: RoutedJobKey, reason: str) -> None:
        """Order the stop of a routed job whose original was taken away; no effect after its end."""
        routed = self._jobs.get(key)
        if routed is not None and routed.outcome is None and not routed.is_unwanted:
            self.put(routed.with_stop(reason))

    def update_attributes(self, key: RoutedJobKey, attributes: Mapping[str, AdValue]) -> bool:
        """Set the attributes that hooks have reported; returns whether there is something new to report."""
        is_news = key in self._jobs and self._hook_attributes.update(key, attributes)
        if is_news:
            self.reports_due[key] = None
        return is_news

    def unreported_attributes(self, key: RoutedJobKey) -> Mapping[str, AdValue]:
        """Return the attributes that the server has not confirmed, else none."""
        return self._hook_attributes.unreported(key)

    def confirm_attributes(self, key: RoutedJobKey, attributes: Mapping[str, AdValue]) -> None:
        """Record that the server has these attributes; later ones are still to be reported."""
        self._hook_attributes.confirm(key, attributes)

    def remove(self, key: RoutedJobKey) -> None:
        """Forget a routed job."""
        self._discount(key)
        self._jobs.pop(key, None)
        self._hook_attributes.remove(key)
        self.reports_due.pop(key, None)

    def apply_table(self, table: RouteTable) -> None:
        """Use the routes of this table, with their failure thresholds."""
        self._routes = {route.name: route for route in table.routes}
        for name, rate in self._rates.items():
            if (route := self._routes.get(name)) is not None:
                self._rates[name] = replace(rate, threshold=route.limits.failure_rate)

    def route(self, name: str) -> Route | None:
        """Return a route of the table, None = it has no route of this name."""
        return self._routes.get(name)

    def count_sent(self, route: str, now: datetime) -> None:
        """Count a job that was sent along a route."""
        self._count(route, now, sent=1)

    def count_end(self, route: str, result: RouteResult, now: datetime) -> None:
        """Count the end of a routed job for its route."""
        if result is not RouteResult.NEITHER:
            self._count(route, now, succeeded=result is RouteResult.SUCCESS, failed=result is RouteResult.FAILURE)

    def _count(self, route: str, now: datetime, **ends: int) -> None:
        if (found := self._routes.get(route)) is not None:
            rate = self._rates.get(route) or FailureRate(found.limits.failure_rate, now)
            self._rates[route] = rate.counted(**ends)

    def adjust(self, now: datetime) -> None:
        """Start new intervals for failure rates whose interval is over; drop those without information."""
        adjusted = {name: rate.adjusted(self._on_route[name], now) for name, rate in self._rates.items()}
        self._rates = {name: rate for name, rate in adjusted.items() if not rate.is_blank}

    @property
    def rates(self) -> Mapping[str, FailureRate]:
        """The known failure rates by route, also of routes of former tables."""
        return dict(self._rates)

    def restore_rates(self, rates: Mapping[str, FailureRate], now: datetime) -> None:
        """Replace failure rates by saved ones."""
        for name, rate in rates.items():
            route = self._routes.get(name)
            threshold = rate.threshold if route is None else route.limits.failure_rate
            resumed = rate.resumed(self._on_route[name], now)
            self._rates[name] = replace(resumed, threshold=threshold)

    def occupancy(self) -> Mapping[str, Occupancy]:
        """Return the occupancy of each route, by name."""
        return {
            route: Occupancy(jobs, jobs - self._running[route], self._rates.get(route))
            for route in self._on_route.keys() | self._rates.keys()
            if (jobs := self._on_route[route]) or route in self._rates
        }

    def _discount(self, key: RoutedJobKey) -> None:
        if (before := self._jobs.get(key)) is not None:
            self._on_route[before.route] -= 1
            self._running[before.route] -= before.is_running
