"""Transactions in groups: what is done together, in which order, and when answers are given, on every database."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress

import pytest

from pilotage.errors import NotFoundError, PilotageError
from pilotage_server.storage.database.engine import Database, closing
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.database.transaction import Transaction
from support.pool_bench import WAIT_S, Bans, FirstActs, LastActs, banned, held, outcomes


def test_items_that_wait_for_one_batch_are_handled_in_one_transaction_in_order(database: Database) -> None:
    batch = Bans()
    with held(database):
        futures = [database.submit_batch(batch, site) for site in "ABC"]
    assert outcomes(futures) == ["A", "B", "C"]
    assert batch.calls == [["A", "B", "C"]]
    assert database.read(banned) == ["A", "B", "C"]


def test_no_transaction_takes_more_items_than_the_batch_bears(database: Database) -> None:
    batch = Bans()
    batch.most = 2
    with held(database):
        futures = [database.submit_batch(batch, site) for site in "ABCDE"]
    assert outcomes(futures) == ["A", "B", "C", "D", "E"]
    assert sorted(batch.calls) == [["A", "B"], ["C", "D"], ["E"]]


def test_an_item_with_an_error_for_a_result_fails_alone(database: Database) -> None:
    batch = Bans()
    with held(database):
        futures = [database.submit_batch(batch, site) for site in ("A", "unknown", "B")]
    assert outcomes(futures) == ["A", "NotFoundError", "B"]
    assert len(batch.calls) == 1


def test_tabs_of_all_parts_are_written_once_in_their_order(database: Database) -> None:
    def operation(transaction: Transaction) -> list[list[str]]:
        transaction.deferred(LastActs, LastActs).sites.append("A")
        for site, fails in (("B", True), ("C", False)):
            with suppress(NotFoundError), transaction.savepoint() as part:
                part.deferred(LastActs, LastActs).sites.append(site)
                part.deferred(FirstActs, FirstActs).sites.append(site.lower())
                if fails:
                    raise NotFoundError("site", site)
        return [tab.sites for tab in transaction.all_deferred(LastActs)]

    assert database.write(operation) == [["A", "C"]]
    assert database.read(banned) == ["c", "A", "C"]


def test_a_part_sees_what_the_whole_has_gathered_before(database: Database) -> None:
    def operation(transaction: Transaction) -> list[str]:
        transaction.deferred(LastActs, LastActs).sites.append("A")
        with transaction.savepoint() as part:
            part.deferred(LastActs, LastActs).sites.append("B")
            return [site for tab in part.all_deferred(LastActs) for site in tab.sites]

    assert database.write(operation) == ["B", "A"]


def test_an_answer_is_given_when_it_can_be_read_by_others(database: Database) -> None:
    seen: list[int] = []
    all_seen = threading.Event()

    def look(_: Future[str]) -> None:
        seen.append(len(database.read(banned)))
        if len(seen) == 2:
            all_seen.set()

    batch = Bans()
    with held(database):
        for site in "AB":
            database.submit_batch(batch, site).add_done_callback(look)
    assert all_seen.wait(WAIT_S)
    assert seen == [2, 2]


def test_who_gave_up_before_his_turn_has_caused_nothing(database: Database) -> None:
    batch = Bans()
    with held(database):
        given_up, kept = (database.submit_batch(batch, site) for site in "AB")
        assert given_up.cancel()
    assert outcomes([kept]) == ["B"]
    with pytest.raises(CancelledError):
        given_up.result(WAIT_S)
    assert database.read(banned) == ["B"]


def test_what_waits_when_the_database_closes_is_done_and_nothing_is_taken_afterwards(database_url: str) -> None:
    batch = Bans()
    with closing(Database(database_url)) as database:
        metadata.create_all(database.engine)
        with held(database):
            futures = [database.submit_batch(batch, site) for site in "ABC"]
            closer = threading.Thread(target=database.close)
            closer.start()
        closer.join(WAIT_S)
        assert outcomes(futures) == ["A", "B", "C"]
        with pytest.raises(RuntimeError):
            database.submit_batch(batch, "D")


class BansInARush(Bans):
    """A batch for which more items come while it is at its first."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self.later: list[Future[str]] = []

    def run(self, transaction: Transaction, items: Sequence[str]) -> list[str | PilotageError]:
        if not self.calls:
            self.later = [self._database.submit_batch(self, site) for site in "BCD"]
        return super().run(transaction, items)


def test_what_comes_while_a_batch_is_at_work_is_its_next_group(database: Database) -> None:
    batch = BansInARush(database)
    assert outcomes([database.submit_batch(batch, "A")]) == ["A"]
    assert outcomes(batch.later) == ["B", "C", "D"]
    assert batch.calls == [["A"], ["B", "C", "D"]]
