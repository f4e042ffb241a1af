"""Matching on every database: which job a slot gets, and which requests new jobs wake."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account
from pilotage.values.attempts import Outcome
from pilotage_server.app import is_compiled
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.record import FeedCursor, FeedEvent
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.core.matching.matcher import Chosen, Matcher
from pilotage_server.core.matching.slot_match import MatchRequest
from pilotage_server.core.queueing.reach import QueueAccess
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.operations.attempts.pilot_calls import DrainPilot
from pilotage_server.operations.matching.bind import SlotRequest, bind_jobs
from pilotage_server.operations.matching.idle_pilots import PossibleSlots, could_match
from pilotage_server.operations.matching.offers import Offers, RequestingPilot, read_offers
from pilotage_server.operations.matching.request_jobs import request_many
from pilotage_server.operations.matching.work import WorkAnswer, WorkRequest
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.attempts import load_history
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.events import events_of, feed_bounds
from support.grid import LONG, Grid, Pilot, a_slot, a_tree, request_jobs
from support.jobs import a_user, after_transition
from support.reference_binding import bind_one_by_one
from support.virtual_clock import VirtualClock


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def test_waiting_job_is_matched_to_requesting_pilot(grid: Grid) -> None:
    (job_id,) = grid.submit(name="simulation")
    match = grid.start_pilot().take()
    job = grid.job(job_id)
    assert (match.job_id, match.attempt, match.slot) == (job_id, 1, "slot1")
    assert match.lease == timedelta(minutes=20)
    assert match.rendered().environment["PILOTAGE_JOB_ID"] == str(job_id)
    assert (job.state, job.attempt, job.queue) == (JobState.MATCHED, 1, QueueId.parse(LONG))
    assert job.lease_until == grid.clock() + timedelta(minutes=20)


def test_requests_of_a_batch_share_what_was_read_of_single_jobs(grid: Grid) -> None:
    ids = grid.submit(count=100, requirements_expression="MY.ProcId > 0")
    pilots = [grid.start_pilot(), grid.start_pilot()]
    requests = [WorkRequest(tuple(a_slot(f"s{number}") for number in range(slots))) for slots in (30, 20)]
    answers = grid.write(
        lambda transaction, state: request_many(
            transaction, state, [(pilot.identity, request) for pilot, request in zip(pilots, requests, strict=True)]
        )
    )
    matched_ids = [[match.job_id for match in answer.matches] for answer in answers if isinstance(answer, WorkAnswer)]
    assert matched_ids == [ids[1:31], ids[31:51]]


@pytest.mark.skipif(is_compiled(), reason="compiled code does not look methods up by name")
def test_request_for_many_slots_releases_the_lock_between_jobs_with_a_rank(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[int] = []
    choose = Matcher.choose

    def counted(matcher: Matcher, request: MatchRequest, access: QueueAccess) -> Chosen:
        found = choose(matcher, request, access)
        chosen.append(len(found.reservations))
        return found

    monkeypatch.setattr(Matcher, "choose", counted)
    ids = grid.submit(count=50, rank="TARGET.Cpus")
    answer = grid.start_pilot().request_jobs(*(a_slot(f"s{number}", cpus=1 + number) for number in range(300)))
    assert [(match.job_id, match.slot) for match in answer.matches] == [
        (job_id, f"s{299 - place}") for place, job_id in reversed(list(enumerate(ids)))
    ]
    assert len([jobs for jobs in chosen if jobs]) > 1


def test_match_changes_only_what_its_transition_sets(grid: Grid) -> None:
    (job_id,) = grid.submit()
    first = grid.start_pilot()
    match = first.take()
    first.start(match)
    first.report(match, Outcome.EVICTED, exit_code=3, reason="the node is needed")
    before = grid.job(job_id)
    grid.clock.advance(timedelta(minutes=5))
    second = grid.start_pilot()
    second.take()
    after = grid.job(job_id)

    assert before.started is not None
    place = {name: getattr(after, name) for name in ("lease_until", "queue", "node", "slot")}
    decided = {"attempt": 2, "pilot_stamp": second.stamp, **place}
    assert after == after_transition(before, JobCause.MATCHED, reason="", now=grid.clock(), **decided)


def test_answer_is_empty_without_jobs(grid: Grid) -> None:
    assert grid.start_pilot().request_jobs().matches == ()


def test_array_is_matched_in_order(grid: Grid) -> None:
    ids = grid.submit(count=5)
    pilot = grid.start_pilot()
    assert [pilot.take().job_id for _ in ids] == ids
    assert pilot.claim() == []


def test_one_call_fills_static_and_partitionable_slots(grid: Grid) -> None:
    ids = grid.submit(count=6, request_cpus=2)
    answer = grid.start_pilot().request_jobs(
        a_slot("static", cpus=4), a_slot("big", cpus=5, partitionable=True), a_slot("small", cpus=1)
    )
    assert [(match.slot, match.terms.amounts.cpus) for match in answer.matches] == [
        ("static", 4),
        ("big", 2),
        ("big", 2),
    ]
    assert [match.job_id for match in answer.matches] == ids[:3]


def test_jobs_released_together_cause_one_notification(grid: Grid) -> None:
    ids = grid.submit(count=50, hold=True)
    notified: list[int] = []
    grid.state.waiting_listeners.append(lambda task_queue, count: notified.append(count))
    grid.change(JobChange.RELEASE, *ids)
    assert notified == [50]
    assert grid.start_pilot().claim() == ids[:1]


def test_unknown_pilot_is_drained(grid: Grid) -> None:
    grid.submit()
    answer = grid.pilot_of(PilotCredential("stranger", QueueId.parse(LONG))).request_jobs()
    assert answer.matches == ()
    assert isinstance(answer.commands[0], DrainPilot)


def test_pilot_of_removed_queue_is_drained(grid: Grid) -> None:
    grid.submit()
    pilot = grid.start_pilot()
    grid.put(a_tree("CERN/ce01/short"))
    answer = pilot.request_jobs()
    assert (answer.matches, isinstance(answer.commands[0], DrainPilot)) == ((), True)


def test_pilot_gets_only_jobs_of_its_vo(grid: Grid) -> None:
    grid.submit(a_user(vo="cms"))
    (job_id,) = grid.submit(a_user(vo="lhcb"))
    assert grid.start_pilot(LONG, "LHCb").claim(a_slot("a"), a_slot("b")) == [job_id]


@pytest.mark.parametrize(
    ("fields", "offers", "fits"),
    [
        ({"requirements": {"Memory": 4000}}, {"Memory": 4000}, True),
        ({"requirements": {"Memory": 4000}}, {"Memory": 2000}, False),
        ({"requirements": {"Memory": 4000}}, {}, False),
        ({"request_memory_mib": 4000}, {}, True),
        ({"request_memory_mib": 4000}, {"Memory": 2000}, False),
        ({"sites": ("cern",)}, {}, True),
        ({"sites": ("FNAL",)}, {}, False),
        ({"banned_sites": ("CERN",)}, {}, False),
        ({}, {"VOs": ["cms"]}, False),
        ({}, {"Enabled": False}, False),
    ],
)
def test_job_is_matched_only_in_eligible_queue(
    database: Database, clock: VirtualClock, fields: dict[str, Any], offers: dict[str, Any], fits: bool
) -> None:
    grid = Grid(database, clock, LONG, **offers)
    grid.submit(**fields)
    assert bool(grid.start_pilot().claim(a_slot(memory_mib=10_000))) is fits


def test_restarted_server_continues_matching(grid: Grid) -> None:
    first, second, third = grid.submit(count=3)
    pilot = grid.start_pilot()
    match = pilot.take()
    restarted = grid.restarted()
    pilot.grid = restarted
    assert pilot.finish(match).accepted
    assert pilot.claim(a_slot("a"), a_slot("b")) == [second, third]
    assert restarted.job(first).state is JobState.DONE


def test_new_jobs_notify_waiting_requests(grid: Grid) -> None:
    notified: list[tuple[str, int]] = []
    grid.state.waiting_listeners.append(lambda queue, count: notified.append((queue.account.owner, count)))
    grid.submit(count=7)
    assert notified == [("alice", 7)]


def test_slot_gets_no_job_of_declined_task_queue(grid: Grid) -> None:
    grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    pilot.report(match, Outcome.DECLINED)
    assert pilot.claim(a_slot(declined_task_queues=frozenset({match.task_queue_id}))) == []
    assert pilot.claim() == [match.job_id]


def test_owners_share_slots_in_any_submission_order(grid: Grid) -> None:
    grid.submit(a_user("alice"), count=10)
    grid.submit(a_user("bob"), count=10)
    matches = grid.start_pilot().request_jobs(*(a_slot(f"s{n}") for n in range(6))).matches
    assert sorted(match.owner for match in matches) == ["alice"] * 3 + ["bob"] * 3


def test_use_of_owner_survives_restart(grid: Grid) -> None:
    grid.submit(a_user("alice"), count=3)
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.clock.advance(minutes=10)
    pilot.finish(match)
    restarted = grid.restarted()
    restarted.submit(a_user("bob"))
    pilot.grid = restarted
    assert restarted.state.shares.use(Account("lhcb", "users", "alice"), restarted.clock()).core_s == pytest.approx(
        600, rel=0.01
    )
    assert pilot.take().owner == "bob"


def test_waiting_request_is_woken_only_for_fitting_job(grid: Grid) -> None:
    notified: list[TaskQueue] = []
    grid.state.waiting_listeners.append(lambda queue, _: notified.append(queue))
    grid.submit(request_cpus=2)
    credential = grid.start_pilot(LONG, "lhcb").identity.pilot
    other = grid.start_pilot(LONG, "cms").identity.pilot
    assert credential is not None
    assert other is not None
    arguments = grid.state, grid.clock(), notified[0]
    assert could_match(*arguments, credential, [a_slot(cpus=1), a_slot(cpus=2)]) is PossibleSlots.FREE_SLOT
    assert not could_match(*arguments, credential, [a_slot(cpus=1)])
    assert not could_match(*arguments, other, [a_slot(cpus=2)])


def test_answer_shows_whether_the_pilots_pools_changed(grid: Grid) -> None:
    grid.put(a_tree(LONG, Memory=8000))
    pilot = grid.start_pilot()
    (job_id,) = grid.submit(requirements={"Memory": 4000})
    assert not pilot.request_jobs().pools_changed
    pool_id, other_id = grid.job(job_id).pool_id, "0" * 64
    assert not _request_with_pools(grid, pilot, (pool_id,)).pools_changed
    assert _request_with_pools(grid, pilot, (other_id,)).pools_changed


def _request_with_pools(grid: Grid, pilot: Pilot, pool_ids: tuple[str, ...]) -> WorkAnswer:
    return grid.write(
        lambda transaction, state: request_jobs(transaction, state, pilot.identity, WorkRequest(pool_ids=pool_ids))
    )


MatchFunction = Callable[[Transaction, ServerState, RequestingPilot, Offers], object]


def match_directly(transaction: Transaction, state: ServerState, pilot: RequestingPilot, offers: Offers) -> None:
    """Match by the matcher."""
    bind_jobs(transaction, state, [SlotRequest(pilot, offers)])


def match_with(grid: Grid, pilot: Pilot, match_function: MatchFunction, slots: int) -> None:
    """Match jobs to `slots` free slots of a pilot."""
    credential = pilot.identity.pilot
    assert credential is not None
    offers = read_offers(grid.state, credential.queue, [a_slot(f"slot{number}") for number in range(slots)])
    grid.write(
        lambda transaction, state: match_function(transaction, state, RequestingPilot(credential, "node1"), offers)
    )


def stored_match(grid: Grid, pilot: Pilot, job_id: int) -> tuple[Any, ...]:
    """Return the stored job, attempt and event of a match, without the ids of job and pilot."""
    job = grid.job(job_id)._replace(id=0, cluster=0, process=0)
    attempts = grid.read(lambda transaction, _: load_history(transaction.session, job_id))
    events = grid.read(lambda transaction, _: events_of(transaction.session, job_id))
    assert (job.pilot_stamp, attempts[-1].pilot_stamp) == (pilot.stamp, pilot.stamp)
    assert events[-1].actor == f"pilot:{pilot.stamp}"
    last = attempts[-1]._replace(job_id=0, pilot_stamp="")
    return job._replace(pilot_stamp=""), last, events[-1]._replace(position=0, job_id=0, actor="")


@pytest.mark.parametrize("slots", [1, 3, 40])
def test_batched_binding_has_the_effect_of_transitions(database: Database, clock: VirtualClock, slots: int) -> None:
    grid = Grid(database, clock)
    ids = grid.submit(count=2 * slots, attributes={"AccountingGroup": "tests.one"})
    first, others = ids[::slots], [job_id for place, job_id in enumerate(ids) if place % slots]
    grid.change(JobChange.HOLD, *others)
    early = grid.start_pilot()
    for granted in early.request_jobs(a_slot("a"), a_slot("b")).matches:
        early.report(granted, Outcome.EVICTED)
    grid.change(JobChange.RELEASE, *others)
    in_a_batch, one_by_one = grid.start_pilot(), grid.start_pilot()
    match_with(grid, in_a_batch, match_directly, slots)
    match_with(grid, one_by_one, bind_one_by_one, slots)
    assert {grid.job(job_id).attempt for job_id in first} == {2}
    direct_matches = [stored_match(grid, in_a_batch, job_id) for job_id in ids[:slots]]
    assert direct_matches == [stored_match(grid, one_by_one, job_id) for job_id in ids[slots:]]


def test_server_skips_its_own_match_in_the_feed(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    grid.submit(a_user("alice"))
    match_with(grid, grid.start_pilot(), match_directly, 1)
    grid.pass_time(minutes=10)
    late, early = grid.submit(a_user("alice"))[0], grid.submit(a_user("bob"))[0]
    others = grid.state.feed_cursor = FeedCursor(newest(grid))
    published: list[FeedEvent] = []
    grid.state.event_listeners.append(published.extend)
    pilot = grid.start_pilot()
    match_with(grid, pilot, match_directly, 2)
    assert [grid.job(job_id).slot for job_id in (early, late)] == ["slot0", "slot1"]
    assert others.unread_ranges(newest(grid)) == []
    assert [event.job_id for event in published] == [late]


def newest(grid: Grid) -> int:
    """Return the position of the newest event."""
    return grid.read(lambda transaction, _: feed_bounds(transaction.session))[1]
