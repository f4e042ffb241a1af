"""Reports recorded in one batch have the same effect as the same reports recorded one by one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import text

from pilotage.values.attempts import JobHold, Outcome, ReportedOutput, ReportResult
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.record import router_stamp
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.rules import Rules, Sharing
from pilotage_server.operations.attempts.reports import record_reports
from pilotage_server.storage.accounting import load_uses
from pilotage_server.storage.database.engine import Database, closing
from support.database import quick_sqlite, without_fsync
from support.grid import LONG, Grid, Pilot
from support.jobs import a_pilot_identity, recorded_singly
from support.routers import Router
from support.virtual_clock import VirtualClock

RULES = Rules(attempt_limit=2, sharing=Sharing(discount_suspended=True))

ROUTER = router_stamp("job router of sky")
MINUTE_ONE = VirtualClock()() + timedelta(minutes=1)
EQUAL_JOBS = 9
"""The number of running jobs without further differences."""
EVENT = "job_id, time, from_state, to_state, cause, reason, attempt, actor"

Sent = tuple[int, JobReport]
"""The number of the sender and its report; the router's number follows those of the pilots."""
Record = Callable[[Grid, Sequence[Pilot], Sequence[Sent]], list[ReportResult]]


class Effect(NamedTuple):
    """The effect of reports: answers, rows, events by job, use by account in memory and on disk, and waiting jobs."""

    results: list[ReportResult]
    jobs: list[Any]
    attempts: list[Any]
    outputs: list[Any]
    ended_jobs: list[Any]
    events: list[Any]
    used: dict[Any, float]
    charged: dict[Any, float]
    waiting: dict[int, int]


def a_busy_grid(folder: Path) -> tuple[Path, datetime]:
    """Return the file of a database with a job for each state of an attempt, and its time."""
    path, clock = folder / "busy.db", VirtualClock()
    with quick_sqlite(path, clock) as database:
        grid = Grid(database, clock, rules=RULES)
        first, second = grid.start_pilot(), grid.start_pilot()
        grid.submit(count=2, lease=timedelta(minutes=5))
        grid.submit(count=17)
        lost, lost_and_matched, _, *others = [first.take() for _ in range(19)]
        suspended, completing, _, removed, held, done, *rest = others
        for match in (lost, lost_and_matched, *others[:6], *rest[:EQUAL_JOBS]):
            first.start(match)
        first.report(suspended, state=JobState.SUSPENDED)
        first.report(completing, state=JobState.COMPLETING)
        first.finish(done)
        grid.change(JobChange.REMOVE, removed.job_id)
        grid.change(JobChange.HOLD, held.job_id)
        router = Router(grid).begin()
        routed = router.take(*grid.submit(count=5))
        router.start(routed[0])
        grid.pass_time(minutes=6)
        second.start(second.take())
    return path, clock()


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, datetime]:
    return a_busy_grid(tmp_path_factory.mktemp("busy"))


files = st.builds(
    ReportedOutput,
    name=st.sampled_from(["out", "err", "../bad"]),
    checksum=st.sampled_from(["a" * 64, "b" * 64]),
    size=st.just(3),
    truncated=st.booleans(),
    content=st.sampled_from([b"abc", None]),
)


def a_report(fields: dict[str, Any]) -> JobReport:
    """Return a report with these fields and defaults for all others."""
    return sent_by_pilots(JobReport(**fields))


def sent_by_pilots(report: JobReport) -> JobReport:
    """Return the report as pilots send it: exit code and signal come with an outcome only."""
    return report if report.outcome is not None else report._replace(exit_code=None, signal=None)


numbers = st.fixed_dictionaries(
    {
        "job_id": st.integers(1, 24),
        "attempt": st.just(1),
        "state": st.sampled_from([JobState.RUNNING, JobState.COMPLETING]),
        "outcome": st.sampled_from([None, Outcome.EXITED, Outcome.LIMIT_EXCEEDED]),
        "exit_code": st.none() | st.integers(0, 1),
        "started": st.none() | st.just(MINUTE_ONE),
        "wall_s": st.sampled_from([0.0, 60.0, 61.5]),
        "peak_memory_mib": st.integers(0, 2**40),
    }
).map(a_report)
reports = st.builds(
    JobReport,
    job_id=st.integers(1, 24),
    attempt=st.integers(1, 2),
    state=st.sampled_from([JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING]),
    outcome=st.none() | st.sampled_from(Outcome),
    exit_code=st.none() | st.integers(0, 1),
    signal=st.sampled_from([None, 9]),
    reason=st.sampled_from(["", "why", "zero\0"]),
    started=st.none() | st.just(MINUTE_ONE),
    cpu_s=st.floats(0, 1e6),
    wall_s=st.sampled_from([0.0, 60.0, 1e300]),
    suspended_s=st.sampled_from([0.0, 5.0]),
    peak_memory_mib=st.integers(0, 2**40),
    memory_limit_mib=st.integers(0, 2**40),  # bounded as on the wire; a column cannot hold more than 64 bits
    peak_disk_mib=st.integers(0, 2**40),
    ended=st.none(),
    output_files=st.lists(files, max_size=2).map(tuple),
    hold=st.none() | st.builds(JobHold, st.sampled_from(["", "so its slot wants"]), st.integers(0, 3)),
).map(sent_by_pilots)
sent = st.lists(st.tuples(st.integers(0, 2), numbers | reports), min_size=1, max_size=20)


def one_by_one(grid: Grid, pilots: Sequence[Pilot], sent: Sequence[Sent]) -> list[ReportResult]:
    def record(identity: Identity, report: JobReport) -> ReportResult:
        (refusal,) = grid.write(lambda transaction, state: recorded_singly(transaction, state, identity, [report]))
        return ReportResult(report.job_id, report.attempt, refusal)

    return [record(pilots[number].identity, report) for number, report in sent]


def together(grid: Grid, pilots: Sequence[Pilot], sent: Sequence[Sent]) -> list[ReportResult]:
    calls = [(pilots[number].identity, [report]) for number, report in sent]
    return [result for (result,) in grid.write(lambda transaction, state: record_reports(transaction, state, calls))]


def effect_of(record: Record, busy: tuple[Path, datetime], sent: Sequence[Sent]) -> Effect:
    """Return the effect of recording the reports that way."""
    template, time = busy
    path = Path(shutil.copy(template, template.with_name(f"{record.__name__}.db")))
    with closing(without_fsync(Database(f"sqlite:///{path}", VirtualClock(time)))) as database:
        grid = Grid(database, VirtualClock(time), rules=RULES)
        pilots = [Pilot(grid, a_pilot_identity(stamp, LONG)) for stamp in ("p1", "p2", ROUTER)]
        results = record(grid, pilots, sent)

        def rows(query: str) -> list[Any]:
            return grid.read(lambda transaction, _: [tuple(row) for row in transaction.session.execute(text(query))])

        return Effect(
            results,
            rows("SELECT * FROM jobs ORDER BY id"),
            rows("SELECT * FROM attempts ORDER BY job_id, attempt"),
            rows("SELECT * FROM output_files ORDER BY job_id, attempt, name"),
            rows("SELECT stamp, jobs_ended FROM pilots ORDER BY stamp"),
            rows(f"SELECT {EVENT} FROM job_events ORDER BY job_id, id"),
            {account: grid.state.shares.use(account, time).core_s for account in grid.state.shares.accounts()},
            {
                account: use.core_s
                for account, use in grid.read(lambda transaction, _: load_uses(transaction.session)).items()
            },
            {each.task_queue.id: each.count for each in grid.state.waiting.waiting()},
        )


SUSPENDED_REPORT = JobReport(6, 1, state=JobState.SUSPENDED)
DONE_REPORT = JobReport(5, 1, state=JobState.DONE, outcome=Outcome.EXITED, exit_code=0)
ROUTED_JOBS_DONE = [
    (2, DONE_REPORT._replace(job_id=20 + nth, started=MINUTE_ONE if nth > 1 else None)) for nth in range(5)
]
MANY_DONE = [(0, DONE_REPORT._replace(job_id=10 + nth, cpu_s=float(nth), wall_s=60.0)) for nth in range(EQUAL_JOBS)]


@given(sent=sent)
@example(sent=[(0, SUSPENDED_REPORT), (0, DONE_REPORT)])  # both change the use of one account
@example(sent=MANY_DONE)
@example(sent=ROUTED_JOBS_DONE)
def test_batch_of_reports_has_the_effect_of_single_reports(busy: tuple[Path, datetime], sent: Sequence[Sent]) -> None:
    expected, found = effect_of(one_by_one, busy, sent), effect_of(together, busy, sent)
    assert found._replace(used={}, charged={}) == expected._replace(used={}, charged={})
    assert found.used == pytest.approx(expected.used)
    assert found.charged == pytest.approx(expected.charged)
