"""Charged use: slot weights, suspended time, accounting groups, and the same result after a restart."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilotage.values.accounts import Account
from pilotage.values.attempts import AttemptKey, Outcome
from pilotage_server.core.accounting.fair_share import Use, accrued, decay
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.rules import Rules, Sharing
from pilotage_server.core.submission.submit_policy import SubmitPolicy, SubmitTransform
from pilotage_server.operations.matching.work import Match
from pilotage_server.storage.attempts import load_history
from pilotage_server.storage.database.engine import Database
from support.database import quick_sqlite
from support.grid import Grid, Pilot, a_slot
from support.jobs import a_user
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

DISCOUNTED = Rules(sharing=Sharing(discount_suspended=True), lease=timedelta(days=2))
CHARGED = Rules(lease=timedelta(days=2))
HALF_LIFE = timedelta(days=1)
ALICE = Account("lhcb", "users", "alice")


def use_of(grid: Grid, account: Account = ALICE) -> Use:
    """Return an account's decayed use at the present time."""
    return grid.state.shares.use(account, grid.clock())


def assert_restart_keeps_use(grid: Grid, account: Account = ALICE) -> None:
    before, after = use_of(grid, account), use_of(grid.restarted(), account)
    assert after.core_s == pytest.approx(before.core_s, rel=1e-9, abs=1e-6)
    assert after.cores == pytest.approx(before.cores)
    assert after.runs == before.runs


def start_job(grid: Grid, cpus: int = 2) -> tuple[Pilot, Match]:
    """Start a job on a new pilot."""
    grid.submit(a_user(), request_cpus=cpus)
    pilot = grid.start_pilot()
    match = pilot.take(a_slot(cpus=cpus))
    pilot.start(match)
    return pilot, match


def suspend(pilot: Pilot, match: Match) -> None:
    assert pilot.report(match, state=JobState.SUSPENDED).accepted


def resume(pilot: Pilot, match: Match) -> None:
    assert pilot.report(match, state=JobState.RUNNING).accepted


def test_charge_starts_at_match_with_slot_weight(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=CHARGED)
    (job_id,) = grid.submit(a_user(), request_cpus=2)
    ad = "[ Cpus = 8; Memory = 16000; SlotWeight = Cpus * 1.5 ]"
    match = grid.start_pilot().take(a_slot(cpus=8, partitionable=True, ad_changes=ad))
    assert use_of(grid).cores == 3
    (attempt,) = grid.read(lambda transaction, _: load_history(transaction.session, job_id))
    assert (attempt.cpus, attempt.weight, match.terms.amounts.cpus) == (2, 3.0, 2)
    grid.pass_time(hours=1)
    assert use_of(grid).core_s == pytest.approx(accrued(3, 3600, HALF_LIFE))
    assert_restart_keeps_use(grid)


def test_restarted_server_charges_running_jobs_until_they_end(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=CHARGED)
    (pilot, first), (other, last) = start_job(grid), start_job(grid, cpus=1)
    assert_restart_keeps_use(grid)
    restarted = grid.restarted()
    pilot.grid = other.grid = restarted
    pilot.finish(first)
    assert (use_of(restarted).cores, use_of(restarted).runs) == (1, 1)
    other.finish(last)
    assert (use_of(restarted).cores, use_of(restarted).runs) == (0, 0)


@pytest.mark.parametrize(("rules", "charged_hours"), [(CHARGED, 3), (DISCOUNTED, 2)])
def test_suspended_time_is_charged_unless_discounted(
    database: Database, clock: VirtualClock, rules: Rules, charged_hours: int
) -> None:
    grid = Grid(database, clock, rules=rules)
    pilot, match = start_job(grid)
    grid.pass_time(hours=1)
    suspend(pilot, match)
    assert use_of(grid).cores == (2 if charged_hours == 3 else 0)
    assert_restart_keeps_use(grid)
    grid.pass_time(hours=1)
    assert_restart_keeps_use(grid)
    resume(pilot, match)
    assert use_of(grid).cores == 2
    grid.pass_time(hours=1)
    pilot.finish(match)
    first = accrued(2, 3600, HALF_LIFE) * decay(7200, HALF_LIFE) + accrued(2, 3600, HALF_LIFE)
    expected = accrued(2, 3 * 3600, HALF_LIFE) if charged_hours == 3 else first
    assert use_of(grid).core_s == pytest.approx(expected)
    assert use_of(grid).runs == 0
    assert_restart_keeps_use(grid)


def test_evicting_suspended_job_ends_its_charge(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=DISCOUNTED)
    pilot, match = start_job(grid)
    suspend(pilot, match)
    grid.pass_time(hours=5)
    pilot.report(match, Outcome.EVICTED)
    assert use_of(grid) == Use(0.0, grid.clock(), 0.0, 0)
    assert_restart_keeps_use(grid)


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.SUSPENDED])
def test_readopted_attempt_is_charged_without_gap(database: Database, clock: VirtualClock, state: JobState) -> None:
    grid = Grid(database, clock, rules=Rules(sharing=Sharing(discount_suspended=True)))
    pilot, match = start_job(grid)
    grid.pass_time(hours=2)
    assert grid.job(match.job_id).state is JobState.WAITING
    grid.pass_time(hours=1)
    pilot.report(AttemptKey(match.job_id, match.attempt), state=state)
    assert use_of(grid).core_s == pytest.approx(accrued(2, 3 * 3600, HALF_LIFE))
    assert use_of(grid).cores == (2 if state is JobState.RUNNING else 0)
    assert_restart_keeps_use(grid)


STEPS = st.lists(st.tuples(st.sampled_from(["suspend", "resume"]), st.integers(1, 600)), max_size=6)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_only_running_time_between_suspensions_is_charged(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    folder: Path = tmp_path_factory.mktemp("grid")
    clock = VirtualClock()
    with quick_sqlite(folder / "pilotage.db", clock) as database:
        grid = Grid(database, clock, rules=DISCOUNTED)
        pilot, match = start_job(grid)
        expected, runs = 0.0, True
        for step, minutes in [("resume", 1), *steps]:
            (suspend if step == "suspend" else resume)(pilot, match)
            runs = step == "resume"
            grid.pass_time(minutes=minutes)
            expected = expected * decay(minutes * 60, HALF_LIFE) + accrued(2 * runs, minutes * 60, HALF_LIFE)
            assert use_of(grid).core_s == pytest.approx(expected)
        assert_restart_keeps_use(grid)
        pilot.finish(match)
        assert use_of(grid).core_s == pytest.approx(expected)
        assert_restart_keeps_use(grid)


BY_WIDTH = SubmitPolicy(
    (SubmitTransform("AccountingGroup", 'strcat("wide.", ifThenElse(RequestCpus > 1, "multi", "single"), ".", Owner)'),)
)


def test_accounting_group_is_charged_while_owner_keeps_job(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=Rules(submission=BY_WIDTH, lease=timedelta(days=2)))
    pilot, match = start_job(grid, cpus=4)
    charged = Account("lhcb", "wide", "multi.alice")
    grid.pass_time(hours=1)
    assert (use_of(grid, charged).cores, use_of(grid).runs) == (4, 0)
    assert (grid.job(match.job_id).owner, match.owner, match.group) == ("alice", "alice", "users")
    (attempt,) = grid.read(lambda transaction, _: load_history(transaction.session, match.job_id))
    assert (attempt.account, attempt.weight) == (charged, 4.0)
    pilot.finish(match)
    assert use_of(grid, charged).core_s == pytest.approx(accrued(4, 3600, HALF_LIFE))
    assert_restart_keeps_use(grid, charged)


def test_charged_account_decides_matching_order(database: Database, clock: VirtualClock) -> None:
    sharing = Sharing(priority_factor=1000, priority_factors={Account("lhcb", "wide", "multi.alice"): 1})
    grid = Grid(database, clock, rules=Rules(submission=BY_WIDTH, sharing=sharing))
    (single,) = grid.submit(a_user(), request_cpus=1)
    (multi,) = grid.submit(a_user(), request_cpus=8)
    pilot = grid.start_pilot()
    assert pilot.claim(a_slot(cpus=8, partitionable=True)) == [multi]
    assert pilot.claim(a_slot(cpus=8, partitionable=True)) == [single]
