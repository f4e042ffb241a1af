"""Heartbeats and reports of one transaction have the effect of single ones, on every database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey, Outcome
from pilotage_server.core.attempts.reports import JobReport, NodeState
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.attempts.heartbeats import HeartbeatAnswer, ReceivedHeartbeat, report_states
from pilotage_server.operations.matching.work import Match
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from support.grid import Grid, Pilot
from support.jobs import a_user, recorded_in_batches, recorded_singly
from support.virtual_clock import START, VirtualClock

Record = Callable[[Transaction, ServerState, Identity, Sequence[JobReport]], Any]

COUNT = 9
"""The number of equal reports; more than the rows that SQLite changes in one statement."""
BEGAN = START + timedelta(seconds=90)
REPORTS = {
    "started": {"state": JobState.RUNNING, "started": BEGAN},
    "started without a time": {"state": JobState.RUNNING},
    "done": {"outcome": Outcome.EXITED, "exit_code": 0, "wall_s": 60.0, "suspended_s": 0.25, "cpu_s": 50.5},
    "failed": {"outcome": Outcome.EXITED, "exit_code": 3, "started": BEGAN, "wall_s": 1e9},
    "killed by a signal": {"outcome": Outcome.EXITED, "signal": 9},
    "over a limit": {"outcome": Outcome.LIMIT_EXCEEDED, "exit_code": 0},
}
JOBS_QUERY = """
    SELECT state, reason, attempt, lease_until, exit_code, signal, started, ended, state_since, starts, wall_clock_s
    FROM jobs WHERE owner = :owner ORDER BY id
"""
ATTEMPTS_QUERY = """
    SELECT started, ended, metered, reported, outcome, reason, exit_code, signal, cpu_s, wall_s, suspended_s,
        peak_memory_mib, system_cpu_s, peak_disk_mib
    FROM attempts WHERE charged_owner = :owner ORDER BY job_id
"""
EVENTS_QUERY = """
    SELECT time, from_state, to_state, cause, job_events.reason, job_events.attempt, actor
    FROM job_events JOIN jobs ON jobs.id = job_id WHERE owner = :owner AND actor <> owner ORDER BY job_id, job_events.id
"""

SUMS_QUERY = """
    SELECT day, site, done, failed, interrupted, done_core_s, failed_core_s, interrupted_core_s, cpu_s, gpu_s
    FROM daily_usage WHERE owner = :owner
"""


def state_after(grid: Grid, owner: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of an owner's jobs, attempts, events and use."""

    def read(transaction: Transaction, _: ServerState) -> dict[str, list[tuple[Any, ...]]]:
        queries = (
            JOBS_QUERY,
            ATTEMPTS_QUERY,
            EVENTS_QUERY,
            "SELECT core_s FROM usage WHERE owner = :owner",
            SUMS_QUERY,
        )
        return {
            query: [tuple(row) for row in transaction.session.execute(text(query), {"owner": owner})]
            for query in queries
        }

    return grid.read(read)


def report_all(grid: Grid, pilot: Pilot, record: Record, matches: Sequence[Match], report: dict[str, Any]) -> Any:
    """Report equal values for all these attempts; only the peak memory differs."""
    peaks = range(2**40, 2**40 + len(matches))
    reports = [
        JobReport(match.job_id, match.attempt, peak_memory_mib=peak, **report)
        for match, peak in zip(matches, peaks, strict=True)
    ]
    return grid.write(lambda transaction, state: record(transaction, state, pilot.identity, reports))


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_batched_reports_have_effect_of_single_reports(
    database: Database, clock: VirtualClock, report: dict[str, Any], running: bool
) -> None:
    grid = Grid(database, clock)
    pilot = grid.start_pilot()
    matches: dict[str, list[Match]] = {}
    for owner in ("ann", "bob"):
        grid.submit(a_user(owner), count=COUNT)
        matches[owner] = [pilot.take() for _ in range(COUNT)]
    clock.advance(minutes=1)
    for match in (*matches["ann"], *matches["bob"]) if running else ():
        pilot.start(match)
    clock.advance(minutes=9)
    assert report_all(grid, pilot, recorded_singly, matches["ann"], report) == [""] * COUNT
    assert report_all(grid, pilot, recorded_in_batches, matches["bob"], report) == set(range(COUNT))
    singly, batched = state_after(grid, "ann"), state_after(grid, "bob")
    assert batched == singly
    assert len(singly[JOBS_QUERY]) == COUNT


def test_unusual_reports_are_not_batched(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    pilot, other = grid.start_pilot(), grid.start_pilot()
    grid.submit(count=6)
    mine, paused, lost, taken, evicted, twice = [pilot.take() for _ in range(6)]
    pilot.start(paused)
    pilot.report(paused, state=JobState.SUSPENDED)
    pilot.report(lost, Outcome.EVICTED)
    done: dict[str, Any] = {"outcome": Outcome.EXITED, "exit_code": 0}
    reports = [
        JobReport(mine.job_id, 1, reason="why", **done),
        JobReport(paused.job_id, 1, **done),
        JobReport(lost.job_id, 1, **done),
        JobReport(taken.job_id, 2, **done),
        JobReport(evicted.job_id, 1, outcome=Outcome.EVICTED),
        JobReport(twice.job_id, 1, state=JobState.RUNNING),
        JobReport(twice.job_id, 1, **done),
    ]
    assert (
        grid.write(lambda transaction, state: recorded_in_batches(transaction, state, pilot.identity, reports)) == set()
    )
    by_other = [JobReport(mine.job_id, 1, **done)]
    assert (
        grid.write(lambda transaction, state: recorded_in_batches(transaction, state, other.identity, by_other))
        == set()
    )


def beat(grid: Grid, *beats: tuple[Pilot, ReceivedHeartbeat]) -> list[HeartbeatAnswer]:
    """Record the heartbeats in one transaction."""
    calls = [(pilot.identity, heartbeat) for pilot, heartbeat in beats]
    return grid.write(lambda transaction, state: report_states(transaction, state, calls))


def renewed(answer: HeartbeatAnswer) -> list[int]:
    """Return the ids of the jobs whose leases are renewed."""
    return [lease.job_id for lease in answer.renewed]


def test_each_pilot_gets_answer_for_its_own_leases(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    pilots = [grid.start_pilot() for _ in range(3)]
    jobs = grid.submit(count=3)
    for pilot in pilots:
        pilot.start(pilot.take())
    clock.advance(minutes=5)
    end = JobReport(jobs[1], 1, outcome=Outcome.EXITED, exit_code=0)
    stays, ends, leaves = beat(
        grid,
        (pilots[0], ReceivedHeartbeat(tuple(pilots[0].held), node=NodeState("n1", Amounts(8)))),
        (pilots[1], ReceivedHeartbeat(reports=(end,))),
        (pilots[2], ReceivedHeartbeat(tuple(pilots[2].held), ending=True, ending_reason="its node goes down")),
    )
    assert renewed(stays) == [jobs[0]]
    assert not stays.node_wanted
    assert ends.results[0].accepted
    assert ends.node_wanted
    assert not renewed(leaves)
    assert "its node goes down" in leaves.lost[0].reason
    states = [job.state for job in grid.jobs(jobs).values()]
    assert states == [JobState.RUNNING, JobState.DONE, JobState.WAITING]
    assert grid.job(jobs[0]).lease_until == clock() + timedelta(minutes=20)


def test_each_lease_is_renewed_for_its_own_length(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    first, second = grid.start_pilot(), grid.start_pilot()
    (usual,), (short,) = grid.submit(), grid.submit(lease=timedelta(minutes=8))
    first.take()
    second.take()
    beat(grid, (first, ReceivedHeartbeat(tuple(first.held))), (second, ReceivedHeartbeat(tuple(second.held))))
    lease_ends = {job_id: job.lease_until for job_id, job in grid.jobs([usual, short]).items()}
    assert lease_ends == {usual: clock() + timedelta(minutes=20), short: clock() + timedelta(minutes=8)}


def test_batch_readopts_one_attempt_and_renews_another(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    silent, other = grid.start_pilot(), grid.start_pilot()
    (lost,) = grid.submit(lease=timedelta(minutes=1))
    silent.start(silent.take())
    (kept,) = grid.submit()
    other.start(other.take())
    assert grid.pass_time(minutes=2).jobs == (lost,)
    answers = beat(grid, (silent, ReceivedHeartbeat(tuple(silent.held))), (other, ReceivedHeartbeat(tuple(other.held))))
    assert [renewed(answer) for answer in answers] == [[lost], [kept]]
    assert grid.job(lost).state is JobState.RUNNING


def test_two_heartbeats_of_one_pilot_apply_in_order(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    pilot = grid.start_pilot()
    (job_id,) = grid.submit()
    held = AttemptKey(job_id, 1)
    pilot.take()
    started = ReceivedHeartbeat((held,), (JobReport(job_id, 1, state=JobState.RUNNING),))
    ended = ReceivedHeartbeat(reports=(JobReport(job_id, 1, outcome=Outcome.EXITED, exit_code=0),))
    first, second, late = beat(grid, (pilot, started), (pilot, ended), (pilot, ReceivedHeartbeat((held,))))
    assert renewed(first) == [job_id]
    assert second.results[0].accepted
    assert not renewed(late)
    assert grid.job(job_id).state is JobState.DONE
