"""Random steps of jobs, pilots, a router and the clock on a real database: no job is lost or runs twice."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import select

from pilotage.errors import NotFoundError
from pilotage.job_description import JobPolicy
from pilotage.values.attempts import AttemptKey, Outcome
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.record import FeedEvent, is_matchable, router_of
from pilotage_server.core.jobs.states import FINAL, JobCause, JobState
from pilotage_server.core.routing import RouterReport
from pilotage_server.operations.jobs.queries import get_events
from pilotage_server.storage import task_queues
from pilotage_server.storage.attempts import ATTEMPTS
from pilotage_server.storage.task_queues import read_heads
from support.database import quick_sqlite
from support.grid import LONG, Grid, Pilot, a_slot
from support.jobs import a_user, an_operator
from support.races import REPEATABLE, start_copy
from support.routers import Router
from support.virtual_clock import VirtualClock

FENCED_STATES = frozenset({JobState.WAITING, JobState.HELD, JobState.REMOVED, JobState.DONE})
OUTCOMES = st.sampled_from(list(Outcome))
NO_EXPIRY = datetime.max.replace(tzinfo=UTC)
OTHER = "Lyon/ce02/long"
OWNERS = st.sampled_from(["alice", "bob"])
EXIT_POLICIES: list[dict[str, Any]] = [
    {},
    {"retries": 1},
    {"retries": 2, "retry_delay": timedelta(minutes=15)},
    {"request_memory_mib": 10, "retry_memory": 2.0},
    {"success_exit_code": 1, "policy": JobPolicy(on_exit_hold="ExitCode == 0")},
]


class JobLifecycle(RuleBasedStateMachine):
    """One server, its pilots, a router, and their attempts.

    `may_run` has the owner (None = the router) and the expiry of every attempt that may still run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open = ExitStack()
        folder = Path(self.open.enter_context(tempfile.TemporaryDirectory()))
        self.clock = VirtualClock()
        database = self.open.enter_context(quick_sqlite(folder / "pilotage.db", self.clock))
        self.grid = Grid(database, self.clock, LONG, OTHER, Memory=40)
        self.ids: list[int] = []
        self.cpus: dict[int, int] = {}
        self.pilots: list[Pilot] = []
        self.granted: list[tuple[Pilot, AttemptKey]] = []
        self.ended: Counter[AttemptKey] = Counter()
        self.may_run: dict[AttemptKey, tuple[Pilot | None, datetime]] = {}
        self.router = Router(self.grid).begin()
        self.routed: list[AttemptKey] = []

    def teardown(self) -> None:
        self.open.close()

    @initialize()
    def two_pilots(self) -> None:
        self.pilots = [self.grid.start_pilot(LONG), self.grid.start_pilot(OTHER)]

    @rule(
        owner=OWNERS,
        count=st.integers(1, 4),
        priority=st.integers(0, 2),
        cpus=st.integers(1, 2),
        exit_policy=st.sampled_from(EXIT_POLICIES),
    )
    def submit(self, owner: str, count: int, priority: int, cpus: int, exit_policy: dict[str, Any]) -> None:
        wanted = {"priority": priority, "request_cpus": cpus, "attributes": REPEATABLE, **exit_policy}
        new = self.grid.submit(a_user(owner), count, **wanted)
        self.ids += new
        self.cpus.update(dict.fromkeys(new, cpus))

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def race(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(self.ids))
        made = start_copy(self.grid, job_id)
        assert (made.copy_id == 0) == bool(made.refusal)
        if made.copy_id:
            self.ids.append(made.copy_id)
            self.cpus[made.copy_id] = self.cpus[job_id]

    @rule(number=st.integers(0, 5), slots=st.integers(1, 3))
    def request_jobs(self, number: int, slots: int) -> None:
        pilot = self.pilots[number % len(self.pilots)]
        answer = pilot.request_jobs(*(a_slot(f"s{n}", cpus=2, memory_mib=40) for n in range(slots)))
        for match in answer.matches:
            lease = AttemptKey(match.job_id, match.attempt)
            self.granted.append((pilot, lease))
            self._start_attempt(lease, pilot, self.clock() + match.lease)

    def _start_attempt(self, lease: AttemptKey, pilot: Pilot | None, end: datetime) -> None:
        others = [end for held, (_, end) in self.may_run.items() if held.job_id == lease.job_id]
        assert all(end < self.clock() for end in others), "two attempts of a job run at the same time"
        self.may_run[lease] = (pilot, end)

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), queue=st.sampled_from([LONG, OTHER]))
    def route(self, data: st.DataObject, queue: str) -> None:
        requested = data.draw(st.lists(st.sampled_from(self.ids), min_size=1, unique=True))
        waiting = {id_ for id_, job in self.grid.jobs(requested).items() if is_matchable(job)}
        given = self.router.take(*requested, target=queue)
        assert waiting >= set(given)
        for job_id in given:
            lease = AttemptKey(job_id, self.router.attempts[job_id])
            self.routed.append(lease)
            self._start_attempt(lease, None, NO_EXPIRY)

    @precondition(lambda self: self.routed)
    @rule(data=st.data(), state=st.sampled_from([JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING]))
    def report_routed_job(self, data: st.DataObject, state: JobState) -> None:
        lease = data.draw(st.sampled_from(self.routed))
        self.router.send_reports(RouterReport(*lease, node="n1", report=JobReport(*lease, state=state)))

    @precondition(lambda self: self.routed)
    @rule(data=st.data(), outcome=OUTCOMES, exit_code=st.integers(0, 1))
    def report_routed_outcome(self, data: st.DataObject, outcome: Outcome, exit_code: int) -> None:
        lease = data.draw(st.sampled_from(self.routed))
        self.may_run.pop(lease, None)
        self.router.send_reports(RouterReport(*lease, report=JobReport(*lease, outcome=outcome, exit_code=exit_code)))
        assert lease not in {AttemptKey(*each.copy.key) for each in self.router.copies()}

    @precondition(lambda self: self.routed)
    @rule()
    def give_up_router(self) -> None:
        self.router.stop()
        try:
            self.router.give_up()
        except NotFoundError:
            assert not self.router.copies()
        self.router.begin()
        self.may_run = {lease: run for lease, run in self.may_run.items() if run[0] is not None}

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), outcome=OUTCOMES, exit_code=st.integers(0, 1))
    def report_outcome(self, data: st.DataObject, outcome: Outcome, exit_code: int) -> None:
        pilot, lease = data.draw(st.sampled_from(self.granted))
        before = self.grid.job(lease.job_id)
        self.may_run.pop(lease, None)
        code = exit_code if outcome is Outcome.EXITED else None
        limit_mib = 10 if outcome is Outcome.LIMIT_EXCEEDED else 0
        result = pilot.report(lease, outcome, exit_code=code, memory_limit_mib=limit_mib)
        after = self.grid.job(lease.job_id)
        if not result.accepted:
            assert (after.state, after.attempt) == (before.state, before.attempt)
        elif before.state is not JobState.DONE and after.state is JobState.DONE:
            self.ended[lease] += 1
            assert self.ended[lease] == 1, "an attempt ends twice"

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), state=st.sampled_from([JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING]))
    def report_progress(self, data: st.DataObject, state: JobState) -> None:
        pilot, lease = data.draw(st.sampled_from(self.granted))
        pilot.report(lease, state=state)

    @rule(number=st.integers(0, 5))
    def beat(self, number: int) -> None:
        pilot = self.pilots[number % len(self.pilots)]
        held = set(pilot.held)
        answer = pilot.beat()
        renewed = {AttemptKey(lease.job_id, lease.attempt) for lease in answer.renewed}
        assert renewed <= held
        assert all(self.grid.job(lease.job_id).attempt == lease.attempt for lease in renewed)
        for each in answer.renewed:
            self.may_run[AttemptKey(each.job_id, each.attempt)] = (pilot, self.clock() + each.lease)

    @rule(minutes=st.sampled_from([1, 10, 25]))
    def pass_time(self, minutes: int) -> None:
        self.grid.pass_time(minutes=minutes)

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), change=st.sampled_from(list(JobChange)))
    def change(self, data: st.DataObject, change: JobChange) -> None:
        self.grid.change(change, data.draw(st.sampled_from(self.ids)))

    @rule(number=st.integers(0, 5), reports_end=st.booleans())
    def end_pilot(self, number: int, reports_end: bool) -> None:
        pilot = self.pilots.pop(number % len(self.pilots))
        self.may_run = {lease: run for lease, run in self.may_run.items() if run[0] is not pilot}
        if reports_end:
            pilot.beat(ending=True)
        else:
            self.grid.glidein_ended(pilot)
        self.pilots.append(self.grid.start_pilot(LONG if number % 2 else OTHER))

    @rule()
    def restart_server(self) -> None:
        self.grid = self.grid.restarted()
        for pilot in [*self.pilots, *(pilot for pilot, _ in self.granted)]:
            pilot.grid = self.grid
        self.router.grid = self.grid

    @invariant()
    def no_job_is_lost_and_at_most_one_attempt_runs(self) -> None:
        jobs = self.grid.jobs(self.ids)
        assert sorted(jobs) == sorted(self.ids)
        live = self._live_attempts()
        for job_id, job in jobs.items():
            assert live.get(job_id, []) == ([job.attempt] if job.is_leased else [])
            assert job.lease_until is not None or not job.is_leased
            assert not job.is_fenced or job.state in FENCED_STATES
            assert job.spent_attempts <= self.grid.state.rules.attempt_limit
            assert job.fenced_until is None or not is_matchable(job) or job.fenced_until <= self.clock()

    @invariant()
    def jobs_race_while_they_have_race_copies(self) -> None:
        jobs = self.grid.jobs(self.ids)
        live = {job.race for job in jobs.values() if job.is_race_copy and job.state not in FINAL}
        assert {job.id for job in jobs.values() if job.has_race_copies} == live
        assert all(jobs[id_].state not in FINAL | {JobState.HELD} for id_ in live)
        assert all(job.has_race_copies for job in jobs.values() if job.state is JobState.RACING)

    @invariant()
    def memory_agrees_with_the_database(self) -> None:
        counts = self.grid.read(lambda transaction, _: task_queues.count_waiting(transaction.session))
        heads = self.grid.read(lambda transaction, _: read_heads(transaction.session, counts))
        index = self.grid.state.waiting
        assert {each.task_queue.id: each.count for each in index.waiting()} == counts
        for each in index.waiting():
            assert each.head in (None, heads[each.task_queue.id])

    @invariant()
    def accounts_are_charged_for_running_jobs_only(self) -> None:
        cores: Counter[Any] = Counter()
        for job in self.grid.jobs(self.ids).values():
            if job.is_leased and router_of(job):
                cores[job.owner] += 0 if job.state is JobState.MATCHED else self.cpus[job.id]
            elif job.is_leased:
                cores[job.owner] += 2
        shares = self.grid.state.shares
        for queue in self.grid.read(lambda transaction, _: task_queues.load_live_task_queues(transaction.session)):
            assert shares.use(queue.account, self.clock()).cores == cores[queue.account.owner]

    @invariant()
    def router_lists_all_live_jobs_and_the_unwanted_ones(self) -> None:
        known = {AttemptKey(*each.copy.key): each.unwanted for each in self.router.copies()}
        assert {lease for lease, (pilot, _) in self.may_run.items() if pilot is None} <= known.keys()
        live = self._live_attempts()
        for (job_id, attempt), unwanted in known.items():
            assert (not unwanted) == (attempt in live.get(job_id, []))

    @invariant()
    def each_attempt_ends_once(self) -> None:
        for job_id in self.ids:
            events = self._events(job_id)
            states = [event.from_state for event in events[1:]]
            assert states == [event.to_state for event in events[:-1]]
            ends = Counter(event.attempt for event in events if event.cause in {JobCause.DONE, JobCause.WON})
            assert not ends or max(ends.values()) == 1

    def _events(self, job_id: int) -> tuple[FeedEvent, ...]:
        return self.grid.read(lambda transaction, _: get_events(transaction, an_operator(), job_id))

    def _live_attempts(self) -> dict[int, list[int]]:
        query = select(ATTEMPTS.c.job_id, ATTEMPTS.c.attempt).where(ATTEMPTS.c.ended.is_(None))
        live: dict[int, list[int]] = defaultdict(list)
        for job_id, attempt in self.grid.read(lambda transaction, _: transaction.session.execute(query).all()):
            live[job_id].append(attempt)
        return live


JobLifecycle.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestJobLifecycle = JobLifecycle.TestCase
