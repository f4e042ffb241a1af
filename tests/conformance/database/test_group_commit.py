"""Group commit: which operations share a transaction, in which order, and what fails alone, on every database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from structlog.testing import capture_logs

from pilotage.errors import NotFoundError, PilotageError
from pilotage_server.storage.database.engine import Database, closing
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.database.transaction import Transaction
from support.pool_bench import (
    BANS,
    WAIT_S,
    Bans,
    EarlyBans,
    LateBans,
    ban,
    ban_by_statement,
    banned,
    blocked_writers,
    outcomes,
)


def test_waiting_items_of_a_batch_share_one_transaction(database: Database) -> None:
    batch = Bans()
    with blocked_writers(database):
        futures = [database.submit_batch(batch, site) for site in "ABC"]
    assert outcomes(futures) == ["A", "B", "C"]
    assert batch.calls == [["A", "B", "C"]]
    assert database.read(banned) == ["A", "B", "C"]


def test_transaction_takes_at_most_the_batch_limit(database: Database) -> None:
    batch = Bans()
    batch.most = 2
    with blocked_writers(database):
        futures = [database.submit_batch(batch, site) for site in "ABCDE"]
    assert outcomes(futures) == ["A", "B", "C", "D", "E"]
    assert sorted(batch.calls) == [["A", "B"], ["C", "D"], ["E"]]


def test_item_with_error_result_fails_alone(database: Database) -> None:
    batch = Bans()
    with blocked_writers(database):
        futures = [database.submit_batch(batch, site) for site in ("A", "unknown", "B")]
    assert outcomes(futures) == ["A", "NotFoundError", "B"]
    assert len(batch.calls) == 1


def test_deferred_writes_of_savepoints_run_once_in_rank_order(database: Database) -> None:
    def operation(transaction: Transaction) -> list[list[str]]:
        transaction.deferred(LateBans, LateBans).sites.append("A")
        for site, fails in (("B", True), ("C", False)):
            with suppress(NotFoundError), transaction.savepoint() as savepoint:
                savepoint.deferred(LateBans, LateBans).sites.append(site)
                savepoint.deferred(EarlyBans, EarlyBans).sites.append(site.lower())
                if fails:
                    raise NotFoundError("site", site)
        return [write.sites for write in transaction.all_deferred(LateBans)]

    assert database.write(operation) == [["A", "C"]]
    assert database.read(banned) == ["c", "A", "C"]


def test_savepoint_sees_deferred_writes_of_its_transaction(database: Database) -> None:
    def operation(transaction: Transaction) -> list[str]:
        transaction.deferred(LateBans, LateBans).sites.append("A")
        with transaction.savepoint() as savepoint:
            savepoint.deferred(LateBans, LateBans).sites.append("B")
            return [site for write in savepoint.all_deferred(LateBans) for site in write.sites]

    assert database.write(operation) == ["B", "A"]


def test_result_is_set_after_its_commit_is_visible(database: Database) -> None:
    visible: list[int] = []
    wait_until_done = threading.Event()

    def count_visible(_: Future[str]) -> None:
        visible.append(len(database.read(banned)))
        if len(visible) == 2:
            wait_until_done.set()

    batch = Bans()
    with blocked_writers(database):
        for site in "AB":
            database.submit_batch(batch, site).add_done_callback(count_visible)
    assert wait_until_done.wait(WAIT_S)
    assert visible == [2, 2]


def test_cancelled_item_has_no_effect(database: Database) -> None:
    batch = Bans()
    with blocked_writers(database):
        cancelled, kept = (database.submit_batch(batch, site) for site in "AB")
        assert cancelled.cancel()
    assert outcomes([kept]) == ["B"]
    with pytest.raises(CancelledError):
        cancelled.result(WAIT_S)
    assert database.read(banned) == ["B"]


def test_closing_database_finishes_waiting_items_and_refuses_others(database_url: str) -> None:
    batch = Bans()
    with closing(Database(database_url)) as database:
        metadata.create_all(database.engine)
        with blocked_writers(database):
            futures = [database.submit_batch(batch, site) for site in "ABC"]
            closer = threading.Thread(target=database.close)
            closer.start()
        closer.join(WAIT_S)
        assert outcomes(futures) == ["A", "B", "C"]
        with pytest.raises(RuntimeError):
            database.submit_batch(batch, "D")


class BansWithLaterItems(Bans):
    """A batch that receives more items while it runs its first one."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self.later: list[Future[str]] = []

    def run(self, transaction: Transaction, items: Sequence[str]) -> list[str | PilotageError]:
        if not self.calls:
            self.later = [self._database.submit_batch(self, site) for site in "BCD"]
        return super().run(transaction, items)


def test_items_added_during_a_batch_form_next_group(database: Database) -> None:
    batch = BansWithLaterItems(database)
    assert outcomes([database.submit_batch(batch, "A")]) == ["A"]
    assert outcomes(batch.later) == ["B", "C", "D"]
    assert batch.calls == [["A"], ["B", "C", "D"]]


def test_failed_group_is_undone_and_items_run_again_singly(
    database: Database,
) -> None:
    batch = Bans()
    with blocked_writers(database):
        futures = [database.submit_batch(batch, site) for site in ("A", "broken", "B")]
    assert outcomes(futures) == ["A", "LookupError", "B"]
    assert batch.calls[0] == ["A", "broken", "B"]
    assert batch.undone == ["A", "broken", "B", "broken"]
    assert database.read(banned) == ["A", "B"]


@pytest.mark.parametrize(
    ("site", "error"),
    [("null", IntegrityError.__name__), ("overtaken", "WriteConflictError")],
    ids=["constraint violation", "repeated write conflict"],
)
def test_database_error_fails_only_its_item(database: Database, site: str, error: str) -> None:
    batch = Bans()
    with blocked_writers(database):
        futures = [database.submit_batch(batch, item) for item in ("A", site, "B")]
    assert outcomes(futures) == ["A", error, "B"]
    assert database.read(banned) == ["A", "B"]


def test_failed_operation_runs_rollback_hooks_and_no_commit_hooks(database: Database) -> None:
    called: list[str] = []

    def operation(transaction: Transaction, site: str) -> str:
        transaction.deferred(LateBans, LateBans).sites.append(site)
        transaction.after_commit(lambda: called.append(f"{site} kept"))
        transaction.on_rollback(lambda: called.append(f"{site} undone"))
        if site == "B":
            raise NotFoundError("site", site)
        return site

    with blocked_writers(database):
        futures = [database.submit_write(lambda transaction, site=site: operation(transaction, site)) for site in "ABC"]  # type: ignore[misc]
    assert outcomes(futures) == ["A", "NotFoundError", "C"]
    assert sorted(database.read(banned)) == ["A", "C"]
    assert sorted(called) == ["A kept", "B undone", "C kept"]


@pytest.mark.parametrize("writes", [(ban, ban), (ban_by_statement, ban_by_statement), (ban_by_statement, ban)])
def test_failed_operation_leaves_no_orm_or_statement_writes(
    database: Database, writes: Sequence[Callable[[Transaction, str], str]]
) -> None:
    def fail(transaction: Transaction) -> str:
        for write in writes:
            write(transaction, "X")
        raise NotFoundError("site", "X")

    with blocked_writers(database):
        futures = [
            database.submit_write(work) for work in (lambda transaction: ban_by_statement(transaction, "A"), fail)
        ]
        futures.append(database.submit_write(lambda transaction: ban_by_statement(transaction, "B")))
    assert outcomes(futures) == ["A", "NotFoundError", "B"]
    assert sorted(database.read(banned)) == ["A", "B"]


def test_unexpected_error_fails_only_its_operation(database: Database) -> None:
    def broken(transaction: Transaction) -> str:
        ban(transaction, "X")
        raise LookupError("in the middle")

    with blocked_writers(database):
        futures = [database.submit_write(work) for work in (lambda transaction: ban(transaction, "A"), broken)]
        futures.append(database.submit_batch(Bans(), "B"))
    assert outcomes(futures) == ["A", "LookupError", "B"]
    assert sorted(database.read(banned)) == ["A", "B"]


def test_failed_commit_hook_stops_no_other_hook_or_result(
    database: Database,
) -> None:
    called: list[str] = []

    def operation(transaction: Transaction) -> str:
        transaction.after_commit(lambda: [].pop())
        transaction.after_commit(lambda: called.append("A"))
        return ban(transaction, "A")

    with capture_logs() as logged:
        assert outcomes([database.submit_write(operation)]) == ["A"]
    assert called == ["A"]
    assert [(line["event"], line["log_level"]) for line in logged] == [("hook after a commit failed", "error")]
    assert database.read(banned) == ["A"]


def test_rollback_hooks_run_in_reverse_order(database: Database) -> None:
    undone: list[int] = []

    def operation(transaction: Transaction) -> None:
        for number in range(3):
            transaction.on_rollback(lambda number=number: undone.append(number))  # type: ignore[misc]
        transaction.deferred(LateBans, LateBans).sites.append("broken")

    with pytest.raises(LookupError):
        database.write(operation)
    assert undone == [2, 1, 0]


class FailingCommitBans(Bans):
    """A batch whose transactions cannot be committed."""

    def run(self, transaction: Transaction, items: Sequence[str]) -> list[str | PilotageError]:
        transaction.deferred(LateBans, LateBans).sites.append("unreachable")
        return super().run(transaction, items)


def test_unavailable_database_fails_all_items_after_one_retry(database: Database) -> None:
    batch = FailingCommitBans()
    with blocked_writers(database):
        futures = [database.submit_batch(batch, site) for site in "ABC"]
    assert outcomes(futures) == ["WorldError"] * 3
    assert batch.calls == [["A", "B", "C"], ["A"]]
    assert database.read(banned) == []


class DeadlockingBatch:
    """A batch that updates two rows; another batch updates them in the opposite order."""

    most = 10

    def __init__(self, barrier: threading.Barrier) -> None:
        self._barrier = barrier
        self._has_waited = False

    def run(self, transaction: Transaction, items: Sequence[tuple[str, str]]) -> list[str]:
        for first, second in items:
            self._update(transaction, first)
            if not self._has_waited:  # the other batch does not wait when this one is retried
                self._has_waited = True
                self._barrier.wait(WAIT_S)
            self._update(transaction, second)
        return [first for first, _ in items]

    def _update(self, transaction: Transaction, site: str) -> None:
        transaction.session.execute(BANS.update().where(BANS.c.site == site).values(reason=BANS.c.reason + "x"))


def test_deadlock_victim_is_retried(postgresql_database: Database) -> None:
    database = postgresql_database
    database.write(lambda transaction: [ban(transaction, site) for site in "AB"])
    barrier = threading.Barrier(2)
    futures = [database.submit_batch(DeadlockingBatch(barrier), pair) for pair in (("A", "B"), ("B", "A"))]
    assert outcomes(futures) == ["A", "B"]
    reasons = database.read(lambda transaction: list(transaction.session.execute(select(BANS.c.reason)).scalars()))
    assert reasons == ["xx", "xx"]
