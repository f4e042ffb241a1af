"""A router's backlog does what a plain list would, at a cost that no queue makes large."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from datetime import datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pilotage_agents.router.core.route_selection import RouteBacklog
from support.virtual_clock import START

JOBS = st.integers(1, 8)
ROUTES = ("A", "B", "C")
TAKEN = ("taken",)
SETS = st.sets(st.sampled_from(ROUTES)).map(lambda names: tuple(name for name in ROUTES if name in names))


class BacklogModel(RuleBasedStateMachine):
    """The same jobs as a list in the order in which they came: of each its routes, None = not judged."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog = RouteBacklog()
        self.jobs: dict[int, tuple[str, ...] | None] = {}
        self.aside: dict[int, datetime] = {}
        self.taken: dict[int, tuple[str, ...] | None] = {}
        self.refusals: Counter[int] = Counter()
        self.barred: dict[int, set[str]] = {}
        self.bars: Counter[int] = Counter()
        self.opens: dict[int, datetime] = {}
        self.now = START

    @rule(job=JOBS)
    def comes(self, job: int) -> None:
        self.backlog.add(job)
        self._forget(job)
        self.jobs[job] = None

    @rule(job=JOBS)
    def goes(self, job: int) -> None:
        self.backlog.remove(job)
        self._forget(job)

    @rule(routes=SETS)
    def is_judged(self, routes: tuple[str, ...]) -> None:
        for job in self.backlog.unevaluated(1):
            self.backlog.assign_routes(job, routes)
            self.jobs[job] = tuple(route for route in routes if route not in self.barred.get(job, ()))

    @rule(with_room=st.sets(st.sampled_from(ROUTES)))
    def is_taken(self, with_room: set[str]) -> None:
        if (found := self.backlog.first(with_room)) is not None:
            self.backlog.reserve(found.job_id)
            self.taken[found.job_id] = self.jobs[found.job_id]
            self.jobs[found.job_id] = TAKEN

    @rule()
    def are_given_back(self) -> None:
        self.backlog.release_reserved()
        self.jobs |= self.taken
        self.taken.clear()

    @rule(job=JOBS, route=st.sampled_from(ROUTES))
    def is_barred(self, job: int, route: str) -> None:
        self.backlog.close_route(job, route, self.now)
        self.barred.setdefault(job, set()).add(route)
        self.bars[job] += 1
        self.opens[job] = self.now + min(timedelta(minutes=10) * 2 ** (self.bars[job] - 1), timedelta(days=1))

    @rule(job=JOBS)
    def is_set_aside(self, job: int) -> None:
        self.backlog.postpone(job, self.now)
        self._forget(job)
        self.refusals[job] += 1
        self.aside[job] = self.now + min(timedelta(seconds=60) * 2 ** (self.refusals[job] - 1), timedelta(minutes=10))

    @rule(seconds=st.sampled_from([10, 60, 300, 3600]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        self.backlog.resume_due(self.now)
        for job in sorted((job for job, until in self.aside.items() if until <= self.now), key=self.aside.__getitem__):
            del self.aside[job]
            self.jobs[job] = None
        for job in sorted((job for job, until in self.opens.items() if until <= self.now), key=self._opening):
            del self.opens[job]
            del self.barred[job]
            if self.jobs.get(job) == ():
                del self.jobs[job]
                self.jobs[job] = None

    @rule()
    def may_fulfil_something_else_now(self) -> None:
        self.backlog.reevaluate_all()
        self.taken.clear()
        self.jobs = dict.fromkeys(self.jobs)

    @rule(changed=st.sets(st.sampled_from(ROUTES)))
    def follow_another_table(self, changed: set[str]) -> None:
        self.backlog.apply_table(changed)
        self.jobs = dict.fromkeys([*self.jobs, *self.aside])
        self.aside.clear()
        self.taken.clear()
        for barred in self.barred.values():
            barred -= changed

    @invariant()
    def holds_the_same(self) -> None:
        assert list(self.backlog) == [*self.jobs, *self.aside]
        assert len(self.backlog) == len(self.jobs) + len(self.aside)
        assert list(self.backlog.unevaluated(100)) == [job for job, routes in self.jobs.items() if routes is None]

    @invariant()
    def gives_the_first_that_fits(self) -> None:
        for with_room in ({"A"}, {"B", "C"}, set(ROUTES), set[str]()):
            fitting = [job for job, routes in self.jobs.items() if routes and with_room & set(routes)]
            found = self.backlog.first(with_room)
            assert (found and found.job_id) == (fitting[0] if fitting else None)
            assert self.backlog.count_ready(with_room) == len(fitting)
            if found is not None:
                assert found.routes == tuple(route for route in self.jobs[found.job_id] or () if route in with_room)

    def _opening(self, job: int) -> tuple[datetime, int]:
        return self.opens[job], job

    def _forget(self, job: int) -> None:
        self.jobs.pop(job, None)
        self.aside.pop(job, None)
        self.taken.pop(job, None)


TestBacklog = BacklogModel.TestCase
TestBacklog.settings = settings(stateful_step_count=40)


def test_a_hundred_thousand_jobs_take_a_few_tens_of_megabytes() -> None:
    tracemalloc.start()
    backlog = RouteBacklog(range(10**9, 10**9 + 100_000))
    for job in backlog.unevaluated(100_000):
        backlog.assign_routes(job, ROUTES)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(backlog) == 100_000
    assert size < 40e6
