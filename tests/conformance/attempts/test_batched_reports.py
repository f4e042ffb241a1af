"""Batched reports leave what the same reports leave one by one, on every database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from pilotage.values.attempts import Outcome
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.matching.work import Match
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from support.grid import Grid, Pilot
from support.jobs import a_user, recorded_in_batches, recorded_singly
from support.virtual_clock import START, VirtualClock

Record = Callable[[Transaction, ServerState, Identity, Sequence[JobReport]], Any]

ALIKE = 9
"""So many jobs get the same report; it is more than a block of rows that SQLite changes at once."""
BEGAN = START + timedelta(seconds=90)
SAID = {
    "started": {"state": JobState.RUNNING, "started": BEGAN},
    "started at a time not told": {"state": JobState.RUNNING},
    "done": {"outcome": Outcome.EXITED, "exit_code": 0, "wall_s": 60.0, "suspended_s": 0.25, "cpu_s": 50.5},
    "failed": {"outcome": Outcome.EXITED, "exit_code": 3, "started": BEGAN, "wall_s": 1e9},
    "killed by a signal": {"outcome": Outcome.EXITED, "signal": 9},
    "over a limit": {"outcome": Outcome.LIMIT_EXCEEDED, "exit_code": 0},
}
LEFT_OF_JOBS = """
    SELECT state, reason, attempt, lease_until, exit_code, signal, started, ended, state_since, starts, wall_clock_s
    FROM jobs WHERE owner = :owner ORDER BY id
"""
LEFT_OF_ATTEMPTS = """
    SELECT started, ended, metered, reported, outcome, reason, exit_code, signal, cpu_s, wall_s, suspended_s,
        peak_memory_mib
    FROM attempts WHERE charged_owner = :owner ORDER BY job_id
"""
LEFT_OF_EVENTS = """
    SELECT time, from_state, to_state, cause, job_events.reason, job_events.attempt, actor
    FROM job_events JOIN jobs ON jobs.id = job_id WHERE owner = :owner AND actor <> owner ORDER BY job_id, job_events.id
"""


def left(grid: Grid, owner: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return what reports have left of the jobs of an owner."""

    def read(transaction: Transaction, _: ServerState) -> dict[str, list[tuple[Any, ...]]]:
        asked = (LEFT_OF_JOBS, LEFT_OF_ATTEMPTS, LEFT_OF_EVENTS, "SELECT core_s FROM usage WHERE owner = :owner")
        return {
            query: [tuple(row) for row in transaction.session.execute(text(query), {"owner": owner})] for query in asked
        }

    return grid.read(read)


def record(grid: Grid, pilot: Pilot, how: Record, given: Sequence[Match], said: dict[str, Any]) -> Any:
    """Let the pilot say the same of all these attempts, but for small differences."""
    peaks = range(2**40, 2**40 + len(given))
    reports = [
        JobReport(match.job_id, match.attempt, peak_memory_mib=peak, **said)
        for match, peak in zip(given, peaks, strict=True)
    ]
    return grid.write(lambda transaction, state: how(transaction, state, pilot.identity, reports))


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
def test_batches_leave_what_single_reports_leave(
    database: Database, clock: VirtualClock, said: dict[str, Any], running: bool
) -> None:
    grid = Grid(database, clock)
    pilot = grid.start_pilot()
    given: dict[str, list[Match]] = {}
    for owner in ("ann", "bob"):
        grid.submit(a_user(owner), count=ALIKE)
        given[owner] = [pilot.take() for _ in range(ALIKE)]
    clock.advance(minutes=1)
    for match in (*given["ann"], *given["bob"]) if running else ():
        pilot.start(match)
    clock.advance(minutes=9)
    assert record(grid, pilot, recorded_singly, given["ann"], said) == [""] * ALIKE
    assert record(grid, pilot, recorded_in_batches, given["bob"], said) == set(range(ALIKE))
    singly, batched = left(grid, "ann"), left(grid, "bob")
    assert batched == singly
    assert len(singly[LEFT_OF_JOBS]) == ALIKE


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
