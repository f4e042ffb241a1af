"""The trace of a submission stays that of its jobs, whatever becomes of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pilotage.job_description import JobDescription
from pilotage.telemetry import TraceContext, new_trace, trace_bound
from pilotage.values.attempts import Outcome
from pilotage_server.operations.jobs.edit import edit_job
from pilotage_server.storage.database.engine import Database
from support.grid import Grid, a_slot, a_tree
from support.jobs import a_user
from support.races import REPEATABLE, start_copy
from support.virtual_clock import VirtualClock

SUBMISSION = TraceContext("ab" * 16, "cd" * 8, sampled=True)


def nothing(_grid: Grid, _job_id: int) -> None:
    return


def edit(grid: Grid, job_id: int) -> None:
    wanted = JobDescription("/bin/false", request_memory_mib=100)
    grid.write(lambda transaction, state: edit_job(transaction, state, a_user(), job_id, wanted))


def exceed_memory(grid: Grid, _job_id: int) -> None:
    pilot = grid.start_pilot()
    match = pilot.take(a_slot(memory_mib=100))
    pilot.start(match)
    pilot.report(match, Outcome.LIMIT_EXCEEDED, signal=15, memory_limit_mib=100)


def race(grid: Grid, job_id: int) -> None:
    pilot = grid.start_pilot("CERN/ce01/long")
    pilot.start(pilot.take(a_slot(memory_mib=100)))
    assert start_copy(grid, job_id).copy_id


@pytest.mark.parametrize("change", [nothing, edit, exceed_memory, race])
def test_match_has_the_trace_of_the_submission(
    database: Database, clock: VirtualClock, change: Callable[[Grid, int], None]
) -> None:
    grid = Grid(database, clock)
    grid.put(a_tree("CERN/ce01/long", "RAL/ce01/long", Memory=300))
    with trace_bound(SUBMISSION):
        (job,) = grid.submit(request_memory_mib=100, retry_memory=2.0, attributes=REPEATABLE)
    with trace_bound(new_trace()):
        change(grid, job)
    assert grid.start_pilot("RAL/ce01/long").take(a_slot(memory_mib=300)).terms.traceparent == str(SUBMISSION)
