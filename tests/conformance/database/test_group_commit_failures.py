"""Transactions in groups when something goes wrong: who fails and what has happened, on every database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from structlog.testing import capture_logs

from pilotage.errors import NotFoundError, PilotageError
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from support.pool_bench import BANS, WAIT_S, Bans, LastActs, ban, ban_by_statement, banned, held, outcomes


def test_when_a_batch_breaks_nothing_of_the_group_has_happened_and_every_item_runs_again_by_itself(
    database: Database,
) -> None:
    batch = Bans()
    with held(database):
        futures = [database.submit_batch(batch, site) for site in ("A", "broken", "B")]
    assert outcomes(futures) == ["A", "LookupError", "B"]
    assert batch.calls[0] == ["A", "broken", "B"]
    assert batch.undone == ["A", "broken", "B", "broken"]
    assert database.read(banned) == ["A", "B"]


def test_a_row_that_the_database_refuses_fails_its_own_item_only(database: Database) -> None:
    batch = Bans()
    with held(database):
        futures = [database.submit_batch(batch, site) for site in ("A", "null", "B")]
    assert outcomes(futures) == ["A", IntegrityError.__name__, "B"]
    assert database.read(banned) == ["A", "B"]


def test_an_item_that_others_are_always_quicker_than_fails_by_itself(database: Database) -> None:
    batch = Bans()
    with held(database):
        futures = [database.submit_batch(batch, site) for site in ("A", "overtaken", "B")]
    assert outcomes(futures) == ["A", "WriteConflictError", "B"]
    assert database.read(banned) == ["A", "B"]


def test_an_operation_that_fails_takes_nothing_of_its_neighbours_with_it(database: Database) -> None:
    told: list[str] = []

    def operation(transaction: Transaction, site: str) -> str:
        transaction.deferred(LastActs, LastActs).sites.append(site)
        transaction.after_commit(lambda: told.append(f"{site} kept"))
        transaction.on_rollback(lambda: told.append(f"{site} undone"))
        if site == "B":
            raise NotFoundError("site", site)
        return site

    with held(database):
        futures = [database.submit_write(lambda transaction, site=site: operation(transaction, site)) for site in "ABC"]  # type: ignore[misc]
    assert outcomes(futures) == ["A", "NotFoundError", "C"]
    assert sorted(database.read(banned)) == ["A", "C"]
    assert sorted(told) == ["A kept", "B undone", "C kept"]


@pytest.mark.parametrize("ways", [(ban, ban), (ban_by_statement, ban_by_statement), (ban_by_statement, ban)])
def test_an_operation_that_fails_leaves_nothing_in_whatever_way_it_has_written(
    database: Database, ways: Sequence[Callable[[Transaction, str], str]]
) -> None:
    def fail(transaction: Transaction) -> str:
        for way in ways:
            way(transaction, "X")
        raise NotFoundError("site", "X")

    with held(database):
        futures = [
            database.submit_write(work) for work in (lambda transaction: ban_by_statement(transaction, "A"), fail)
        ]
        futures.append(database.submit_write(lambda transaction: ban_by_statement(transaction, "B")))
    assert outcomes(futures) == ["A", "NotFoundError", "B"]
    assert sorted(database.read(banned)) == ["A", "B"]


def test_an_operation_that_breaks_unexpectedly_breaks_alone(database: Database) -> None:
    def broken(transaction: Transaction) -> str:
        ban(transaction, "X")
        raise LookupError("in the middle")

    with held(database):
        futures = [database.submit_write(work) for work in (lambda transaction: ban(transaction, "A"), broken)]
        futures.append(database.submit_batch(Bans(), "B"))
    assert outcomes(futures) == ["A", "LookupError", "B"]
    assert sorted(database.read(banned)) == ["A", "B"]


def test_a_hook_that_fails_after_the_commit_keeps_neither_the_other_hooks_nor_the_answers_back(
    database: Database,
) -> None:
    told: list[str] = []

    def operation(transaction: Transaction) -> str:
        transaction.after_commit(lambda: [].pop())
        transaction.after_commit(lambda: told.append("A"))
        return ban(transaction, "A")

    with capture_logs() as logged:
        assert outcomes([database.submit_write(operation)]) == ["A"]
    assert told == ["A"]
    assert [(line["event"], line["log_level"]) for line in logged] == [("hook after a commit failed", "error")]
    assert database.read(banned) == ["A"]


def test_what_failed_in_memory_ahead_of_the_commit_is_undone_the_last_change_first(database: Database) -> None:
    undone: list[int] = []

    def operation(transaction: Transaction) -> None:
        for number in range(3):
            transaction.on_rollback(lambda number=number: undone.append(number))  # type: ignore[misc]
        transaction.deferred(LastActs, LastActs).sites.append("broken")

    with pytest.raises(LookupError):
        database.write(operation)
    assert undone == [2, 1, 0]


class BansWithoutADatabase(Bans):
    """A batch whose transactions cannot be committed."""

    def run(self, transaction: Transaction, items: Sequence[str]) -> list[str | PilotageError]:
        transaction.deferred(LastActs, LastActs).sites.append("unreachable")
        return super().run(transaction, items)


def test_when_the_database_does_not_serve_all_are_told_so_after_one_more_try(database: Database) -> None:
    batch = BansWithoutADatabase()
    with held(database):
        futures = [database.submit_batch(batch, site) for site in "ABC"]
    assert outcomes(futures) == ["WorldError"] * 3
    assert batch.calls == [["A", "B", "C"], ["A"]]
    assert database.read(banned) == []


class Crossing:
    """A batch that holds one row and then wants another, which somebody else does the other way about."""

    most = 10

    def __init__(self, meeting: threading.Barrier) -> None:
        self._meeting = meeting
        self._has_met = False

    def run(self, transaction: Transaction, items: Sequence[tuple[str, str]]) -> list[str]:
        for first, second in items:
            self._take(transaction, first)
            if not self._has_met:  # whoever is run again meets nobody any more
                self._has_met = True
                self._meeting.wait(WAIT_S)
            self._take(transaction, second)
        return [first for first, _ in items]

    def _take(self, transaction: Transaction, site: str) -> None:
        transaction.session.execute(BANS.update().where(BANS.c.site == site).values(reason=BANS.c.reason + "x"))


def test_of_two_groups_in_a_deadlock_one_runs_again(postgresql_database: Database) -> None:
    database = postgresql_database
    database.write(lambda transaction: [ban(transaction, site) for site in "AB"])
    meeting = threading.Barrier(2)
    futures = [database.submit_batch(Crossing(meeting), pair) for pair in (("A", "B"), ("B", "A"))]
    assert outcomes(futures) == ["A", "B"]
    reasons = database.read(lambda transaction: list(transaction.session.execute(select(BANS.c.reason)).scalars()))
    assert reasons == ["xx", "xx"]
