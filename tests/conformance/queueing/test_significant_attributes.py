"""Which waiting jobs share a task queue, as policies refer to more attributes, on every database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.core.queueing.task_queue import MAX_VALUES, Traits
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
from support.sql_statements import statements

Result = TypeVar("Result")


class Server:
    """One server over a database."""

    def __init__(self, database: Database, rules: Rules | None = None) -> None:
        self.database = database
        self.state: ServerState = database.read(lambda transaction: load_state(transaction, rules or Rules()))

    def write(self, operation: Callable[[Transaction, ServerState], Result]) -> Result:
        return self.database.write(lambda transaction: operation(transaction, self.state))

    def submit(self, count: int | None = None, **fields: Any) -> tuple[int, ...]:
        return self.submit_all([{"count": count, **fields}])

    def submit_all(self, descriptions: Sequence[dict[str, Any]]) -> tuple[int, ...]:
        jobs = [a_description(**fields) for fields in descriptions]
        return self.write(
            lambda transaction, state: submit_jobs(transaction, state, a_user(), single_groups(jobs))
        ).job_ids

    def refer(self, *names: str) -> None:
        self.write(lambda transaction, state: add_references(transaction, state, names))

    def evict(self, job_id: int) -> None:
        lease_to(self.database, self.state, job_id)
        end(self.database, self.state, job_id, JobCause.EVICTED)

    def job(self, job_id: int) -> JobRecord:
        return self.database.read(lambda transaction: load_jobs(transaction.session, [job_id]))[job_id]

    def task_queue_id(self, job_id: int) -> int:
        return self.job(job_id).task_queue_id

    def traits(self, job_id: int) -> Traits:
        task_queue = self.state.waiting.task_queue(self.task_queue_id(job_id))
        assert task_queue is not None
        return task_queue.traits

    def counts(self, ids: Sequence[int]) -> dict[int, int]:
        """Return the number of these jobs by task queue, and check that memory has the same counts."""
        task_queue_ids = [self.task_queue_id(job_id) for job_id in ids]
        counts = {task_queue_id: task_queue_ids.count(task_queue_id) for task_queue_id in task_queue_ids}
        assert counts == {task_queue_id: self.state.waiting.count(task_queue_id) for task_queue_id in counts}
        return counts


@pytest.fixture
def server(database: Database) -> Server:
    return Server(database)


def job_updates(executed: list[str]) -> list[str]:
    """Return the statements that change jobs."""
    return [statement for statement in executed if statement.lstrip().upper().startswith("UPDATE JOBS")]


def test_new_reference_splits_task_queue(server: Server) -> None:
    other = server.submit(count=3)
    batch = server.submit(count=2, attributes={"BolognaBatchJob": True})
    assert len(server.counts([*other, *batch])) == 1
    server.refer("bolognabatchjob")
    assert sorted(server.counts([*other, *batch]).values()) == [2, 3]
    assert server.traits(batch[0]).value("BolognaBatchJob") is True
    assert server.traits(other[0]).value("BolognaBatchJob") is None


def test_new_jobs_are_keyed_by_referenced_attributes(server: Server) -> None:
    server.refer("app")
    (gauss,), (boole,), (none,) = (
        server.submit(attributes=attributes) for attributes in ({"App": "Gauss"}, {"app": "Boole"}, {})
    )
    assert len({server.task_queue_id(gauss), server.task_queue_id(boole), server.task_queue_id(none)}) == 3


def test_rekeying_wakes_waiting_requests(server: Server) -> None:
    woken: list[bool] = []
    server.state.access_listeners.append(lambda: woken.append(True))
    server.refer("app")
    assert woken == [True]


def test_known_and_built_in_attributes_are_not_added(server: Server) -> None:
    assert unknown_references(server.state, {"owner", "requestcpus", "qdate", "app"}) == {"app"}
    server.refer("owner", "app")
    assert server.state.significant_attributes == {"app"}
    assert unknown_references(server.state, {"app"}) == frozenset()
    server.refer("app")
    assert server.state.significant_attributes == {"app"}


@pytest.mark.parametrize("name", ["no name", "ärger", "'x'", "", "a.b", "x" * 300])
def test_impossible_attribute_name_is_not_stored(server: Server, name: str) -> None:
    server.refer(name)
    assert server.state.significant_attributes == frozenset()


def test_attribute_of_no_waiting_job_rekeys_nothing(server: Server) -> None:
    (job_id,) = server.submit(attributes={"App": "x"}, environment={"colour": "red"}, requirements={"Size": 3})
    with statements(server.database) as executed:
        server.refer("absent", "colour", "size", "app_")
    assert job_updates(executed) == []
    assert server.counts([job_id])


def test_array_is_rekeyed_in_one_statement(server: Server) -> None:
    ids = server.submit(count=1000, attributes={"App": "x"})
    server.submit(count=10)
    with statements(server.database) as executed:
        server.refer("app")
    assert len(job_updates(executed)) == 1
    assert list(server.counts(ids).values()) == [1000]


def test_reference_to_starts_rekeys_only_started_jobs(server: Server) -> None:
    ids = server.submit(count=50)
    server.evict(ids[7])
    assert len(server.counts(ids)) == 1
    with statements(server.database) as executed:
        server.refer("numjobstarts")
    assert len(job_updates(executed)) == 1
    assert sorted(server.counts(ids).values()) == [1, 49]
    assert server.traits(ids[7]).value("NumJobStarts") == 1


def test_requeued_job_is_keyed_by_its_history(server: Server) -> None:
    server.refer("numjobstarts", "app")
    ids = server.submit(count=2, attributes={"App": "x"})
    server.evict(ids[0])
    assert server.task_queue_id(ids[0]) != server.task_queue_id(ids[1])
    traits = server.traits(ids[0])
    assert (traits.value("NumJobStarts"), traits.value("App")) == (1, "x")


def test_job_running_during_rekeying_is_keyed_when_requeued(server: Server) -> None:
    ids = server.submit(count=2, attributes={"App": "x"})
    lease_to(server.database, server.state, ids[0])
    server.refer("app")
    end(server.database, server.state, ids[0], JobCause.EVICTED)
    assert server.counts(ids) == {server.task_queue_id(ids[1]): 2}


def test_attributes_of_own_expression_are_significant(server: Server) -> None:
    fields: dict[str, Any] = {"requirements_expression": "TARGET.Name =!= MY.LastRemoteHost && Colour =?= TARGET.Paint"}
    ids = server.submit(count=2, **fields, attributes={"Colour": "red"})
    (blue,) = server.submit(**fields, attributes={"Colour": "blue"})
    assert server.counts([*ids, blue]) == {server.task_queue_id(ids[0]): 2, server.task_queue_id(blue): 1}
    server.evict(ids[0])
    assert server.traits(ids[0]).value("LastRemoteHost") == "slot1@n1"
    assert server.task_queue_id(ids[0]) != server.task_queue_id(ids[1])


def test_attribute_with_too_many_values_leaves_key(server: Server) -> None:
    server.refer("seed")
    ids = server.submit_all([{"attributes": {"Seed": seed}} for seed in range(MAX_VALUES + 20)])
    counts = server.counts(ids)
    assert sorted(counts.values()) == [*[1] * MAX_VALUES, 20]
    rest = server.traits(ids[-1])
    assert (rest.attributes, rest.escaped) == ((), ("seed",))
    heads = server.database.read(lambda transaction: head_ads(transaction, server.task_queue_id(ids[-1]), 5))
    assert [found.head.job_id for found in heads] == list(ids[MAX_VALUES : MAX_VALUES + 5])
    assert [found.ad["Seed"] for found in heads] == [*range(MAX_VALUES, MAX_VALUES + 5)]
    (known,) = server.submit(attributes={"Seed": 3})
    assert server.task_queue_id(known) == server.task_queue_id(ids[3])


def test_later_reference_with_too_many_values_leaves_key(server: Server) -> None:
    ids = server.submit_all([{"attributes": {"Seed": seed}} for seed in range(MAX_VALUES + 20)])
    (other,) = server.submit(requirements={"Memory": 1}, attributes={"Seed": 1000})
    server.refer("seed")
    assert sorted(server.counts(ids).values()) == [*[1] * MAX_VALUES, 20]
    assert server.traits(other).value("Seed") == 1000


def test_attribute_of_running_limit_stays_in_key(database: Database) -> None:
    limit = RunningLimit("CERN", None, None, "Seed", "7", 1)
    server = Server(database, Rules(running_limits=(limit,)))
    ids = server.submit_all([{"attributes": {"Seed": seed}} for seed in range(MAX_VALUES + 5)])
    assert len(server.counts(ids)) == MAX_VALUES + 5


def test_attribute_of_running_limit_survives_rekeying(database: Database) -> None:
    limit = RunningLimit("CERN", None, None, "Seed", "7", 1)
    server = Server(database, Rules(running_limits=(limit,)))
    (job_id,) = server.submit(attributes={"Seed": 7, "App": "x"})
    server.refer("app")
    traits = server.traits(job_id)
    assert (traits.value("Seed"), traits.value("App")) == (7, "x")


def test_servers_of_one_database_share_significant_attributes(server: Server) -> None:
    other = Server(server.database)
    batch = server.submit(count=2, attributes={"App": "x"})
    server.refer("app")
    # The other server has not synced, but reads them in its transaction.
    assert other.state.significant_attributes == frozenset()
    (late,) = other.submit(attributes={"App": "x"})
    assert other.task_queue_id(late) == other.task_queue_id(batch[0])
    other.refer("app", "more")
    assert other.state.significant_attributes == {"app", "more"}
    server.database.read(lambda transaction: sync_resources(transaction, server.state))
    assert server.state.significant_attributes == {"app", "more"}
    server.database.read(lambda transaction: refresh_state(transaction, server.state))
    assert server.counts([*batch, late]) == {server.task_queue_id(late): 3}


def test_started_server_loads_significant_attributes(server: Server) -> None:
    server.refer("app")
    assert Server(server.database).state.significant_attributes == {"app"}


def test_attribute_with_macro_is_evaluated_per_job(server: Server) -> None:
    ids = server.submit(count=3, attributes={"Part": "part-$(Process)"})
    server.refer("part")
    assert server.traits(ids[0]).escaped == ("part",)
    heads = server.database.read(lambda transaction: head_ads(transaction, server.task_queue_id(ids[0]), 9))
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
def test_field_is_significant_like_an_attribute(server: Server, name: str, fields: dict[str, Any]) -> None:
    (default,), (first,) = server.submit(), server.submit(**fields)
    assert server.task_queue_id(default) == server.task_queue_id(first)
    server.refer(name)
    assert server.task_queue_id(default) != server.task_queue_id(first)
    (second,) = server.submit(**fields)
    assert server.task_queue_id(second) == server.task_queue_id(first)


def test_jobs_submitted_during_rekeying_share_new_key(server: Server) -> None:
    others = [Server(server.database) for _ in range(3)]
    ids: list[int] = []
    ready = threading.Barrier(len(others) + 1)

    def submit(one: Server) -> None:
        ready.wait()
        for _ in range(5):
            submitted = one.submit(count=3, attributes={"App": "x"})
            one.evict(submitted[-1])
            ids.extend(submitted)

    threads = [threading.Thread(target=submit, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    ready.wait()
    server.refer("app")
    for thread in threads:
        thread.join()
    assert len(ids) == 45
    assert len({server.task_queue_id(job_id) for job_id in ids}) == 1
    server.database.read(lambda transaction: refresh_state(transaction, server.state))
    assert server.traits(ids[0]).value("App") == "x"
