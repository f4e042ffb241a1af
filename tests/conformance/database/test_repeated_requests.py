"""A repeated request has one effect and the same answer, on every database."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import insert, select

from pilotage.errors import InvalidInputError, PilotageError
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.files import Retention
from pilotage_server.operations.idempotency import (
    IdempotentRequest,
    ServedRequest,
    run_each_once,
    run_once,
    stored_answers,
)
from pilotage_server.operations.jobs.retention import remove_old_requests
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.engine import Database, closing
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.database.transaction import Transaction
from support.jobs import a_pilot_identity, a_user
from support.virtual_clock import VirtualClock

ALICE = a_user("alice")
BANS = metadata.tables["bans"]
WAIT_S = 30


class Counter:
    """An effect that can be counted; each answer is different."""

    def __init__(self) -> None:
        self.runs = 0

    def run(self) -> bytes:
        self.runs += 1
        return f"answer {self.runs}".encode()


def serve(
    database: Database, counter: Counter, request_id: str = "r1", digest: str = "d", identity: Identity = ALICE
) -> bytes:
    return database.write(
        lambda transaction: run_once(
            transaction, IdempotentRequest.of(identity, "Submit", request_id, digest), counter.run
        )
    )


def test_repeated_request_gets_first_answer(database: Database) -> None:
    counter = Counter()
    assert [serve(database, counter), serve(database, counter)] == [b"answer 1", b"answer 1"]
    assert counter.runs == 1


def test_equal_id_of_another_caller_is_another_request(database: Database) -> None:
    counter = Counter()
    callers = [ALICE, a_user("bob"), a_user("alice", "atlas"), a_pilot_identity("p1"), a_pilot_identity("p2")]
    answers = [serve(database, counter, identity=caller) for caller in callers]
    assert len(set(answers)) == len(callers)


def test_equal_id_for_another_request_is_refused(database: Database) -> None:
    counter = Counter()
    serve(database, counter)
    with pytest.raises(InvalidInputError) as refused:
        serve(database, counter, digest="other")
    assert refused.value.violations[0].where == "request_id"
    with pytest.raises(InvalidInputError):
        database.write(
            lambda transaction: run_once(transaction, IdempotentRequest.of(ALICE, "Change", "r1", "d"), counter.run)
        )
    assert counter.runs == 1


@pytest.mark.parametrize("request_id", ["", "x" * 65, "a\nb", "a\0b"])
def test_invalid_request_id_is_refused(database: Database, request_id: str) -> None:
    with pytest.raises(InvalidInputError):
        serve(database, Counter(), request_id)


def test_invalid_id_fails_only_its_own_request(database: Database) -> None:
    serve(database, Counter())
    group = [IdempotentRequest.of(ALICE, "Submit", request_id, "d") for request_id in ("a\0b", "r1", "new")]
    faulty, known, new = database.write(lambda transaction: stored_answers(transaction, group))
    assert isinstance(faulty, InvalidInputError)
    assert (known, new) == (b"answer 1", None)


def test_failed_request_may_be_repeated(database: Database) -> None:
    def fail(transaction: Transaction) -> bytes:
        run_once(transaction, IdempotentRequest.of(ALICE, "Submit", "r1", "d"), lambda: b"lost")
        raise LookupError

    with pytest.raises(LookupError):
        database.write(fail)
    assert serve(database, Counter()) == b"answer 1"


def test_concurrent_repeats_have_one_effect(database: Database) -> None:
    counter = Counter()
    answers: list[bytes] = []
    threads = [threading.Thread(target=lambda: answers.append(serve(database, counter))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [b"answer 1"] * 6


class Bans:
    """A batch that bans the site of each request once; `keeps` = its answers are stored."""

    most = 10

    def __init__(self) -> None:
        self.keeps = True

    def run(self, transaction: Transaction, items: Sequence[IdempotentRequest]) -> list[bytes | PilotageError]:
        return run_each_once(
            transaction, items, lambda fresh: [self._ban(transaction, items[index]) for index in fresh], self._repeated
        )

    def _ban(self, transaction: Transaction, request: IdempotentRequest) -> ServedRequest[bytes]:
        site = request.key.request_id
        row = {"site": site, "ce": "", "queue": "", "reason": "", "by": "op", "since": transaction.now, "until": None}
        transaction.session.execute(insert(BANS).values(**row))
        return ServedRequest(site.encode(), site.encode() if self.keeps else None)

    def _repeated(self, _index: int, kept: bytes) -> bytes:
        return b"again " + kept


@pytest.mark.parametrize("has_new_answers", [True, False])
def test_repeated_request_in_a_group_has_no_second_effect(database: Database, has_new_answers: bool) -> None:
    batch = Bans()
    first, other = (IdempotentRequest.of(ALICE, "Ban", site, "d") for site in "AB")
    assert database.submit_batch(batch, first).result(WAIT_S) == b"A"
    batch.keeps = has_new_answers
    group = database.write(lambda transaction: batch.run(transaction, [other, first]))
    assert group == [b"B", b"again A"]
    assert database.read(lambda transaction: transaction.session.execute(select(BANS.c.site)).scalars().all()) == [
        "A",
        "B",
    ]


class SimultaneousBans(Bans):
    """A batch whose first try waits until another batch has served its requests too."""

    def __init__(self, barrier: threading.Barrier) -> None:
        super().__init__()
        self._barrier = barrier

    def _ban(self, transaction: Transaction, request: IdempotentRequest) -> ServedRequest[bytes]:
        served = super()._ban(transaction, request)
        if not transaction.is_retry:
            self._barrier.wait(WAIT_S)
        return served


def test_request_served_by_two_servers_has_one_effect(postgresql_database: Database) -> None:
    request, barrier = IdempotentRequest.of(ALICE, "Ban", "A", "d"), threading.Barrier(2)
    with closing(Database(postgresql_database.url.render_as_string(hide_password=False))) as other:
        answers = [server.submit_batch(SimultaneousBans(barrier), request) for server in (postgresql_database, other)]
        assert sorted(answer.result(WAIT_S) for answer in answers) == [b"A", b"again A"]
    assert postgresql_database.read(
        lambda transaction: transaction.session.execute(select(BANS.c.site)).scalars().all()
    ) == ["A"]


def test_changed_repeat_in_a_group_is_refused_alone(database: Database) -> None:
    batch = Bans()
    database.submit_batch(batch, IdempotentRequest.of(ALICE, "Ban", "A", "d")).result(WAIT_S)
    group = [IdempotentRequest.of(ALICE, "Ban", site, "other") for site in "AB"]
    refused, done = database.write(lambda transaction: batch.run(transaction, group))
    assert isinstance(refused, InvalidInputError)
    assert done == b"B"


def test_second_request_with_the_same_id_in_one_group_is_refused(database: Database) -> None:
    batch = Bans()
    group = [IdempotentRequest.of(ALICE, "Ban", "A", digest) for digest in ("d", "other", "d")]
    done, refused, repeated = database.write(lambda transaction: batch.run(transaction, group))
    assert isinstance(refused, InvalidInputError)
    assert (done, repeated) == (b"A", b"A")
    assert database.read(lambda transaction: transaction.session.execute(select(BANS.c.site)).scalars().all()) == ["A"]


def test_old_answers_are_removed_in_batches(database: Database, clock: VirtualClock) -> None:
    kept = Retention(requests=timedelta(hours=1), batch=2)
    state = ServerState(rules=replace(ServerState().rules, retention=kept))
    counter = Counter()
    for number in range(3):
        serve(database, counter, f"r{number}")
    clock.advance(minutes=61)
    serve(database, counter, "young")
    removed = [database.write(lambda transaction: remove_old_requests(transaction, state)) for _ in range(3)]
    assert removed == [2, 1, 0]
    assert serve(database, counter, "young") == b"answer 4"
    assert serve(database, counter, "r0") == b"answer 5"
