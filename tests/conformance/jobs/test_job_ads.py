"""Pages of ads, on every database: selections, states, constraints, attributes, and bounds of a page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pilotage.classads.evaluation import Ad
from pilotage.errors import InvalidInputError
from pilotage.job_description import JobDescription
from pilotage.values.jobs import ALL_OWNERS, JobCondition
from pilotage.values.selections import JobSelection
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.states import LIVE, JobState
from pilotage_server.operations.jobs.ads import MOST_CHARACTERS, AdFilter, list_ads
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.engine import Database
from support.jobs import a_description, a_user, an_operator

ALICE, BOB, OLGA = a_user("alice"), a_user("bob"), an_operator()
ANY = JobCondition(owner=ALL_OWNERS)


@pytest.fixture
def state() -> ServerState:
    return ServerState()


def submit(database: Database, state: ServerState, identity: Identity, description: JobDescription) -> list[int]:
    groups = single_groups([description])
    return [*database.write(lambda transaction: submit_jobs(transaction, state, identity, groups)).job_ids]


def ads_of(database: Database, identity: Identity, wanted: AdFilter, size: int = 1000) -> list[list[Ad]]:
    """Return the ads of all pages."""
    pages: list[list[Ad]] = []
    token = ""
    while not pages or token:
        page = database.read(lambda transaction: list_ads(transaction, ServerState(), identity, wanted, size, token))  # noqa: B023
        pages.append([Ad.read(text) for text in page.ads])
        token = page.next_page_token
    return pages


def ids(pages: list[list[Ad]]) -> list[int]:
    return [int(ad.value("PilotageJobId")) for page in pages for ad in page]  # type: ignore[arg-type]


def test_pages_look_at_a_bounded_number_of_jobs(database: Database, state: ServerState) -> None:
    jobs = submit(database, state, ALICE, a_description(count=7))
    found = ads_of(database, ALICE, AdFilter(JobCondition(where="ProcId == 1 || ProcId == 6")), size=3)
    assert [len(page) for page in found] == [1, 0, 1]
    assert ids(found) == [jobs[1], jobs[6]]
    newest = ads_of(database, ALICE, AdFilter(JobCondition(), newest_first=True), size=3)
    assert ids(newest) == [*reversed(jobs)]


def test_large_ads_end_a_page_early(database: Database, state: ServerState) -> None:
    notes = {f"Note{number}": "x" * 60_000 for number in range(MOST_CHARACTERS // 3 // 60_000 + 1)}
    jobs = submit(database, state, ALICE, a_description(count=6, attributes=notes))
    found = ads_of(database, ALICE, AdFilter(JobCondition()))
    assert [len(page) for page in found] == [3, 3]
    assert ids(found) == jobs


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_selections_name_clusters_and_processes(database: Database, state: ServerState, size: int) -> None:
    first = submit(database, state, ALICE, a_description(count=3))
    second = submit(database, state, ALICE, a_description(count=3))
    theirs = submit(database, state, BOB, a_description())
    selections = (
        JobSelection(second[0], (1, 1)),
        JobSelection(first[0]),
        JobSelection(first[0], (2, 4)),  # the cluster ends at process 2: the ids behind it are another cluster's
        JobSelection(theirs[0]),
        JobSelection(10**9),
    )
    wanted = AdFilter(replace(ANY, selections=selections))
    found = ads_of(database, ALICE, wanted, size)
    assert ids(found) == [*first, second[1]]
    assert ids(ads_of(database, OLGA, wanted, size)) == [
        *first,
        second[1],
        *theirs,
    ]


def test_states_and_owners_restrict_ads(database: Database, state: ServerState) -> None:
    removed, waits = submit(database, state, ALICE, a_description(count=2))
    theirs = submit(database, state, BOB, a_description())
    database.write(lambda transaction: change_jobs(transaction, state, ALICE, [removed], JobChange.REMOVE, "enough"))
    assert ids(ads_of(database, ALICE, AdFilter(JobCondition(LIVE)))) == [waits]
    (gone,) = ads_of(database, ALICE, AdFilter(JobCondition(frozenset({JobState.REMOVED}))))[0]
    assert [gone.value(name) for name in ("JobStatus", "RemoveReason")] == [3, "enough"]
    assert ids(ads_of(database, OLGA, AdFilter(JobCondition(LIVE, owner=ALL_OWNERS)))) == [waits, *theirs]
    assert ids(ads_of(database, ALICE, AdFilter(JobCondition(owner="bob")))) == []


def test_ads_have_the_named_attributes(database: Database, state: ServerState) -> None:
    submit(database, state, ALICE, a_description(arguments="a $(Process)", count=2))
    wanted = AdFilter(JobCondition(), attributes=("procid", "Args", "ExitCode"))
    assert [ad.plain() for ad in ads_of(database, ALICE, wanted)[0]] == [
        {"ProcId": 0, "Args": "a 0"},
        {"ProcId": 1, "Args": "a 1"},
    ]


@pytest.mark.parametrize("constraint", ["(", "regexp(Owner, Owner)", "x" * 5000])
def test_constraints_are_bounded(database: Database, state: ServerState, constraint: str) -> None:
    with pytest.raises(InvalidInputError, match="where"):
        ads_of(database, ALICE, AdFilter(JobCondition(where=constraint)))
