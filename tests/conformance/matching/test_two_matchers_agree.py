"""The quick way of matching leaves in the database what the plain way leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pilotage.values.attempts import Outcome
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.record import FeedCursor, FeedEvent
from pilotage_server.operations.matching.bind import SlotRequest, bind_jobs
from pilotage_server.operations.matching.general_match import RequestingPilot, match_slots
from pilotage_server.operations.matching.offers import Offers, read_offers
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.attempts import load_history
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.events import events_of, feed_bounds
from support.grid import Grid, Pilot, a_slot
from support.jobs import a_user
from support.virtual_clock import VirtualClock

Way = Callable[[Transaction, ServerState, RequestingPilot, Offers], object]


def quickly(transaction: Transaction, state: ServerState, pilot: RequestingPilot, offers: Offers) -> None:
    """Match in the way that is taken where it can be."""
    bind_jobs(transaction, state, [SlotRequest(pilot, offers)])


def match(grid: Grid, pilot: Pilot, way: Way, slots: int) -> None:
    """Let a pilot have jobs for so many slots."""
    credential = pilot.identity.pilot
    assert credential is not None
    offers = read_offers(grid.state, credential.queue, [a_slot(f"slot{number}") for number in range(slots)])
    grid.write(lambda transaction, state: way(transaction, state, RequestingPilot(credential, "node1"), offers))


def left(grid: Grid, pilot: Pilot, job_id: int) -> tuple[Any, ...]:
    """Return what the database has of a job that the pilot was given, without whose it is."""
    job = grid.job(job_id)._replace(id=0, cluster=0, process=0)
    attempts = grid.read(lambda transaction, _: load_history(transaction.session, job_id))
    events = grid.read(lambda transaction, _: events_of(transaction.session, job_id))
    assert (job.pilot_stamp, attempts[-1].pilot_stamp) == (pilot.stamp, pilot.stamp)
    assert events[-1].actor == f"pilot:{pilot.stamp}"
    last = attempts[-1]._replace(job_id=0, pilot_stamp="")
    return job._replace(pilot_stamp=""), last, events[-1]._replace(position=0, job_id=0, actor="")


@pytest.mark.parametrize("slots", [1, 3, 40])
def test_the_quick_way_leaves_what_the_plain_way_leaves(database: Database, clock: VirtualClock, slots: int) -> None:
    grid = Grid(database, clock)
    ids = grid.submit(count=2 * slots, attributes={"AccountingGroup": "tests.one"})
    first, others = ids[::slots], [job_id for place, job_id in enumerate(ids) if place % slots]
    grid.change(JobChange.HOLD, *others)
    early = grid.start_pilot()
    for match_ in early.ask(a_slot("a"), a_slot("b")).matches:
        early.report(match_, Outcome.EVICTED)
    grid.change(JobChange.RELEASE, *others)
    quick, plain = grid.start_pilot(), grid.start_pilot()
    match(grid, quick, quickly, slots)
    match(grid, plain, match_slots, slots)
    assert {grid.job(job_id).attempt for job_id in first} == {2}
    quickly_left = [left(grid, quick, job_id) for job_id in ids[:slots]]
    assert quickly_left == [left(grid, plain, job_id) for job_id in ids[slots:]]


def test_a_server_takes_no_match_of_its_own_for_one_of_others(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    grid.submit(a_user("alice"))
    match(grid, grid.start_pilot(), quickly, 1)
    grid.pass_time(minutes=10)
    late, early = grid.submit(a_user("alice"))[0], grid.submit(a_user("bob"))[0]
    others = grid.state.feed_cursor = FeedCursor(newest(grid))
    heard: list[FeedEvent] = []
    grid.state.event_listeners.append(heard.extend)
    pilot = grid.start_pilot()
    match(grid, pilot, quickly, 2)
    assert [grid.job(job_id).slot for job_id in (early, late)] == ["slot0", "slot1"]
    assert others.unread_ranges(newest(grid)) == []
    assert [event.job_id for event in heard] == [late]


def newest(grid: Grid) -> int:
    """Return the position of the newest event."""
    return grid.read(lambda transaction, _: feed_bounds(transaction.session))[1]
