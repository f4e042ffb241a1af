"""A router's backlog behaves like a plain list, and many jobs take little memory."""

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
RESERVED = ("reserved",)
SETS = st.sets(st.sampled_from(ROUTES)).map(lambda names: tuple(name for name in ROUTES if name in names))


class BacklogModel(RuleBasedStateMachine):
    """The same jobs in the order of their arrival, each with its routes, None = not yet evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog = RouteBacklog()
        self.jobs: dict[int, tuple[str, ...] | None] = {}
        self.postponed: dict[int, datetime] = {}
        self.reserved: dict[int, tuple[str, ...] | None] = {}
        self.refusals: Counter[int] = Counter()
        self.closed: dict[int, set[str]] = {}
        self.closings: Counter[int] = Counter()
        self.reopens: dict[int, datetime] = {}
        self.now = START

    @rule(job=JOBS)
    def add(self, job: int) -> None:
        self.backlog.add(job)
        self._forget(job)
        self.jobs[job] = None

    @rule(job=JOBS)
    def remove(self, job: int) -> None:
        self.backlog.remove(job)
        self._forget(job)

    @rule(routes=SETS)
    def evaluate(self, routes: tuple[str, ...]) -> None:
        for job in self.backlog.unevaluated(1):
            self.backlog.assign_routes(job, routes)
            self.jobs[job] = tuple(route for route in routes if route not in self.closed.get(job, ()))

    @rule(with_room=st.sets(st.sampled_from(ROUTES)))
    def reserve_first(self, with_room: set[str]) -> None:
        if (found := self.backlog.first(with_room)) is not None:
            self.backlog.reserve(found.job_id)
            self.reserved[found.job_id] = self.jobs[found.job_id]
            self.jobs[found.job_id] = RESERVED

    @rule()
    def release_reserved(self) -> None:
        self.backlog.release_reserved()
        self.jobs |= self.reserved
        self.reserved.clear()

    @rule(job=JOBS, route=st.sampled_from(ROUTES))
    def close_route(self, job: int, route: str) -> None:
        self.backlog.close_route(job, route, self.now)
        self.closed.setdefault(job, set()).add(route)
        self.closings[job] += 1
        self.reopens[job] = self.now + min(timedelta(minutes=10) * 2 ** (self.closings[job] - 1), timedelta(days=1))

    @rule(job=JOBS)
    def postpone(self, job: int) -> None:
        self.backlog.postpone(job, self.now)
        self._forget(job)
        self.refusals[job] += 1
        self.postponed[job] = self.now + min(
            timedelta(seconds=60) * 2 ** (self.refusals[job] - 1), timedelta(minutes=10)
        )

    @rule(seconds=st.sampled_from([10, 60, 300, 3600]))
    def pass_time(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        self.backlog.resume_due(self.now)
        for job in sorted(
            (job for job, until in self.postponed.items() if until <= self.now), key=self.postponed.__getitem__
        ):
            del self.postponed[job]
            self.jobs[job] = None
        for job in sorted((job for job, until in self.reopens.items() if until <= self.now), key=self._opening):
            del self.reopens[job]
            del self.closed[job]
            if self.jobs.get(job) == ():
                del self.jobs[job]
                self.jobs[job] = None

    @rule()
    def reevaluate_all(self) -> None:
        self.backlog.reevaluate_all()
        self.reserved.clear()
        self.jobs = dict.fromkeys(self.jobs)

    @rule(changed=st.sets(st.sampled_from(ROUTES)))
    def apply_table(self, changed: set[str]) -> None:
        self.backlog.apply_table(changed)
        self.jobs = dict.fromkeys([*self.jobs, *self.postponed])
        self.postponed.clear()
        self.reserved.clear()
        for closed in self.closed.values():
            closed -= changed

    @invariant()
    def same_jobs(self) -> None:
        assert list(self.backlog) == [*self.jobs, *self.postponed]
        assert len(self.backlog) == len(self.jobs) + len(self.postponed)
        assert list(self.backlog.unevaluated(100)) == [job for job, routes in self.jobs.items() if routes is None]

    @invariant()
    def same_first_job(self) -> None:
        for with_room in ({"A"}, {"B", "C"}, set(ROUTES), set[str]()):
            fitting = [job for job, routes in self.jobs.items() if routes and with_room & set(routes)]
            found = self.backlog.first(with_room)
            assert (found and found.job_id) == (fitting[0] if fitting else None)
            assert self.backlog.count_ready(with_room) == len(fitting)
            if found is not None:
                assert found.routes == tuple(route for route in self.jobs[found.job_id] or () if route in with_room)

    def _opening(self, job: int) -> tuple[datetime, int]:
        return self.reopens[job], job

    def _forget(self, job: int) -> None:
        self.jobs.pop(job, None)
        self.postponed.pop(job, None)
        self.reserved.pop(job, None)


TestBacklog = BacklogModel.TestCase
TestBacklog.settings = settings(stateful_step_count=40)


def test_hundred_thousand_jobs_take_less_than_40_megabytes() -> None:
    tracemalloc.start()
    backlog = RouteBacklog(range(10**9, 10**9 + 100_000))
    for job in backlog.unevaluated(100_000):
        backlog.assign_routes(job, ROUTES)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(backlog) == 100_000
    assert size < 40e6
