"""Clusters: ids and processes over several descriptions, selections of their jobs, and counts of jobs by state."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest

from pilotage.errors import InvalidInputError, NotFoundError
from pilotage.job_description import JobDescription
from pilotage.values.jobs import JobCondition
from pilotage.values.selections import JobSelection
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.clusters import ClusterSummary, SelectedJobs
from pilotage_server.core.jobs.conditions import JobQuery
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.states import LIVE, JobState
from pilotage_server.operations.jobs import clusters
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.clusters import ClusterPage, find_jobs, list_clusters
from pilotage_server.operations.jobs.new_jobs import PART_JOBS, store_part
from pilotage_server.operations.jobs.queries import get_jobs
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.jobs import take_ids
from pilotage_server.storage.retention import delete_ended_jobs
from pilotage_server.storage.selection import JobFinder
from support.jobs import a_description, a_user, an_operator
from support.sql_statements import plan_of
from support.virtual_clock import START

ALICE, BOB, OLGA = a_user("alice"), a_user("bob"), an_operator()


@pytest.fixture
def state() -> ServerState:
    return ServerState()


def submit(
    database: Database, state: ServerState, *descriptions: JobDescription, identity: Identity = ALICE
) -> tuple[int, ...]:
    groups = single_groups(descriptions)
    ids = database.write(lambda transaction: submit_jobs(transaction, state, identity, groups)).job_ids
    while database.write(lambda transaction: store_part(transaction, state, ids[0])):
        pass
    return ids


def one_cluster(*descriptions: JobDescription) -> list[JobDescription]:
    return [replace(each, continues_cluster=place > 0) for place, each in enumerate(descriptions)]


def change(database: Database, state: ServerState, ids: Sequence[int], what: JobChange) -> None:
    database.write(lambda transaction: change_jobs(transaction, state, OLGA, ids, what, "test"))


def find(database: Database, *selections: JobSelection, identity: Identity = ALICE) -> tuple[SelectedJobs, ...]:
    return database.read(lambda transaction: find_jobs(transaction, identity, selections))


def page_of(
    database: Database, wanted: JobCondition, identity: Identity = ALICE, size: int = 1, token: str = ""
) -> ClusterPage:
    return database.read(lambda transaction: list_clusters(transaction, ServerState(), identity, wanted, size, token))


def listed(database: Database, wanted: JobCondition, identity: Identity = ALICE, size: int = 2) -> list[ClusterSummary]:
    """Return the clusters of all pages."""
    found: list[ClusterSummary] = []
    token = ""
    while True:
        page = database.read(
            lambda transaction: list_clusters(transaction, ServerState(), identity, wanted, size, token)  # noqa: B023
        )
        found += page.clusters
        token = page.next_page_token
        if not token:
            return found


def test_descriptions_share_a_cluster_and_count_processes(database: Database, state: ServerState) -> None:
    first = one_cluster(a_description(name="a-$(Process)"), a_description("/bin/b", count=2), a_description())
    ids = submit(database, state, *first, a_description(count=2), *one_cluster(a_description(), a_description()))
    jobs = database.read(lambda transaction: get_jobs(transaction, ALICE, ids))
    assert [(job.cluster - ids[0], job.process) for job in jobs] == [
        *((0, process) for process in range(4)),
        *((4, process) for process in range(2)),
        *((6, process) for process in range(2)),
    ]
    assert jobs[0].name == "a-0"
    assert jobs[0].template_id != jobs[1].template_id
    assert jobs[0].template_id != jobs[3].template_id
    assert jobs[3].template_id == jobs[6].template_id


def test_cluster_of_several_parts_keeps_its_processes(database: Database, state: ServerState) -> None:
    texts = [a_description(arguments=str(number), count=PART_JOBS) for number in range(3)]
    ids = submit(database, state, *one_cluster(a_description(), *texts))
    jobs = database.read(lambda transaction: get_jobs(transaction, ALICE, ids))
    assert [(job.cluster, job.process) for job in jobs] == [(ids[0], process) for process in range(3 * PART_JOBS + 1)]
    (whole,) = find(database, JobSelection(ids[0]))
    assert whole.runs == (range(ids[0], ids[-1] + 1),)


def test_concurrent_submissions_get_consecutive_ids(postgresql_database: Database) -> None:
    def take(count: int) -> range:
        return postgresql_database.write(lambda transaction: take_ids(transaction.session, count))

    with ThreadPoolExecutor(4) as threads:
        taken = sorted(threads.map(take, [1, 500, 3, 2000] * 20), key=lambda ids: ids.start)
    assert all(before.stop <= after.start for before, after in pairwise(taken))
    assert sorted(map(len, taken)) == sorted([1, 500, 3, 2000] * 20)


def test_selections_name_clusters_parts_and_single_jobs(database: Database, state: ServerState) -> None:
    single, *array = submit(database, state, a_description(), a_description(count=5))
    cluster = array[0]
    expected = {
        JobSelection(single): (range(single, single + 1), 1),
        JobSelection(single, (0, 0)): (range(single, single + 1), None),
        JobSelection(cluster): (range(cluster, cluster + 5), 5),
        JobSelection(cluster, (0, 0)): (range(cluster, cluster + 1), None),
        JobSelection(cluster, (1, 3)): (range(cluster + 1, cluster + 4), None),
        JobSelection(cluster + 1): (range(cluster + 1, cluster + 2), None),
    }
    for identity in (ALICE, OLGA):
        found = find(database, *expected, identity=identity)
        assert [(*each.runs, each.cluster and each.cluster.jobs) for each in found] == [*expected.values()]
    assert find(database, JobSelection(cluster))[0].cluster == listed(database, JobCondition())[0]


def test_selection_of_unknown_jobs_is_not_found(database: Database, state: ServerState) -> None:
    cluster, second, *_ = submit(database, state, a_description(count=5))
    selections = [(cluster, (0, 5)), (second, (0, 0)), (cluster + 5, None), (cluster + 5, (0, 0))]
    for selection in selections:
        with pytest.raises(NotFoundError, match=r"there is no job \d+"):
            find(database, JobSelection(*selection))
    with pytest.raises(
        NotFoundError, match=rf"no job {cluster}\.7; cluster {cluster} has 5 jobs, the last is {cluster}\.4"
    ):
        find(database, JobSelection(cluster, (2, 7)))
    for hidden in (JobSelection(cluster), JobSelection(second), JobSelection(cluster, (0, 9))):
        with pytest.raises(NotFoundError, match=f"there is no job {hidden}$"):
            find(database, hidden, identity=BOB)


def test_states_restrict_whole_clusters_only(database: Database, state: ServerState) -> None:
    single, *array = submit(database, state, a_description(), a_description(count=5))
    change(database, state, [single, array[1], array[2], array[4]], JobChange.HOLD)
    selections = JobSelection(single), JobSelection(array[0]), JobSelection(array[0], (1, 2))
    waiting = database.read(lambda transaction: find_jobs(transaction, ALICE, selections, {JobState.WAITING}))
    assert [[*each.runs] for each in waiting] == [
        [range(single, single + 1)],
        [range(array[0], array[0] + 1), range(array[3], array[3] + 1)],
        [range(array[1], array[2] + 1)],
    ]


def test_cluster_outlives_its_first_job(database: Database, state: ServerState) -> None:
    cluster, *others = submit(database, state, a_description(count=3))
    change(database, state, [cluster, others[0]], JobChange.REMOVE)
    database.write(lambda transaction: delete_ended_jobs(transaction.session, START.replace(year=9999), 10))
    assert find(database, JobSelection(cluster))[0].runs == (range(others[1], others[1] + 1),)
    (summary,) = listed(database, JobCondition())
    assert (summary.id, summary.jobs, summary.counts) == (cluster, 3, {JobState.WAITING: 1})
    with pytest.raises(NotFoundError, match=rf"there is no job {cluster}\.0"):
        find(database, JobSelection(cluster, (0, 1)))


def test_clusters_are_listed_with_counts_of_all_jobs(database: Database, state: ServerState) -> None:
    first, *_ = submit(database, state, a_description(count=4, name="sim-$(Process)"))
    other, *_ = submit(database, state, a_description(), identity=BOB)
    second, third = submit(database, state, a_description(), a_description())
    change(database, state, [first + 3, third], JobChange.REMOVE)
    change(database, state, [first], JobChange.HOLD)

    clusters_of_alice = listed(database, JobCondition())
    assert [each.id for each in clusters_of_alice] == [third, second, first]
    oldest = clusters_of_alice[-1]
    assert oldest.counts == {JobState.HELD: 1, JobState.WAITING: 2, JobState.REMOVED: 1}
    assert (oldest.jobs, oldest.owner, oldest.name) == (4, "alice", "sim-$(Process)")

    live = JobCondition(LIVE)
    assert [each.id for each in listed(database, live)] == [second, first]
    assert [each.id for each in listed(database, JobCondition(frozenset({JobState.REMOVED})))] == [third, first]
    assert [each.id for each in listed(database, replace(live, owner="*"), OLGA)] == [second, other, first]
    assert [each.id for each in listed(database, replace(live, owner="bob"), OLGA)] == [other]
    assert listed(database, JobCondition(owner="bob")) == []
    assert listed(database, JobCondition(pool="none")) == []


def test_answers_end_where_clusters_have_many_jobs(
    database: Database, state: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "MOST_JOBS", 4)
    ids = [submit(database, state, a_description(count=3))[0] for _ in range(3)]
    page = page_of(database, JobCondition(), size=10)
    assert [each.id for each in page.clusters] == [ids[2], ids[1]]
    assert [each.id for each in listed(database, JobCondition(), size=10)] == ids[::-1]
    assert len(find(database, *map(JobSelection, ids))) == 2


def test_page_token_of_other_filters_is_rejected(database: Database, state: ServerState) -> None:
    submit(database, state, a_description(), a_description())
    token = database.read(
        lambda transaction: list_clusters(transaction, ServerState(), ALICE, JobCondition(), 1)
    ).next_page_token
    with pytest.raises(InvalidInputError, match="belongs to a query with other filters"):
        database.read(
            lambda transaction: list_clusters(transaction, ServerState(), ALICE, JobCondition(LIVE), 1, token)
        )


@pytest.mark.parametrize(
    ("wanted", "indexes"),
    [
        (JobQuery(owner="alice", vo="lhcb"), {"ix_jobs_owner_id"}),
        (JobQuery(LIVE, owner="alice", vo="lhcb"), {"ix_jobs_live_owner", "ix_jobs_owner_id"}),
    ],
    ids=["all clusters of an owner", "live clusters of an owner"],
)
def test_next_cluster_is_found_by_an_index(database: Database, wanted: JobQuery, indexes: set[str]) -> None:
    """PostgreSQL chooses between the indexes by its statistics; both have the order."""
    plan = plan_of(database, lambda transaction: JobFinder(transaction.session, wanted).next(7, 1))
    assert any(index in plan for index in indexes)
    assert "Sort" not in plan
    assert "TEMP B-TREE" not in plan
