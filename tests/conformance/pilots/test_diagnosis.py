"""The diagnosis of an installation, on every database: tree, queues, agents, pilots, and the database itself."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.values.leadership import AgentStatus, Leadership, ServedQueues
from pilotage_server.core.diagnosis import Finding, FindingLevel
from pilotage_server.operations.attempts.expiry import record_server_life
from pilotage_server.operations.diagnosis import commit_something, diagnose
from pilotage_server.operations.leadership import take_leadership
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.pilots import change_pilots
from support.grid import Grid, a_tree, an_idle_slot
from support.virtual_clock import VirtualClock

LONG, SHORT = "CERN/ce01/long", "CERN/ce01/short"
RELEASE, AWAY = "2.0", "Slurm is away"
QUICK = timedelta(milliseconds=3)


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def findings(grid: Grid, check: str, commit: timedelta = QUICK) -> list[Finding]:
    found = grid.read(lambda transaction, state: diagnose(transaction, state, commit, RELEASE))
    return [each for each in found if each.check == check]


def finding(grid: Grid, check: str, commit: timedelta = QUICK) -> Finding:
    (found,) = findings(grid, check, commit)
    return found


def lead(grid: Grid, *queues: str, version: str = RELEASE, ago: timedelta | None = None, fault: str = "") -> None:
    """Let a site director lead: its last success was so long ago, None = never; `fault` = why a later cycle failed."""
    leadership, length = Leadership("site director", "replica"), timedelta(seconds=30)

    def take(transaction: Transaction, _: ServerState) -> None:
        success = None if ago is None else transaction.now - ago
        status = AgentStatus(version, success, success, len(fault), fault)
        take_leadership(transaction, leadership, length, "host1", ServedQueues(queues), (), status)

    grid.write(take)


def test_queues_without_director_are_one_fault(grid: Grid) -> None:
    grid.put(a_tree(LONG, SHORT, Memory=4000))
    found = finding(grid, "queues")
    assert (found.level, found.text) == (
        FindingLevel.FAULT,
        f"2 queues, such as {LONG}: no site director serves this queue",
    )
    lead(grid)
    assert finding(grid, "queues").level is FindingLevel.OK


@pytest.mark.parametrize(
    ("version", "ago", "fault", "level", "text"),
    [
        (RELEASE, timedelta(seconds=4), "", FindingLevel.OK, "last success 4 s ago"),
        ("", None, "", FindingLevel.OK, "no cycle has succeeded yet"),
        ("1.0", timedelta(seconds=4), "", FindingLevel.WARNING, "is of release 1.0, the server of 2.0"),
        (RELEASE, timedelta(seconds=9), AWAY, FindingLevel.WARNING, f"has failed: {AWAY}"),
        (RELEASE, timedelta(hours=3), AWAY, FindingLevel.FAULT, "last success 3 h ago"),
        (RELEASE, None, AWAY, FindingLevel.FAULT, "no cycle has succeeded yet"),
    ],
)
def test_report_of_an_agent_is_judged(
    grid: Grid, version: str, ago: timedelta | None, fault: str, level: FindingLevel, text: str
) -> None:
    lead(grid, version=version, ago=ago, fault=fault)
    found = finding(grid, "agents")
    assert found.level is level
    assert "site director on host1 leads" in found.text
    assert text in found.text


def test_agent_without_successor_is_a_fault_for_a_week(grid: Grid, clock: VirtualClock) -> None:
    lead(grid)
    clock.advance(timedelta(minutes=1))
    found = finding(grid, "agents")
    assert found.level is FindingLevel.FAULT
    assert found.text.startswith("site director on host1 has stopped at ")
    clock.advance(timedelta(days=8))
    assert findings(grid, "agents") == []


def test_silent_lost_and_old_pilots_are_counted(grid: Grid, clock: VirtualClock) -> None:
    grid.put(a_tree(LONG, Memory=4000))
    one, two = grid.start_pilot(), grid.start_pilot()
    one.show(an_idle_slot("slot1"))
    two.show(an_idle_slot("slot1"))
    assert finding(grid, "pilots") == Finding("pilots", FindingLevel.OK, "2 pilots alive, none silent")

    grid.write(lambda transaction, _: change_pilots(transaction.session, ["p2"], {"release": "1.0"}))
    assert "1 of 1.0" in finding(grid, "pilots").text
    clock.advance(3 * grid.state.rules.heartbeat + timedelta(seconds=20))
    two.show(an_idle_slot("slot1"))
    silent, old = findings(grid, "pilots")
    assert (silent.level, old.level) == (FindingLevel.WARNING, FindingLevel.WARNING)
    assert silent.text.startswith("1 of 2 pilots have not called for ")
    clock.advance(3 * grid.state.rules.heartbeat + timedelta(seconds=20))
    assert findings(grid, "pilots")[0].level is FindingLevel.FAULT


@pytest.mark.parametrize(
    ("commit_s", "level"), [(0.01, FindingLevel.OK), (2, FindingLevel.WARNING), (20, FindingLevel.FAULT)]
)
def test_slow_commits_are_reported(grid: Grid, commit_s: float, level: FindingLevel) -> None:
    found = finding(grid, "database", timedelta(seconds=commit_s))
    assert found.level is level
    assert found.text.endswith(f"a commit takes {commit_s:.3f} s")
    assert finding(grid, "integrity").level is FindingLevel.OK


def test_timed_commit_writes_and_changes_nothing(grid: Grid) -> None:
    grid.write(record_server_life)
    before = grid.read(_server_lives)

    def commit(transaction: Transaction, state: ServerState) -> bool:
        commit_something(transaction, state)
        is_sqlite = sql.is_sqlite(transaction.session)
        written = "total_changes() > 0" if is_sqlite else "pg_current_xact_id_if_assigned() IS NOT NULL"
        return bool(sql.rows(transaction.session, f"SELECT {written}")[0][0])

    assert grid.write(commit)
    assert grid.read(_server_lives) == before


def _server_lives(transaction: Transaction, _: ServerState) -> list[tuple[object, ...]]:
    return [*sql.rows(transaction.session, "SELECT id, last_alive FROM server_life")]
