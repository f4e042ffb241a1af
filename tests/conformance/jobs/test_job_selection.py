"""Selection of jobs against a plain filter over the same jobs, whichever way leads to them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

import pytest

from pilotage_server.core.jobs.conditions import JobQuery, narrowing
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import FINAL, LEASED, LIVE, JobState
from pilotage_server.operations.jobs.conditions import ads_of
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.selection import SMALL, WINDOW, JobFinder
from support.jobs import a_description, a_user

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)
SITES, NODES = ("", "CERN", "RAL"), ("", "n1", "N2")
NAMES = ("sim-$(Process)", "Sim_1", "ana-$(cluster)", "a%b", "")


@pytest.fixture
def jobs(database: Database) -> list[JobRecord]:
    """Return jobs of several owners with any states, places and times."""
    dice = random.Random(7)
    for owner, vo in (("alice", "lhcb"), ("bob", "lhcb"), ("alice", "cms"), ("Bob", "lhcb")):
        for name in NAMES:
            groups = single_groups([a_description(name=name, count=8)])
            database.write(
                lambda transaction: submit_jobs(transaction, ServerState(), a_user(owner, vo), groups)  # noqa: B023
            )

    def scatter(transaction: Transaction) -> list[JobRecord]:
        for (job_id,) in sql.rows(transaction.session, "SELECT id FROM jobs ORDER BY id"):
            state = dice.choice(list(JobState))
            began = sql.column_time(transaction.session, NOON - timedelta(minutes=dice.randrange(600)))
            sql.execute(
                transaction.session,
                "UPDATE jobs SET state = ?, site = ?, ce = ?, queue = ?, node = ?, submitted = ?, state_since = ?,"
                " ended = ?, lease_until = ?, race = ?, exit_code = ? WHERE id = ?",
                state.value,
                *((dice.choice(SITES[1:]), "ce", dice.choice("pq")) if dice.random() < 0.7 else ("", "", "")),
                dice.choice(NODES),
                began,
                began if dice.random() < 0.5 else None,
                began if state in FINAL else None,
                began if state in LEASED else None,
                job_id if state is JobState.RACING else dice.choice((0, 0, 0, 1)),
                dice.choice((0, 1, 2, None)) if state in FINAL else None,
                job_id,
            )
        ids = [job_id for (job_id,) in sql.rows(transaction.session, "SELECT id FROM jobs")]
        return [*load_jobs(transaction.session, ids).values()]

    return database.write(scatter)


def is_wanted(job: JobRecord, query: JobQuery) -> bool:
    """Return whether a job meets the query, one condition after the other."""
    place = (job.queue.site, job.queue.ce, job.queue.queue) if job.queue else ("", "", "")
    began = job.ended or job.state_since or job.submitted
    if query.states and job.state not in query.states:
        return False
    if any(wanted and wanted != had for wanted, had in zip((query.site, query.ce, query.queue), place, strict=True)):
        return False
    if query.node and query.node.lower() != job.node.lower():
        return False
    if (query.owner is not None and query.owner != job.owner) or (query.vo is not None and query.vo != job.vo):
        return False
    if query.name and not fnmatchcase(job.name, query.name):
        return False
    if (query.since is not None and began < query.since) or (query.until is not None and began >= query.until):
        return False
    if query.ranges is not None and not any(job.id in ids for ids in query.ranges):
        return False
    return query.copies or job.race in (0, job.id)


def queries(dice: random.Random) -> Iterator[JobQuery]:
    """Yield queries with each part alone, and then with several of them."""
    hour = timedelta(hours=1)
    parts: dict[str, tuple[Any, ...]] = {
        "states": (
            *(frozenset({state}) for state in (JobState.HELD, JobState.RUNNING, JobState.FAILED, JobState.WAITING)),
            *(
                LIVE,
                FINAL,
                LEASED,
                LEASED | {JobState.HELD, JobState.RACING},
                frozenset({JobState.DONE, JobState.HELD}),
            ),
        ),
        "owner": ("alice", "bob", "nobody"),
        "vo": ("lhcb", "cms"),
        "site": SITES[1:],
        "node": ("n1", "n2"),
        "name": ("sim-*", "Sim?1", "sim-[1-3]", "a%b", "ana-*", "*1*", "[!s]*"),
        "since": (NOON - hour, NOON - 5 * hour),
        "until": (NOON - 2 * hour, NOON - 8 * hour),
        "ranges": ((range(3, 20),), (range(5, 6), range(40, 90), range(150, 400)), ()),
        "copies": (True,),
        "newest_first": (True,),
    }
    yield JobQuery()
    for name, values in parts.items():
        yield from (JobQuery(**{name: value}) for value in values)
    for _ in range(60):
        yield JobQuery(**{name: dice.choice(values) for name, values in parts.items() if dice.random() < 0.35})


@pytest.mark.parametrize(
    ("window", "small", "page"),
    [(WINDOW, SMALL, 1000), (7, SMALL, 3), (WINDOW, 0, 3), (7, 0, 1000)],
    ids=["small indexes", "small indexes and short pages", "one window", "many windows"],
)
def test_selection_equals_a_filter(
    database: Database, jobs: list[JobRecord], window: int, small: int, page: int
) -> None:
    def found(transaction: Transaction, query: JobQuery) -> list[int]:
        ids, position = list[int](), 0
        while True:
            found = JobFinder(transaction.session, query, window, small).next(position, page)
            assert len(found.jobs) <= page
            ids += (job.id for job in found.jobs)
            position = found.position
            if not position:
                return ids

    for query in queries(random.Random(11)):
        wanted = sorted((job.id for job in jobs if is_wanted(job, query)), reverse=query.newest_first)
        assert database.read(lambda transaction: found(transaction, query)) == wanted, query  # noqa: B023


@pytest.mark.parametrize(
    "where",
    [
        'Owner == "ALICE"',
        'Owner =?= "bob" && JobStatus == 5',
        "JobStatus == 2 || JobStatus == 5",
        "(JobStatus == 3) && ExitCode =?= undefined",
        "JobStatus =?= 2",
        "4 == JobStatus && ExitCode == 1",
        "ProcId > 3 && 100 >= PilotageJobId",
        f"QDate >= {int(NOON.timestamp()) - 7200}",
        f'{int(NOON.timestamp()) - 7200} > QDate && VO == "cms"',
        f"QDate == {int(NOON.timestamp()) - 3600} || ProcId == 7",
    ],
)
def test_expression_selects_the_same_jobs_by_database_and_ads(
    database: Database, jobs: list[JobRecord], where: str
) -> None:
    follows = narrowing(where)
    query = JobQuery(follows.states, bounds=follows.bounds, copies=True)

    def both(transaction: Transaction) -> tuple[list[int], list[int]]:
        all_jobs = [job.id for job, _ in ads_of(transaction, jobs, where)]
        found = [job.id for job in JobFinder(transaction.session, query).next(0, 10_000).jobs]
        narrowed = load_jobs(transaction.session, found).values()
        return all_jobs, [job.id for job, _ in ads_of(transaction, narrowed, where)]

    all_jobs, narrowed = database.read(both)
    assert narrowed == all_jobs
    assert all_jobs
