"""Copies of an agent take turns in the database: one has it, the next when that one is gone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from sqlalchemy import text

from pilotage.errors import LeadershipLostError, WorldError
from pilotage.values.leadership import Leadership, LeadershipAnswer
from pilotage_server.operations.leadership import lock_leadership, release_leadership, take_leadership
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from support.virtual_clock import VirtualClock

LENGTH = timedelta(seconds=30)
AGENT = "drain controller of */*/*"
A, B = Leadership(AGENT, "a"), Leadership(AGENT, "b")


def take(database: Database, turn: Leadership) -> LeadershipAnswer:
    return database.write(lambda transaction: take_leadership(transaction, turn, LENGTH, f"host of {turn.holder}"))


def give_back(database: Database, turn: Leadership) -> None:
    database.write(lambda transaction: release_leadership(transaction, turn))


def may_act(database: Database, turn: Leadership | None) -> bool:
    try:
        database.write(lambda transaction: lock_leadership(transaction, turn))
    except LeadershipLostError:
        return False
    return True


def test_the_first_copy_that_asks_has_the_turn_and_the_others_hear_who_has_it(
    database: Database, clock: VirtualClock
) -> None:
    assert take(database, A) == LeadershipAnswer(True, "host of a", LENGTH)
    clock.advance(seconds=10)
    assert take(database, B) == LeadershipAnswer(False, "host of a", timedelta(seconds=20))
    assert may_act(database, A)
    assert not may_act(database, B)


def test_a_copy_that_asks_in_time_keeps_its_turn(database: Database, clock: VirtualClock) -> None:
    for _ in range(5):
        assert take(database, A).granted
        clock.advance(seconds=20)
        assert not take(database, B).granted


def test_the_turn_of_a_copy_that_is_silent_goes_to_the_next_and_is_not_won_back(
    database: Database, clock: VirtualClock
) -> None:
    take(database, A)
    clock.advance(LENGTH)
    assert not may_act(database, A), "it is over, though nobody has taken it yet"
    assert take(database, B).granted
    assert not take(database, A).granted
    assert not may_act(database, A)


def test_a_turn_that_is_given_back_is_free_at_once(database: Database) -> None:
    take(database, A)
    give_back(database, A)
    assert not may_act(database, A)
    assert take(database, B).granted


def test_a_copy_gives_back_no_turn_but_its_own(database: Database) -> None:
    take(database, A)
    give_back(database, B)
    assert may_act(database, A)


def test_agents_of_different_names_have_their_turns_beside_each_other(database: Database) -> None:
    assert take(database, A).granted
    assert take(database, Leadership("pool cleanup", "b")).granted


def test_who_is_no_copy_of_an_agent_needs_no_turn(database: Database) -> None:
    take(database, A)
    assert may_act(database, None)


@pytest.mark.parametrize("is_over", [False, True])
def test_of_copies_that_ask_at_once_one_has_the_turn(database: Database, clock: VirtualClock, is_over: bool) -> None:
    copies = 8
    if is_over:
        take(database, A)
        clock.advance(LENGTH)
    start = Barrier(copies)

    def ask(number: int) -> bool:
        start.wait()
        return take(database, Leadership(AGENT, f"copy {number}")).granted

    with ThreadPoolExecutor(copies) as threads:
        assert sum(threads.map(ask, range(copies))) == 1


def test_what_a_copy_changes_in_its_turn_is_on_disk_before_another_has_the_turn(
    postgresql_database: Database, clock: VirtualClock
) -> None:
    def take_in_haste(transaction: Transaction) -> LeadershipAnswer:
        transaction.session.execute(text("SET LOCAL lock_timeout = '10ms'"))
        return take_leadership(transaction, B, LENGTH, "host of b")

    def act_for_long(transaction: Transaction) -> None:
        lock_leadership(transaction, A)
        clock.advance(LENGTH)
        with pytest.raises(WorldError, match="lock timeout"):
            postgresql_database.write(take_in_haste)

    take(postgresql_database, A)
    postgresql_database.write(act_for_long)
    assert postgresql_database.write(take_in_haste).granted
