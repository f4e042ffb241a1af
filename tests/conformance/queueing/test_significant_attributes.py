"""Which waiting jobs share a task queue, as policies begin to look at attributes, on every database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.core.queueing.task_queue import MOST_VALUES, Traits
from pilotage_server.core.rules import Rules, RunningLimit
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.matching.offers import head_ads
from pilotage_server.operations.queueing.rekeying import add_references, unknown_references
from pilotage_server.operations.server_state import ServerState
from pilotage_server.operations.startup.loading import load_state, refresh_state
from pilotage_server.operations.startup.sync import sync_resources
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from support.jobs import a_description, a_user, end, lease_to
from support.statements import statements

Result = TypeVar("Result")


class Server:
    """One server over a database, asked in the words of these tests."""

    def __init__(self, database: Database, rules: Rules | None = None) -> None:
        self.database = database
        self.state: ServerState = database.read(lambda transaction: load_state(transaction, rules or Rules()))

    def write(self, operation: Callable[[Transaction, ServerState], Result]) -> Result:
        return self.database.write(lambda transaction: operation(transaction, self.state))

    def submit(self, count: int | None = None, **fields: Any) -> tuple[int, ...]:
        return self.submit_all([{"count": count, **fields}])

    def submit_all(self, descriptions: Sequence[dict[str, Any]]) -> tuple[int, ...]:
        given = [a_description(**fields) for fields in descriptions]
        return self.write(
            lambda transaction, state: submit_jobs(transaction, state, a_user(), single_groups(given))
        ).job_ids

    def refer(self, *names: str) -> None:
        self.write(lambda transaction, state: add_references(transaction, state, names))

    def evict(self, job_id: int) -> None:
        lease_to(self.database, self.state, job_id)
        end(self.database, self.state, job_id, JobCause.EVICTED)

    def job(self, job_id: int) -> JobRecord:
        return self.database.read(lambda transaction: load_jobs(transaction.session, [job_id]))[job_id]

    def place(self, job_id: int) -> int:
        return self.job(job_id).task_queue_id

    def traits(self, job_id: int) -> Traits:
        task_queue = self.state.waiting.task_queue(self.place(job_id))
        assert task_queue is not None
        return task_queue.traits

    def counts(self, ids: Sequence[int]) -> dict[int, int]:
        """Return how many of these jobs each task queue has, after a check that the memory knows as much."""
        places = [self.place(job_id) for job_id in ids]
        counts = {place: places.count(place) for place in places}
        assert counts == {place: self.state.waiting.count(place) for place in counts}
        return counts


@pytest.fixture
def server(database: Database) -> Server:
    return Server(database)


def changes(seen: list[str]) -> list[str]:
    """Return the statements that change jobs."""
    return [statement for statement in seen if statement.lstrip().upper().startswith("UPDATE JOBS")]


def test_jobs_move_apart_when_a_policy_begins_to_look_at_an_attribute(server: Server) -> None:
    plain = server.submit(count=3)
    batch = server.submit(count=2, attributes={"BolognaBatchJob": True})
    assert len(server.counts([*plain, *batch])) == 1
    server.refer("bolognabatchjob")
    assert sorted(server.counts([*plain, *batch]).values()) == [2, 3]
    assert server.traits(batch[0]).value("BolognaBatchJob") is True
    assert server.traits(plain[0]).value("BolognaBatchJob") is None


def test_jobs_that_come_later_are_told_apart_at_once(server: Server) -> None:
    server.refer("app")
    (gauss,), (boole,), (none,) = (server.submit(attributes=own) for own in ({"App": "Gauss"}, {"app": "Boole"}, {}))
    assert len({server.place(gauss), server.place(boole), server.place(none)}) == 3


def test_those_that_wait_for_jobs_are_told_when_jobs_move(server: Server) -> None:
    told: list[bool] = []
    server.state.access_listeners.append(lambda: told.append(True))
    server.refer("app")
    assert told == [True]


def test_a_name_counts_once_and_what_every_ad_tells_never_does(server: Server) -> None:
    assert unknown_references(server.state, {"owner", "requestcpus", "qdate", "app"}) == {"app"}
    server.refer("owner", "app")
    assert server.state.significant_attributes == {"app"}
    assert unknown_references(server.state, {"app"}) == frozenset()
    server.refer("app")
    assert server.state.significant_attributes == {"app"}


@pytest.mark.parametrize("name", ["no name", "ärger", "'x'", "", "a.b", "x" * 300])
def test_what_no_job_can_have_is_not_kept(server: Server, name: str) -> None:
    server.refer(name)
    assert server.state.significant_attributes == frozenset()


def test_a_name_that_no_waiting_job_has_moves_none(server: Server) -> None:
    (job_id,) = server.submit(attributes={"App": "x"}, environment={"colour": "red"}, requirements={"Size": 3})
    with statements(server.database) as seen:
        server.refer("absent", "colour", "size", "app_")
    assert changes(seen) == []
    assert server.counts([job_id])


def test_an_array_moves_in_one_statement(server: Server) -> None:
    ids = server.submit(count=2000, attributes={"App": "x"})
    server.submit(count=10)
    with statements(server.database) as seen:
        server.refer("app")
    assert len(changes(seen)) == 1
    assert list(server.counts(ids).values()) == [2000]


def test_only_the_jobs_that_have_run_move_when_somebody_looks_at_their_run_time(server: Server) -> None:
    ids = server.submit(count=50)
    server.evict(ids[7])
    assert len(server.counts(ids)) == 1
    with statements(server.database) as seen:
        server.refer("numjobstarts")
    assert len(changes(seen)) == 1
    assert sorted(server.counts(ids).values()) == [1, 49]
    assert server.traits(ids[7]).value("NumJobStarts") == 1


def test_a_job_that_comes_back_to_wait_waits_by_what_it_has_behind_it(server: Server) -> None:
    server.refer("numjobstarts", "app")
    ids = server.submit(count=2, attributes={"App": "x"})
    server.evict(ids[0])
    assert server.place(ids[0]) != server.place(ids[1])
    traits = server.traits(ids[0])
    assert (traits.value("NumJobStarts"), traits.value("App")) == (1, "x")


def test_a_job_that_was_out_while_a_policy_came_is_told_apart_when_it_is_back(server: Server) -> None:
    ids = server.submit(count=2, attributes={"App": "x"})
    lease_to(server.database, server.state, ids[0])
    server.refer("app")
    end(server.database, server.state, ids[0], JobCause.EVICTED)
    assert server.counts(ids) == {server.place(ids[1]): 2}


def test_what_a_jobs_own_expression_looks_at_tells_it_apart(server: Server) -> None:
    asks: dict[str, Any] = {"requirements_expression": "TARGET.Name =!= MY.LastRemoteHost && Colour =?= TARGET.Paint"}
    ids = server.submit(count=2, **asks, attributes={"Colour": "red"})
    (blue,) = server.submit(**asks, attributes={"Colour": "blue"})
    assert server.counts([*ids, blue]) == {server.place(ids[0]): 2, server.place(blue): 1}
    server.evict(ids[0])
    assert server.traits(ids[0]).value("LastRemoteHost") == "slot1@n1"
    assert server.place(ids[0]) != server.place(ids[1])


def test_an_attribute_with_too_many_values_leaves_the_key(server: Server) -> None:
    server.refer("seed")
    ids = server.submit_all([{"attributes": {"Seed": seed}} for seed in range(MOST_VALUES + 20)])
    counts = server.counts(ids)
    assert sorted(counts.values()) == [*[1] * MOST_VALUES, 20]
    rest = server.traits(ids[-1])
    assert (rest.attributes, rest.escaped) == ((), ("seed",))
    heads = server.database.read(lambda transaction: head_ads(transaction, server.place(ids[-1]), 5))
    assert [head.job_id for head in heads] == list(ids[MOST_VALUES : MOST_VALUES + 5])
    assert [head.ad["Seed"] for head in heads] == [*range(MOST_VALUES, MOST_VALUES + 5)]
    (known,) = server.submit(attributes={"Seed": 3})
    assert server.place(known) == server.place(ids[3])


def test_an_attribute_with_too_many_values_that_is_looked_at_later_leaves_the_key_too(server: Server) -> None:
    ids = server.submit_all([{"attributes": {"Seed": seed}} for seed in range(MOST_VALUES + 20)])
    (other,) = server.submit(requirements={"Memory": 1}, attributes={"Seed": 1000})
    server.refer("seed")
    assert sorted(server.counts(ids).values()) == [*[1] * MOST_VALUES, 20]
    assert server.traits(other).value("Seed") == 1000


def test_what_a_running_limit_counts_never_leaves_the_key(database: Database) -> None:
    limit = RunningLimit("CERN", None, None, "Seed", "7", 1)
    server = Server(database, Rules(running_limits=(limit,)))
    ids = server.submit_all([{"attributes": {"Seed": seed}} for seed in range(MOST_VALUES + 5)])
    assert len(server.counts(ids)) == MOST_VALUES + 5


def test_what_a_running_limit_counts_stays_when_policies_look_at_more(database: Database) -> None:
    limit = RunningLimit("CERN", None, None, "Seed", "7", 1)
    server = Server(database, Rules(running_limits=(limit,)))
    (job_id,) = server.submit(attributes={"Seed": 7, "App": "x"})
    server.refer("app")
    traits = server.traits(job_id)
    assert (traits.value("Seed"), traits.value("App")) == (7, "x")


def test_servers_on_one_database_agree_on_what_tells_jobs_apart(server: Server) -> None:
    other = Server(server.database)
    batch = server.submit(count=2, attributes={"App": "x"})
    server.refer("app")
    # Which it has not heard yet, and goes by all the same.
    assert other.state.significant_attributes == frozenset()
    (late,) = other.submit(attributes={"App": "x"})
    assert other.place(late) == other.place(batch[0])
    other.refer("app", "more")
    assert other.state.significant_attributes == {"app", "more"}
    server.database.read(lambda transaction: sync_resources(transaction, server.state))
    assert server.state.significant_attributes == {"app", "more"}
    server.database.read(lambda transaction: refresh_state(transaction, server.state))
    assert server.counts([*batch, late]) == {server.place(late): 3}


def test_a_server_that_starts_knows_what_was_referred_to(server: Server) -> None:
    server.refer("app")
    assert Server(server.database).state.significant_attributes == {"app"}


def test_a_job_with_a_macro_in_an_attribute_is_asked_by_itself(server: Server) -> None:
    ids = server.submit(count=3, attributes={"Part": "part-$(Process)"})
    server.refer("part")
    assert server.traits(ids[0]).escaped == ("part",)
    heads = server.database.read(lambda transaction: head_ads(transaction, server.place(ids[0]), 9))
    assert [head.ad["Part"] for head in heads] == ["part-0", "part-1", "part-2"]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("jobprio", {"priority": 3}),
        ("cmd", {"executable": "other.sh"}),
        ("arguments", {"arguments": "-x"}),
        ("out", {"stdout": "o"}),
        ("jobuniverse", {"attributes": {"JobUniverse": 1}}),
        ("jobuniverse", {"attributes": {"universe": "java"}}),
        ("jobbatchname", {"name": "n"}),
    ],
)
def test_what_a_field_says_tells_jobs_apart_like_any_attribute(
    server: Server, name: str, fields: dict[str, Any]
) -> None:
    (plain,), (other,) = server.submit(), server.submit(**fields)
    assert server.place(plain) == server.place(other)
    server.refer(name)
    assert server.place(plain) != server.place(other)
    (like,) = server.submit(**fields)
    assert server.place(like) == server.place(other)


def test_whoever_comes_while_a_policy_does_is_placed_by_it(server: Server) -> None:
    others = [Server(server.database) for _ in range(3)]
    ids: list[int] = []
    ready = threading.Barrier(len(others) + 1)

    def submit(one: Server) -> None:
        ready.wait()
        for _ in range(5):
            own = one.submit(count=3, attributes={"App": "x"})
            one.evict(own[-1])
            ids.extend(own)

    threads = [threading.Thread(target=submit, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    ready.wait()
    server.refer("app")
    for thread in threads:
        thread.join()
    assert len(ids) == 45
    assert len({server.place(job_id) for job_id in ids}) == 1
    server.database.read(lambda transaction: refresh_state(transaction, server.state))
    assert server.traits(ids[0]).value("App") == "x"
