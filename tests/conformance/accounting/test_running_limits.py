"""Running limits: how many jobs of one attribute value run at a location at once."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilotage.resources.tree import QueueId
from pilotage.values.attempts import Outcome
from pilotage_server.core.accounting.limits import limit_key
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.rules import Rules, RunningLimit
from pilotage_server.operations.accounting.limits import (
    count_matched,
    fresh_counts,
    limits_at_present,
    recount_limits,
    refresh_counts,
    running_counts,
)
from pilotage_server.operations.matching.demand import get_demand
from pilotage_server.operations.matching.work import Match
from pilotage_server.operations.startup.loading import rekey_for_limits
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from support.database import quick_sqlite, run_against_row_locks
from support.grid import LONG, Grid, Pilot, a_slot
from support.jobs import a_user
from support.virtual_clock import VirtualClock


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def test_running_limit_is_exact(database: Database, clock: VirtualClock) -> None:
    limit = RunningLimit("cern", None, None, "JobType", "mc", at_most=2)
    grid = Grid(database, clock, LONG, "CERN/ce02/q", "FNAL/ce/q", rules=Rules(running_limits=(limit,)))
    ids = grid.submit(count=5, attributes={"jobtype": "MC"})
    (other,) = grid.submit(attributes={"JobType": "user"})
    pilot = grid.start_pilot()
    taken = pilot.request_jobs(*(a_slot(f"s{n}") for n in range(4))).matches
    assert sorted(match.job_id for match in taken) == sorted([*ids[:2], other])
    assert grid.start_pilot("CERN/ce02/q").claim() == []
    assert grid.start_pilot("FNAL/ce/q").claim() == [ids[2]]
    pilot.finish(next(match for match in taken if match.job_id == ids[0]))
    assert grid.start_pilot("CERN/ce02/q").claim(a_slot("a"), a_slot("b")) == [ids[3]]


def test_demand_leaves_out_jobs_that_limits_hold_back(database: Database, clock: VirtualClock) -> None:
    here = RunningLimit("CERN", "ce01", None, "owner", "alice", at_most=2)
    there = RunningLimit("FNAL", None, None, "owner", "alice", at_most=3)
    grid = Grid(database, clock, LONG, "FNAL/ce/q", rules=Rules(running_limits=(here, there)))
    grid.submit(a_user("alice"), count=9)

    def demand() -> tuple[list[tuple[int, tuple[int, ...]]], list[int]]:
        """Return jobs and queues of each demand, and the room below each limit."""
        queues = [QueueId.parse(LONG), QueueId.parse("FNAL/ce/q")]
        answer = grid.read(lambda transaction, state: get_demand(transaction, state, queues))
        return [(each.waiting, each.queue_indexes) for each in answer.demands], [each.room for each in answer.limits]

    assert demand() == ([(5, (0, 1))], [2, 3])
    pilot = grid.start_pilot()
    given = pilot.request_jobs(a_slot("a"), a_slot("b")).matches
    assert demand() == ([(3, (1,))], [0, 3])
    grid.start_pilot("FNAL/ce/q").claim(*(a_slot(f"s{n}") for n in range(3)))
    assert demand() == ([], [0, 0])
    pilot.finish(given[0])
    grid.submit(a_user("bob"), count=7)
    assert demand() == ([(1, (0,)), (7, (0, 1))], [1, 0])


@pytest.mark.parametrize(
    ("at_most", "expected"), [(1, ["alice"]), (1000, [])], ids=["limit was reached", "far below limit"]
)
def test_end_of_job_notifies_others_only_if_limit_was_reached(
    database: Database, clock: VirtualClock, at_most: int, expected: list[str]
) -> None:
    limit = RunningLimit("CERN", None, None, "owner", "alice", at_most)
    grid = Grid(database, clock, rules=Rules(running_limits=(limit,)))
    first, _ = grid.submit(a_user("alice"), count=2)
    grid.submit(a_user("bob"))
    pilot = grid.start_pilot()
    match = pilot.take()
    assert match.job_id == first
    notified: list[str] = []
    grid.state.waiting_listeners.append(lambda task_queue, count: notified.append(task_queue.account.owner))
    pilot.finish(match)
    assert notified == expected


def test_new_limit_rekeys_jobs_submitted_before_it(database: Database, clock: VirtualClock) -> None:
    before = Grid(database, clock)
    ids = before.submit(attributes={"JobType": "MC"}) + before.submit(attributes={"JobType": "user"})
    ids += before.submit(attributes={"JobType": "mc"})
    limit = RunningLimit("CERN", None, None, "jobtype", "MC", at_most=1)
    after = Grid(database, clock, rules=Rules(running_limits=(limit,)))
    assert after.write(rekey_for_limits) == 1
    assert after.write(rekey_for_limits) == 0
    assert len({job.task_queue_id for job in after.jobs(ids).values()}) == 3  # values keep their spelling
    assert after.start_pilot().claim(*(a_slot(f"s{n}") for n in range(3))) == ids[:2]


def counts(grid: Grid, queue: str = LONG) -> list[int]:
    """Return the counts of the limits at a queue, in the order of the rules."""
    return list(
        grid.read(lambda transaction, state: running_counts(transaction, state, [QueueId.parse(queue)])).values()
    )


def test_job_with_list_counts_for_each_value(database: Database, clock: VirtualClock) -> None:
    limits = tuple(RunningLimit("CERN", None, None, "Tags", value, at_most=1) for value in ("a", "b", "c"))
    grid = Grid(database, clock, rules=Rules(running_limits=limits))
    both, _, of_c = (grid.submit(attributes={"Tags": tags})[0] for tags in (("A", "b"), ("b",), ("c",)))
    assert grid.start_pilot().claim(*(a_slot(f"s{n}") for n in range(3))) == [both, of_c]
    assert counts(grid) == [1, 1, 1]


def test_limits_of_equal_location_and_value_share_a_count(database: Database, clock: VirtualClock) -> None:
    limits = tuple(RunningLimit("CERN", None, None, "owner", name, most) for name, most in (("alice", 3), ("Alice", 2)))
    grid = Grid(database, clock, rules=Rules(running_limits=limits))
    grid.submit(count=4)
    pilot = grid.start_pilot()
    assert len(pilot.claim(*(a_slot(f"s{n}") for n in range(4)))) == 2
    assert counts(grid) == [2, 2]


def test_job_finished_in_a_request_frees_its_limit_for_that_request(database: Database, clock: VirtualClock) -> None:
    limit = RunningLimit("CERN", None, None, "owner", "alice", at_most=1)
    grid = Grid(database, clock, rules=Rules(running_limits=(limit,)))
    first, second = grid.submit(count=2)
    pilot = grid.start_pilot()
    match = pilot.take()
    done = JobReport(match.job_id, match.attempt, outcome=Outcome.EXITED, exit_code=0)
    assert [match.job_id for match in pilot.request_jobs(reports=[done]).matches] == [second]
    assert grid.job(first).state is JobState.DONE
    assert counts(grid) == [1]


def test_limit_does_not_refuse_readopted_attempt(database: Database, clock: VirtualClock) -> None:
    limit = RunningLimit("CERN", None, None, "owner", "alice", at_most=1)
    grid = Grid(database, clock, rules=Rules(running_limits=(limit,)))
    (lost,) = grid.submit()
    silent = grid.start_pilot()
    match = silent.take()
    clock.advance(minutes=25)
    grid.sweep()
    assert counts(grid) == [0]
    (urgent,) = grid.submit(priority=5)
    assert grid.start_pilot().claim() == [urgent]
    assert match.job_id == lost
    assert silent.start(match).accepted
    assert counts(grid) == [2]


def test_server_start_corrects_wrong_counts(database: Database, clock: VirtualClock) -> None:
    before = Grid(database, clock)
    before.submit(count=3)
    pilot = before.start_pilot()
    matches = pilot.request_jobs(a_slot("a"), a_slot("b")).matches
    limits = tuple(RunningLimit("cern", None, None, "owner", name, at_most=3) for name in ("ALICE", "bob"))
    after = Grid(database, clock, rules=Rules(running_limits=limits))
    assert counts(after) == [0, 0]
    after.write(recount_limits)
    assert counts(after) == [2, 0]
    pilot.grid = after
    pilot.finish(matches[0])
    assert counts(after) == [1, 0]


def test_refresh_notifies_of_room_made_by_another_server(database: Database, clock: VirtualClock) -> None:
    limit = RunningLimit("CERN", None, None, "owner", "alice", 2)
    server = Grid(database, clock, rules=Rules(running_limits=(limit,)))
    server.submit(count=5)
    other = server.restarted()
    pilot = other.start_pilot()
    matches = pilot.request_jobs(a_slot("a"), a_slot("b")).matches
    server.read(refresh_counts)
    notified: list[tuple[str, int]] = []
    server.state.waiting_listeners.append(lambda task_queue, count: notified.append((task_queue.account.owner, count)))
    server.read(refresh_counts)
    assert notified == []
    for match in matches:
        pilot.finish(match)
    server.read(refresh_counts)
    server.read(refresh_counts)
    assert notified == [("alice", 2)]


def test_job_that_another_server_took_leaves_room_below_the_limit(database: Database, clock: VirtualClock) -> None:
    limit = RunningLimit("CERN", None, None, "owner", "alice", at_most=2)
    server = Grid(database, clock, rules=Rules(running_limits=(limit,)))
    (taken,), (job_id,) = server.submit(priority=1), server.submit(request_memory_mib=0)
    assert server.restarted().start_pilot().claim() == [taken]
    assert server.start_pilot().claim() == [job_id]
    assert server.state.matcher.exhausted_total == 1


def test_transaction_overtaken_at_limit_is_retried(postgresql_database: Database, clock: VirtualClock) -> None:
    limit = RunningLimit("CERN", None, None, "owner", "alice", at_most=2)
    grid = Grid(postgresql_database, clock, rules=Rules(running_limits=(limit,)))
    (job,) = grid.submit()
    queue = QueueId.parse(LONG)
    task_queue = grid.state.waiting.task_queue(grid.job(job).task_queue_id)
    assert task_queue is not None
    reached_limits: list[RunningLimit | None] = []

    def match_one(transaction: Transaction) -> None:
        count_matched(transaction, grid.state, queue, [task_queue])

    def match_slowly(transaction: Transaction) -> None:
        reached = limits_at_present(transaction, grid.state, [queue], 1).reached(task_queue.traits)
        reached_limits.append(reached)
        if len(reached_limits) == 1:  # two other transactions commit first
            for _ in range(2):
                postgresql_database.submit_write(match_one).result(30)
        if reached is None:
            match_one(transaction)

    postgresql_database.write(match_slowly)
    assert reached_limits == [None, limit]
    assert counts(grid) == [2]


@pytest.mark.parametrize("values", ["abcdefgh", "hgfedcba"])
@pytest.mark.parametrize("with_new_match", [True, False])
def test_counts_of_limits_are_locked_in_order_of_keys(
    postgresql_database: Database, clock: VirtualClock, values: str, *, with_new_match: bool
) -> None:
    limits = tuple(RunningLimit("CERN", None, None, "Tags", value, at_most=5) for value in values)
    grid = Grid(postgresql_database, clock, rules=Rules(running_limits=limits))
    grid.submit(count=2, attributes={"Tags": tuple(values)})
    match = grid.start_pilot().take()
    queue = QueueId.parse(LONG)
    task_queue = grid.state.waiting.task_queue(grid.job(match.job_id).task_queue_id)
    assert task_queue is not None

    def act(transaction: Transaction) -> None:
        if with_new_match:
            count_matched(transaction, grid.state, queue, [task_queue])
        else:
            limits_at_present(transaction, grid.state, [queue], 5)

    lock = "SELECT key FROM running_counts WHERE key = :key FOR UPDATE NOWAIT"
    run_against_row_locks(postgresql_database, lock, sorted(map(limit_key, limits)), act)
    assert counts(grid) == [1 + with_new_match] * len(values)


LIMITS = (
    RunningLimit("CERN", None, None, "owner", "alice", at_most=2),
    RunningLimit("CERN", "ce01", None, "kind", "mc", at_most=3),
    RunningLimit("CERN", "ce02", "q", "vo", "lhcb", at_most=100),
)
STEPS = ("submit", "request", "finish", "fail", "sweep", "remove", "hold", "release", "end glidein", "start")


class LimitHistory:
    """A grid with limits, and the steps that change it."""

    def __init__(self, database: Database, clock: VirtualClock) -> None:
        self.clock = clock
        self.grid = Grid(database, clock, LONG, "CERN/ce02/q", rules=Rules(running_limits=LIMITS))
        self.pilots = [self.grid.start_pilot(queue) for queue in (LONG, "CERN/ce02/q") for _ in range(2)]
        self.jobs: list[int] = []
        self.matches: list[tuple[Pilot, Match]] = []

    def perform(self, step: str, which: int) -> None:
        """Perform a step on the job, pilot or match that `which` selects."""
        pilot = self.pilots[which % len(self.pilots)]
        match step:
            case "submit":
                kinds: list[Any] = [{}, {"Kind": "MC"}, {"Kind": ("mc", "fast")}]
                user = a_user(("alice", "bob")[which % 2])
                self.jobs += self.grid.submit(user, count=1 + which % 3, attributes=kinds[which % len(kinds)])
            case "request":
                answer = pilot.request_jobs(*(a_slot(f"s{n}") for n in range(1 + which % 3)))
                self.matches += [(pilot, match) for match in answer.matches]
            case "sweep":
                self.clock.advance(minutes=25)
                self.grid.sweep()
            case "end glidein":
                self.grid.glidein_ended(self.pilots.pop(which % len(self.pilots)))
                self.pilots.append(self.grid.start_pilot())
            case "finish" | "fail" | "start" if self.matches:
                self._report(step, which)
            case "remove" | "hold" | "release" if self.jobs:
                self.grid.change(JobChange(step), self.jobs[which % len(self.jobs)])
            case _:
                pass

    def _report(self, step: str, which: int) -> None:
        pilot, match = self.matches[which % len(self.matches)]
        match step:
            case "finish":
                pilot.finish(match)
            case "fail":
                pilot.report(match, Outcome.START_FAILED, reason="no such program")
            case _:
                pilot.start(match)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 30)), max_size=40))
def test_stored_counts_equal_recounted_jobs(steps: list[tuple[str, int]]) -> None:
    clock = VirtualClock()
    with TemporaryDirectory() as folder, quick_sqlite(Path(folder, "pilotage.db"), clock) as database:
        history = LimitHistory(database, clock)
        for step, which in [("submit", 0), ("submit", 1), ("request", 2), *steps]:
            history.perform(step, which)
            assert stored_counts(history.grid) == history.grid.read(fresh_counts)


def stored_counts(grid: Grid) -> dict[RunningLimit, int]:
    """Return the stored counts of the limits at both queues."""
    queues = [QueueId.parse(LONG), QueueId.parse("CERN/ce02/q")]
    return grid.read(lambda transaction, state: running_counts(transaction, state, queues))
