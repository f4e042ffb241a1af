"""Leader election among the replicas of an agent, in the database: at most one replica may act."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from sqlalchemy import text

from pilotage.errors import LeadershipLostError, WorldError
from pilotage.values.leadership import AgentStatus, Leadership, LeadershipAnswer
from pilotage_server.core.leadership import LONGEST_BACK_OFF, AgentState
from pilotage_server.operations.leadership import list_agents, lock_leadership, release_leadership, take_leadership
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.leadership import delete_replicas
from support.virtual_clock import VirtualClock

LENGTH = timedelta(seconds=30)
AGENT = "drain controller of */*/*"
A, B = Leadership(AGENT, "a"), Leadership(AGENT, "b")


def take(database: Database, leadership: Leadership) -> LeadershipAnswer:
    return database.write(
        lambda transaction: take_leadership(transaction, leadership, LENGTH, f"host of {leadership.holder}")
    )


def release(database: Database, leadership: Leadership) -> None:
    database.write(lambda transaction: release_leadership(transaction, leadership))


def may_act(database: Database, leadership: Leadership | None) -> bool:
    try:
        database.write(lambda transaction: lock_leadership(transaction, leadership))
    except LeadershipLostError:
        return False
    return True


def test_first_replica_leads_and_others_get_its_host(database: Database, clock: VirtualClock) -> None:
    assert take(database, A) == LeadershipAnswer(True, "host of a", LENGTH)
    clock.advance(seconds=10)
    assert take(database, B) == LeadershipAnswer(False, "host of a", timedelta(seconds=20))
    assert may_act(database, A)
    assert not may_act(database, B)


def test_leader_that_renews_in_time_stays_leader(database: Database, clock: VirtualClock) -> None:
    for _ in range(5):
        assert take(database, A).granted
        clock.advance(seconds=20)
        assert not take(database, B).granted


def test_expired_leadership_goes_to_next_replica(database: Database, clock: VirtualClock) -> None:
    take(database, A)
    clock.advance(LENGTH)
    assert not may_act(database, A), "it has expired, though no replica has taken it yet"
    assert take(database, B).granted
    assert not take(database, A).granted
    assert not may_act(database, A)


def test_released_leadership_is_free_at_once(database: Database) -> None:
    take(database, A)
    release(database, A)
    assert not may_act(database, A)
    assert take(database, B).granted


def test_replica_cannot_release_leadership_of_another(database: Database) -> None:
    take(database, A)
    release(database, B)
    assert may_act(database, A)


def test_agents_of_different_names_lead_independently(database: Database) -> None:
    assert take(database, A).granted
    assert take(database, Leadership("pool cleanup", "b")).granted


def test_caller_that_is_no_agent_needs_no_leadership(database: Database) -> None:
    take(database, A)
    assert may_act(database, None)


@pytest.mark.parametrize("is_expired", [False, True])
def test_one_of_concurrent_replicas_becomes_leader(database: Database, clock: VirtualClock, is_expired: bool) -> None:
    replicas = 8
    if is_expired:
        take(database, A)
        clock.advance(LENGTH)
    start = Barrier(replicas)

    def try_to_lead(number: int) -> bool:
        start.wait()
        return take(database, Leadership(AGENT, f"replica {number}")).granted

    with ThreadPoolExecutor(replicas) as threads:
        assert sum(threads.map(try_to_lead, range(replicas))) == 1


def test_changes_of_leader_are_committed_before_next_leader(postgresql_database: Database, clock: VirtualClock) -> None:
    def take_with_short_timeout(transaction: Transaction) -> LeadershipAnswer:
        transaction.session.execute(text("SET LOCAL lock_timeout = '10ms'"))
        return take_leadership(transaction, B, LENGTH, "host of b")

    def act_past_expiry(transaction: Transaction) -> None:
        lock_leadership(transaction, A)
        clock.advance(LENGTH)
        with pytest.raises(WorldError, match="lock timeout"):
            postgresql_database.write(take_with_short_timeout)

    take(postgresql_database, A)
    postgresql_database.write(act_past_expiry)
    assert postgresql_database.write(take_with_short_timeout).granted


def listed(database: Database) -> dict[str, AgentState]:
    return {
        replica.leadership.holder: state
        for replica, state in database.read(lambda transaction: list_agents(transaction))
    }


def test_replicas_are_listed_until_their_retention_is_over(database: Database, clock: VirtualClock) -> None:
    take(database, A)
    take(database, B)
    assert listed(database) == {"a": AgentState.LEADER, "b": AgentState.STANDBY}
    release(database, A)
    clock.advance(LENGTH)
    assert listed(database) == {"b": AgentState.SILENT, "a": AgentState.ENDED}
    take(database, A)
    assert listed(database)["a"] is AgentState.LEADER, "it has been started again"
    kept = timedelta(days=3)
    assert database.write(lambda transaction: delete_replicas(transaction.session, transaction.now - kept)) == 0
    clock.advance(kept + 2 * LENGTH)
    assert database.write(lambda transaction: delete_replicas(transaction.session, transaction.now - kept)) == 2
    assert listed(database) == {}


def test_failing_agent_is_not_silent_during_its_back_off(database: Database, clock: VirtualClock) -> None:
    status = AgentStatus("1.0", clock(), None, 7, "the batch system does not answer", clock())
    database.write(lambda transaction: take_leadership(transaction, A, LENGTH, "here", status=status))
    clock.advance(LENGTH)
    assert listed(database) == {"a": AgentState.STANDBY}
    ((replica, _),) = database.read(lambda transaction: list_agents(transaction))
    assert replica.status == status
    clock.advance(LONGEST_BACK_OFF)
    assert listed(database) == {"a": AgentState.SILENT}
