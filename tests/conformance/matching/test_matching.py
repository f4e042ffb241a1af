"""Which job goes to which pilot and who is told of new ones, on every database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account
from pilotage.values.attempts import Outcome
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.operations.attempts.pilot_calls import DrainPilot
from pilotage_server.operations.matching.idle_pilots import PossibleSlots, could_match
from pilotage_server.operations.matching.work import WorkAnswer, WorkRequest
from pilotage_server.storage.database.engine import Database
from support.grid import LONG, Grid, Pilot, a_slot, a_tree, request_jobs
from support.jobs import a_user, stepped
from support.virtual_clock import VirtualClock


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def test_a_waiting_job_goes_to_the_pilot_that_asks(grid: Grid) -> None:
    (job_id,) = grid.submit(name="simulation")
    match = grid.start_pilot().take()
    job = grid.job(job_id)
    assert (match.job_id, match.attempt, match.slot) == (job_id, 1, "slot1")
    assert match.lease == timedelta(minutes=20)
    assert match.rendered().environment["PILOTAGE_JOB_ID"] == str(job_id)
    assert (job.state, job.attempt, job.queue) == (JobState.MATCHED, 1, QueueId.parse(LONG))
    assert job.lease_until == grid.clock() + timedelta(minutes=20)


def test_a_match_changes_of_a_job_what_the_step_changes(grid: Grid) -> None:
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
    assert after == stepped(before, JobCause.MATCHED, reason="", now=grid.clock(), **decided)


def test_no_job_is_an_empty_answer(grid: Grid) -> None:
    assert grid.start_pilot().ask().matches == ()


def test_an_array_is_handed_out_in_its_order(grid: Grid) -> None:
    ids = grid.submit(count=5)
    pilot = grid.start_pilot()
    assert [pilot.take().job_id for _ in ids] == ids
    assert pilot.claim() == []


def test_one_call_fills_many_slots_and_what_is_partitionable(grid: Grid) -> None:
    ids = grid.submit(count=6, request_cpus=2)
    answer = grid.start_pilot().ask(
        a_slot("static", cpus=4), a_slot("big", cpus=5, partitionable=True), a_slot("small", cpus=1)
    )
    assert [(match.slot, match.terms.amounts.cpus) for match in answer.matches] == [
        ("static", 4),
        ("big", 2),
        ("big", 2),
    ]
    assert [match.job_id for match in answer.matches] == ids[:3]


def test_many_jobs_that_come_back_to_one_task_queue_are_told_of_at_once(grid: Grid) -> None:
    ids = grid.submit(count=50, hold=True)
    told: list[int] = []
    grid.state.waiting_listeners.append(lambda task_queue, count: told.append(count))
    grid.change(JobChange.RELEASE, *ids)
    assert told == [50]
    assert grid.start_pilot().claim() == ids[:1]


def test_an_unknown_pilot_gets_no_work(grid: Grid) -> None:
    grid.submit()
    answer = grid.pilot_of(PilotCredential("stranger", QueueId.parse(LONG))).ask()
    assert answer.matches == ()
    assert isinstance(answer.commands[0], DrainPilot)


def test_pilots_of_a_queue_that_is_gone_get_no_work_and_end(grid: Grid) -> None:
    grid.submit()
    pilot = grid.start_pilot()
    grid.put(a_tree("CERN/ce01/short"))
    answer = pilot.ask()
    assert (answer.matches, isinstance(answer.commands[0], DrainPilot)) == ((), True)


def test_a_pilot_runs_only_what_its_credential_names(grid: Grid) -> None:
    grid.submit(a_user(vo="cms"))
    (mine,) = grid.submit(a_user(vo="lhcb"))
    assert grid.start_pilot(LONG, "LHCb").claim(a_slot("a"), a_slot("b")) == [mine]


@pytest.mark.parametrize(
    ("asks", "offers", "fits"),
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
def test_a_job_goes_only_where_its_queue_fits(
    database: Database, clock: VirtualClock, asks: dict[str, Any], offers: dict[str, Any], fits: bool
) -> None:
    grid = Grid(database, clock, LONG, **offers)
    grid.submit(**asks)
    assert bool(grid.start_pilot().claim(a_slot(memory_mib=10_000))) is fits


def test_a_server_that_starts_again_goes_on_where_it_stopped(grid: Grid) -> None:
    first, second, third = grid.submit(count=3)
    pilot = grid.start_pilot()
    match = pilot.take()
    again = grid.restarted()
    pilot.grid = again
    assert pilot.finish(match).accepted
    assert pilot.claim(a_slot("a"), a_slot("b")) == [second, third]
    assert again.job(first).state is JobState.DONE


def test_new_jobs_are_told_to_who_waits_for_them(grid: Grid) -> None:
    told: list[tuple[str, int]] = []
    grid.state.waiting_listeners.append(lambda queue, count: told.append((queue.account.owner, count)))
    grid.submit(count=7)
    assert told == [("alice", 7)]


def test_a_declined_task_queue_is_not_offered_to_that_slot_again(grid: Grid) -> None:
    grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    pilot.report(match, Outcome.DECLINED)
    assert pilot.claim(a_slot(declined_task_queues=frozenset({match.task_queue_id}))) == []
    assert pilot.claim() == [match.job_id]


def test_owners_share_the_slots_whoever_came_first(grid: Grid) -> None:
    grid.submit(a_user("alice"), count=10)
    grid.submit(a_user("bob"), count=10)
    matches = grid.start_pilot().ask(*(a_slot(f"s{n}") for n in range(6))).matches
    assert sorted(match.owner for match in matches) == ["alice"] * 3 + ["bob"] * 3


def test_what_an_owner_has_used_survives_a_restart(grid: Grid) -> None:
    grid.submit(a_user("alice"), count=3)
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.clock.advance(minutes=10)
    pilot.finish(match)
    again = grid.restarted()
    again.submit(a_user("bob"))
    pilot.grid = again
    assert again.state.shares.use(Account("lhcb", "users", "alice"), again.clock()).core_s == pytest.approx(
        600, rel=0.01
    )
    assert pilot.take().owner == "bob"


def test_who_waits_is_woken_only_for_what_it_could_take(grid: Grid) -> None:
    told: list[TaskQueue] = []
    grid.state.waiting_listeners.append(lambda queue, _: told.append(queue))
    grid.submit(request_cpus=2)
    credential = grid.start_pilot(LONG, "lhcb").identity.pilot
    other = grid.start_pilot(LONG, "cms").identity.pilot
    assert credential is not None
    assert other is not None
    asked = grid.state, grid.clock(), told[0]
    assert could_match(*asked, credential, [a_slot(cpus=1), a_slot(cpus=2)]) is PossibleSlots.FREE_SLOT
    assert not could_match(*asked, credential, [a_slot(cpus=1)])
    assert not could_match(*asked, other, [a_slot(cpus=2)])


def test_a_list_of_pools_that_differs_from_the_servers_is_told_and_no_list_claims_nothing(grid: Grid) -> None:
    grid.put(a_tree(LONG, Memory=8000))
    pilot = grid.start_pilot()
    (job_id,) = grid.submit(requirements={"Memory": 4000})
    assert not pilot.ask().pools_changed
    mine, another = grid.job(job_id).pool_id, "0" * 64
    assert not _asked(grid, pilot, (mine,)).pools_changed
    assert _asked(grid, pilot, (another,)).pools_changed


def _asked(grid: Grid, pilot: Pilot, pool_ids: tuple[str, ...]) -> WorkAnswer:
    return grid.write(
        lambda transaction, state: request_jobs(transaction, state, pilot.identity, WorkRequest(pool_ids=pool_ids))
    )
