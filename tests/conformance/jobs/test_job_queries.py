"""Queries about jobs and their events, on every database: pages, filters, and permissions."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from pilotage.errors import FeedPositionLostError, InvalidInputError, NotFoundError
from pilotage.values.jobs import JobCondition
from pilotage_server.core.identity import Holder, Identity
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.record import FeedEvent, FeedPage
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.operations.jobs import queries
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.queries import (
    JobPage,
    feed_owner,
    get_description,
    get_events,
    get_jobs,
    list_jobs,
    read_feed,
    read_news,
)
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.engine import Database
from support.jobs import a_description, a_user, an_operator

ALICE, BOB, OLGA = a_user("alice"), a_user("bob"), an_operator()


@pytest.fixture
def state() -> ServerState:
    return ServerState()


def submit(database: Database, state: ServerState, identity: Identity, count: int = 1) -> tuple[int, ...]:
    return database.write(
        lambda transaction: submit_jobs(transaction, state, identity, single_groups([a_description(count=count)]))
    ).job_ids


def listing(
    database: Database, wanted: JobCondition, size: int, token: str = "", *, newest_first: bool = False
) -> JobPage:
    return database.read(
        lambda transaction: list_jobs(transaction, ServerState(), ALICE, wanted, size, token, newest_first=newest_first)
    )


def listed(database: Database, identity: Identity, wanted: JobCondition = JobCondition()) -> list[int]:  # noqa: B008
    page = database.read(lambda transaction: list_jobs(transaction, ServerState(), identity, wanted))
    return [job.id for job in page.jobs]


def test_jobs_are_returned_in_requested_order_with_repeats(database: Database, state: ServerState) -> None:
    first, second = submit(database, state, ALICE, 2)
    jobs = database.read(lambda transaction: get_jobs(transaction, ALICE, [second, first, second]))
    assert [job.id for job in jobs] == [second, first, second]


def test_job_of_another_owner_is_not_found(database: Database, state: ServerState) -> None:
    (hers,) = submit(database, state, ALICE)
    for query in (get_description, get_events):
        with pytest.raises(NotFoundError, match=f"there is no job {hers}"):
            database.read(partial(query, identity=BOB, job_id=hers))
    with pytest.raises(NotFoundError):
        database.read(lambda transaction: get_jobs(transaction, a_user("alice", "atlas"), [hers]))
    assert database.read(lambda transaction: get_jobs(transaction, OLGA, [hers]))[0].id == hers


def test_pages_have_no_gap_or_overlap(database: Database, state: ServerState) -> None:
    ids = submit(database, state, ALICE, 7)
    submit(database, state, BOB, 3)
    listed_ids: list[int] = []
    token = ""
    for size in (3, 3, 1):
        page = listing(database, JobCondition(), 3, token)
        assert len(page.jobs) == size
        listed_ids += [job.id for job in page.jobs]
        token = page.next_page_token
    assert listed_ids == list(ids)
    assert token == ""


def test_newest_first_pages_have_their_own_tokens(database: Database, state: ServerState) -> None:
    ids = submit(database, state, ALICE, 5)
    first = listing(database, JobCondition(), 3, newest_first=True)
    rest = listing(database, JobCondition(), 3, first.next_page_token, newest_first=True)
    assert [job.id for job in (*first.jobs, *rest.jobs)] == [*reversed(ids)]
    assert rest.next_page_token == ""
    with pytest.raises(InvalidInputError, match="other filters"):
        listing(database, JobCondition(), 3, first.next_page_token)


def test_jobs_are_listed_by_state_owner_and_pool(database: Database, state: ServerState) -> None:
    hers = submit(database, state, ALICE, 2)
    (his,) = submit(database, state, BOB)
    with_pool = database.write(
        lambda transaction: submit_jobs(
            transaction, state, ALICE, single_groups([a_description(requirements={"Memory": 1})])
        )
    ).job_ids
    pool = database.read(lambda transaction: get_jobs(transaction, ALICE, with_pool))[0].pool_id
    database.write(lambda transaction: change_jobs(transaction, state, ALICE, [hers[0]], JobChange.HOLD, ""))
    assert listed(database, ALICE, JobCondition(states=frozenset({JobState.HELD}))) == [hers[0]]
    assert listed(database, ALICE, JobCondition(pool=pool)) == [*with_pool]
    assert listed(database, ALICE) == [*hers, *with_pool]
    assert listed(database, ALICE, JobCondition(owner="*")) == [*hers, *with_pool]
    assert listed(database, ALICE, JobCondition(owner="bob")) == []
    assert listed(database, OLGA) == []
    assert listed(database, OLGA, JobCondition(owner="bob")) == [his]
    assert listed(database, OLGA, JobCondition(owner="*")) == [*hers, his, *with_pool]


def test_page_out_of_bounds_or_of_another_query_is_refused(database: Database, state: ServerState) -> None:
    submit(database, state, ALICE, 3)
    token = listing(database, JobCondition(), 1).next_page_token
    held = JobCondition(states=frozenset({JobState.HELD}))
    for wanted, size, page_token in ((JobCondition(), -1, ""), (JobCondition(), 10_001, ""), (held, 1, token)):
        with pytest.raises(InvalidInputError):
            listing(database, wanted, size, page_token)


def test_feed_is_read_page_by_page_from_a_position(database: Database, state: ServerState) -> None:
    ids = submit(database, state, ALICE, 5)
    first = database.read(lambda transaction: read_feed(transaction, ALICE, 0, limit=3))
    assert [event.job_id for event in first.events] == list(ids[:3])
    assert not first.at_end
    rest = database.read(lambda transaction: read_feed(transaction, ALICE, first.position, limit=3))
    assert [event.job_id for event in rest.events] == list(ids[3:])
    assert rest.at_end
    database.write(lambda transaction: change_jobs(transaction, state, ALICE, ids[:1], JobChange.HOLD, "why"))
    (event,) = database.read(lambda transaction: read_feed(transaction, ALICE, rest.position)).events
    assert (event.cause, event.reason, event.actor, event.position > rest.position) == (
        JobCause.HELD,
        "why",
        "alice",
        True,
    )


def test_feed_shows_permitted_and_requested_jobs(database: Database, state: ServerState) -> None:
    hers = submit(database, state, ALICE, 2)
    his = submit(database, state, BOB, 2)
    assert [event.job_id for event in database.read(lambda transaction: read_feed(transaction, BOB, 0)).events] == [
        *his
    ]
    assert len(database.read(lambda transaction: read_feed(transaction, OLGA, 0)).events) == 4
    requested = [hers[1], his[0]]
    assert [
        e.job_id for e in database.read(lambda transaction: read_feed(transaction, OLGA, 0, requested)).events
    ] == requested
    assert [
        e.job_id for e in database.read(lambda transaction: read_feed(transaction, ALICE, 0, requested)).events
    ] == [hers[1]]


def test_empty_feed_ends_at_its_start(database: Database) -> None:
    page = database.read(lambda transaction: read_feed(transaction, ALICE, 0))
    assert (page.events, page.position, page.at_end) == ((), 0, True)


def test_position_that_was_never_given_out_is_refused(database: Database, state: ServerState) -> None:
    submit(database, state, ALICE, 3)
    newest = database.read(lambda transaction: read_feed(transaction, ALICE, 0)).position
    assert database.read(lambda transaction: read_feed(transaction, ALICE, newest)).at_end
    with pytest.raises(FeedPositionLostError) as refused:
        database.read(lambda transaction: read_feed(transaction, ALICE, newest + 1))
    assert refused.value.resume_after == newest


def test_feed_skips_events_of_others_in_bounded_windows(
    database: Database, state: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "WINDOW", 4)
    submit(database, state, BOB, 10)
    (hers,) = submit(database, state, ALICE)
    pages: list[FeedPage] = []
    while not pages or not pages[-1].at_end:
        after = pages[-1].position if pages else 0
        pages.append(database.read(partial(read_feed, identity=ALICE, after_position=after)))
    assert [len(page.events) for page in pages] == [0, 0, 1]
    assert pages[-1].events[0].job_id == hers


def test_feed_reader_misses_no_concurrent_commit(database: Database, state: ServerState) -> None:
    """On PostgreSQL ids are given before the commit; a position must not appear after a higher one was read."""

    def write() -> None:
        for _ in range(15):
            submit(database, state, ALICE, 2)

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    events_read: list[FeedEvent] = []
    page = FeedPage((), 0, at_end=False)
    while any(writer.is_alive() for writer in writers) or not page.at_end:
        page = database.read(partial(read_feed, identity=ALICE, after_position=page.position, limit=7))
        events_read += page.events
    events_read += database.read(partial(read_feed, identity=ALICE, after_position=page.position)).events
    all_events = database.read(partial(read_feed, identity=ALICE, after_position=0)).events
    assert tuple(events_read) == all_events
    assert len(all_events) == 4 * 15 * 2


def test_news_name_the_owners_and_the_ended_jobs(
    database: Database, state: ServerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(database, state, OLGA)
    start = database.read(lambda transaction: read_news(transaction, None)).position
    (job_id,) = submit(database, state, ALICE)
    remove = partial(change_jobs, state=state, identity=ALICE, job_ids=[job_id], change=JobChange.REMOVE, reason="")
    database.write(remove)
    submit(database, state, BOB)
    monkeypatch.setattr(queries, "NEWS_WINDOW", 2)

    first = database.read(lambda transaction: read_news(transaction, start))
    rest = database.read(lambda transaction: read_news(transaction, first.position))

    assert (set(first.owners), first.ended, first.at_end) == (
        {Holder(ALICE.vo, ALICE.owner)},
        frozenset({job_id}),
        False,
    )
    assert (set(rest.owners), rest.ended, rest.at_end) == ({Holder(BOB.vo, BOB.owner)}, frozenset(), True)
    assert feed_owner(OLGA) is None
