"""Submissions of more jobs than one transaction stores: parts, their order, and what changes between two parts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from pilotage.errors import NotFoundError, QuotaExceededError
from pilotage.job_description import JobDescription
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import DescriptionGroup, single_groups
from pilotage_server.core.jobs.files import JobLimits
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.new_jobs import PART_JOBS, PartStorage, store_part
from pilotage_server.operations.jobs.queries import get_jobs, read_feed
from pilotage_server.operations.jobs.quotas import JobQuotas
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.queueing.rekeying import add_references
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.submission.parts import JobBlock, cut_into_parts, unfinished_submissions
from support.grid import Grid
from support.jobs import a_description, a_user
from support.virtual_clock import VirtualClock

ALICE = a_user("alice")
JOBS = 3 * PART_JOBS - 1
"""Jobs of three parts."""


@pytest.fixture
def state() -> ServerState:
    return ServerState()


def accept(database: Database, state: ServerState, *descriptions: JobDescription) -> tuple[int, ...]:
    """Submit and store the first part only."""
    groups = single_groups(descriptions)
    return database.write(lambda transaction: submit_jobs(transaction, state, ALICE, groups)).job_ids


def store_rest(database: Database, state: ServerState, submission: int) -> int:
    """Store the parts that are left and return how many there were."""
    parts = 1
    while database.write(lambda transaction: store_part(transaction, state, submission)):
        parts += 1
    return parts


def jobs_of(database: Database, ids: tuple[int, ...]) -> tuple[JobRecord, ...]:
    return database.read(lambda transaction: get_jobs(transaction, ALICE, ids))


def positions(database: Database) -> dict[int, int]:
    """Return the position of the only event of each job."""
    found: dict[int, int] = {}
    position, at_end = 0, False
    while not at_end:
        page = database.read(lambda transaction: read_feed(transaction, ALICE, position))  # noqa: B023 - called at once
        found |= {event.job_id: event.position for event in page.events}
        position, at_end = page.position, page.at_end
    return found


def test_parts_make_the_same_jobs_as_one_transaction(database: Database, state: ServerState) -> None:
    others, array = a_description(count=2, request_memory_mib=7), a_description(count=JOBS, name="sim-$(Process)")
    ids = accept(database, state, others, array)
    assert list(ids) == list(range(ids[0], ids[0] + 2 + JOBS))
    jobs_of(database, ids[:PART_JOBS])
    with pytest.raises(NotFoundError):
        jobs_of(database, ids[: PART_JOBS + 1])

    assert store_rest(database, state, ids[0]) == 3

    jobs = jobs_of(database, ids)[2:]
    assert [job.process for job in jobs] == list(range(JOBS))
    assert {job.cluster for job in jobs} == {ids[2]}
    assert [jobs[0].name, jobs[-1].name] == ["sim-0", f"sim-{JOBS - 1}"]
    assert len({job.template_id for job in jobs}) == 1
    (task_queue_id,) = {job.task_queue_id for job in jobs}
    assert state.waiting.count(task_queue_id) == JOBS
    in_feed = positions(database)
    assert sorted(in_feed, key=in_feed.__getitem__) == list(ids)


def test_parts_of_different_descriptions_keep_names_and_ids(database: Database, state: ServerState) -> None:
    names = [f"job-{number}" for number in range(JOBS)]
    overrides = [single_groups([a_description(name=name)])[0].overrides[0] for name in names]
    overrides = [each._replace(submission_index=index) for index, each in enumerate(overrides)]
    group = DescriptionGroup(a_description(name=names[0]), overrides)
    ids = database.write(lambda transaction: submit_jobs(transaction, state, ALICE, [group])).job_ids
    store_rest(database, state, ids[0])
    assert [job.name for job in jobs_of(database, ids)] == names
    assert {job.process for job in jobs_of(database, ids)} == {0}


def test_ids_of_missing_parts_are_not_given_to_others(database: Database, state: ServerState) -> None:
    ids = accept(database, state, a_description(count=JOBS))
    (other,) = accept(database, state, a_description())
    assert other > ids[-1]
    store_rest(database, state, ids[0])
    assert len(jobs_of(database, (*ids, other))) == JOBS + 1


def test_other_server_completes_a_submission(database: Database, state: ServerState) -> None:
    ids = accept(database, state, a_description(count=JOBS))
    assert database.read(lambda transaction: unfinished_submissions(transaction.session, transaction.now)) == [ids[0]]
    store_rest(database, ServerState(), ids[0])
    assert len(jobs_of(database, ids)) == JOBS
    assert database.read(lambda transaction: unfinished_submissions(transaction.session, transaction.now)) == []


def test_concurrent_calls_store_each_part_once(database: Database, state: ServerState) -> None:
    ids = accept(database, state, a_description(count=8 * PART_JOBS))
    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(store_rest, database, ServerState(), ids[0]) for _ in range(4)]:
            done.result()
    jobs = jobs_of(database, ids)
    assert [job.process for job in jobs] == list(range(8 * PART_JOBS))
    assert len(positions(database)) == len(ids)


def test_others_come_between_two_parts(sqlite_database: Database, state: ServerState) -> None:
    ids = accept(sqlite_database, state, a_description(count=4 * PART_JOBS))
    other = [sqlite_database.submit_write(lambda transaction: submit_jobs(transaction, state, ALICE, a_single_job()))]
    parts = [sqlite_database.submit_batch(PartStorage(state), ids[0]) for _ in range(3)]
    other.append(
        sqlite_database.submit_write(lambda transaction: submit_jobs(transaction, state, ALICE, a_single_job()))
    )
    assert [part.result() for part in parts] == [True, True, False]
    in_feed = positions(sqlite_database)
    assert all(in_feed[each.result().job_ids[0]] < in_feed[ids[-1]] for each in other)


def a_single_job() -> tuple[DescriptionGroup, ...]:
    return single_groups([a_description()])


def test_parts_follow_new_significant_attributes(database: Database, state: ServerState) -> None:
    ids = accept(database, state, a_description(count=JOBS, attributes={"App": "x"}))
    database.write(lambda transaction: add_references(transaction, state, ["app"]))
    store_rest(database, state, ids[0])
    (task_queue_id,) = {job.task_queue_id for job in jobs_of(database, ids)}
    task_queue = state.waiting.task_queue(task_queue_id)
    assert task_queue is not None
    assert "app" in dict(task_queue.traits.attributes)
    assert state.waiting.count(task_queue_id) == JOBS


def test_parts_are_split_by_attributes_that_became_significant(database: Database, state: ServerState) -> None:
    group = DescriptionGroup(
        a_description(arguments="0"),
        [
            single_groups([a_description()])[0].overrides[0]._replace(submission_index=n, arguments=str(n % 2), name="")
            for n in range(2 * PART_JOBS)
        ],
    )
    ids = database.write(lambda transaction: submit_jobs(transaction, state, ALICE, [group])).job_ids
    database.write(lambda transaction: add_references(transaction, state, ["arguments"]))
    store_rest(database, state, ids[0])
    task_queues = [job.task_queue_id for job in jobs_of(database, ids)]
    assert len(set(task_queues)) == 2
    assert task_queues == task_queues[:2] * PART_JOBS


def test_parts_without_meaning_in_a_new_tree_are_held(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    ids = accept(database, grid.state, a_description(count=2 * PART_JOBS, requirements={"Colour": "red"}))
    grid.put({"parameters": {"Colour": {"type": "capacity"}}, "sites": {}})
    store_rest(database, grid.state, ids[0])
    jobs = jobs_of(database, ids)
    assert {job.state for job in jobs} == {JobState.HELD}
    assert all("have no meaning in tree version" in job.reason for job in jobs)
    grid.put({"sites": {}})
    released = grid.write(
        lambda transaction, state: change_jobs(transaction, state, ALICE, ids[-2:], JobChange.RELEASE, "")
    )
    assert [result.refusal for result in released] == ["", ""]


def test_jobs_of_missing_parts_count_for_the_quota(database: Database, state: ServerState) -> None:
    accept(database, state, a_description(count=JOBS))
    quotas = JobQuotas(replace(JobLimits(), max_live_jobs_of_owner=JOBS))
    database.read(lambda transaction: quotas.count(transaction, ALICE.vo, 0.0))
    with pytest.raises(QuotaExceededError, match=f"has {JOBS} jobs"):
        quotas.check(ALICE, 1)


def test_failed_submission_leaves_nothing(database: Database, state: ServerState) -> None:
    def fail_late(transaction: object) -> None:
        submit_jobs(transaction, state, ALICE, single_groups([a_description(count=JOBS)]))  # type: ignore[arg-type]
        raise RuntimeError("the transaction fails")

    with pytest.raises(RuntimeError):
        database.write(fail_late)
    assert database.read(lambda transaction: unfinished_submissions(transaction.session, transaction.now)) == []
    assert positions(database) == {}


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7, 100])
@pytest.mark.parametrize("ids", [(range(1, 8),), (range(1, 5), range(6, 7), range(8, 10)), (range(1, 4), range(4, 5))])
def test_cut_keeps_every_job_with_its_cluster(ids: tuple[range, ...], most: int) -> None:
    clusters = [(each.start, len(each)) for each in ids]
    block = JobBlock(ids, clusters, list(range(len(ids))), [f"name{number}" for number in range(len(ids))], "why", 5)
    parts = list(cut_into_parts([block, block], most))

    def jobs(block: JobBlock) -> list[tuple[int, tuple[int, int], int, str]]:
        return [
            (id_, single.clusters[0], single.template_ids[0], single.names[0])
            for single in block.split()
            for id_ in single.ids[0]
        ]

    assert [job for part in parts for each in part for job in jobs(each)] == jobs(block) * 2
    sizes = [sum(each.job_count for each in part) for part in parts]
    assert set(sizes[:-1]) <= {most}
    assert 0 < sizes[-1] <= most
