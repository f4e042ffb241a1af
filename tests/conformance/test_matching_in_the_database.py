"""Matching, leases and reports as one server does them, on every database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pilotage.errors import NotFoundError
from pilotage.job_description import JobDescription
from pilotage.resource_tree import QueueId
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.job_changes import JobChange
from pilotage_server.core.jobs import JobState
from pilotage_server.core.pilots import GlideinReport, PilotState
from pilotage_server.core.reports import Outcome
from pilotage_server.core.rules import Rules, RunningLimit
from pilotage_server.core.task_queues import Account, TaskQueue
from pilotage_server.operations.edit_job import edit_job
from pilotage_server.operations.expire_leases import note_alive
from pilotage_server.operations.limit_keys import rekey_for_limits
from pilotage_server.operations.pilot_calls import DrainPilot, Kill
from pilotage_server.operations.pilots import list_pilots
from pilotage_server.operations.request_jobs import WorkAnswer, WorkRequest, could_take, request_jobs
from pilotage_server.operations.slots import list_slots
from pilotage_server.storage.engine import Database
from pilotage_server.storage.pilots import load_pilots
from support.grid import LONG, Grid, Pilot, a_slot, a_tree, an_idle_slot
from support.submissions import a_user
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
    assert match.description.environment["PILOTAGE_JOB_ID"] == str(job_id)
    assert (job.state, job.attempt, job.queue) == (JobState.MATCHED, 1, QueueId.parse(LONG))
    assert job.lease_until == grid.clock() + timedelta(minutes=20)


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
    assert [(match.slot, match.amounts.cpus) for match in answer.matches] == [("static", 4), ("big", 2), ("big", 2)]
    assert [match.job_id for match in answer.matches] == ids[:3]


def test_a_finished_job_is_done_and_its_code_is_kept(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    assert pilot.start(match).accepted
    assert grid.job(job_id).state is JobState.RUNNING
    assert pilot.finish(match).accepted
    job = grid.job(job_id)
    assert (job.state, job.exit_code, job.lease_until) == (JobState.DONE, 0, None)
    assert grid.history(job_id) == [(1, "exited")]


def test_a_bad_exit_code_fails_the_job_with_that_reason(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.finish(pilot.take(), exit_code=3)
    assert (grid.job(job_id).state, grid.job(job_id).reason) == (JobState.FAILED, "exit code 3")


def test_an_outcome_reported_twice_is_recorded_once_and_confirmed_twice(grid: Grid) -> None:
    grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    assert pilot.finish(match).accepted
    assert pilot.finish(match).accepted
    assert not pilot.finish(match, exit_code=0).refusal
    assert pilot.report(match, Outcome.EVICTED).refusal == "another outcome was recorded before"


@pytest.mark.parametrize("outcome", [Outcome.EVICTED, Outcome.DECLINED])
def test_evicted_and_declined_jobs_wait_again_and_nothing_is_spent(grid: Grid, outcome: Outcome) -> None:
    (job_id,) = grid.submit()
    for _ in range(4):
        pilot = grid.start_pilot()
        pilot.report(pilot.take(), outcome, reason="the slot was needed")
    job = grid.job(job_id)
    assert (job.state, job.spent_attempts, job.attempt) == (JobState.WAITING, 0, 4)


def test_the_third_failed_start_fails_the_job_with_its_history(grid: Grid) -> None:
    (job_id,) = grid.submit()
    for number in range(3):
        pilot = grid.start_pilot()
        pilot.report(pilot.take(), Outcome.START_FAILED, reason=f"disk {number} full")
    job = grid.job(job_id)
    assert job.state is JobState.FAILED
    assert "3 attempts were lost" in job.reason
    assert all(f"disk {number} full" in job.reason for number in range(3))


def test_a_lease_that_nobody_renews_gives_the_job_back(grid: Grid) -> None:
    (job_id,) = grid.submit()
    grid.start_pilot().take()
    assert grid.pass_time(minutes=19).jobs == ()
    assert grid.pass_time(minutes=2).jobs == (job_id,)
    assert (grid.job(job_id).state, grid.job(job_id).spent_attempts) == (JobState.WAITING, 1)
    assert grid.start_pilot().claim() == [job_id]


def test_heartbeats_keep_the_lease(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.take()
    for _ in range(6):
        assert grid.pass_time(minutes=15).jobs == ()
        assert [lease.job_id for lease in pilot.beat().renewed] == [job_id]


def test_a_job_may_ask_for_its_own_length_of_lease(grid: Grid) -> None:
    (job_id,) = grid.submit(lease=timedelta(minutes=2))
    pilot = grid.start_pilot()
    assert pilot.take().lease == timedelta(minutes=2)
    assert pilot.beat().next_in == timedelta(seconds=30)
    assert grid.pass_time(minutes=3).jobs == (job_id,)


def test_a_late_outcome_counts_as_long_as_nobody_else_has_the_job(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.pass_time(minutes=30)
    assert pilot.finish(match).accepted
    job = grid.job(job_id)
    assert (job.state, job.attempt, job.spent_attempts) == (JobState.DONE, 1, 0)
    assert grid.start_pilot().claim() == []


def test_a_late_outcome_is_refused_once_somebody_else_has_the_job(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.pass_time(minutes=30)
    other = grid.start_pilot()
    second = other.take()
    assert "lease lost" in pilot.finish(match).refusal
    assert "lease lost" in pilot.finish(match).refusal
    assert other.finish(second).accepted
    assert grid.job(job_id).attempt == 2


def test_a_held_attempt_that_was_given_up_is_adopted_by_a_heartbeat(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.start(pilot.take())
    grid.pass_time(minutes=30)
    answer = pilot.beat()
    assert ([lease.job_id for lease in answer.renewed], answer.lost) == ([job_id], ())
    assert (grid.job(job_id).state, grid.job(job_id).spent_attempts) == (JobState.RUNNING, 0)


def test_a_pilot_hears_which_of_its_attempts_are_lost(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.pass_time(minutes=30)
    grid.start_pilot().take()
    (lost,) = pilot.beat().lost
    assert (lost.job_id, lost.attempt) == (job_id, match.attempt)
    assert "lease lost" in lost.reason


@pytest.mark.parametrize("change", [JobChange.REMOVE, JobChange.HOLD])
def test_a_job_taken_from_its_pilot_is_killed_until_that_is_confirmed(grid: Grid, change: JobChange) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    called: list[str] = []
    grid.world.on_commands.append(called.append)
    grid.change(change, job_id)
    assert called == [pilot.stamp]
    (kill,) = pilot.ask().commands
    assert isinstance(kill, Kill)
    assert (kill.job_id, kill.attempt) == (job_id, 1)
    state = grid.job(job_id).state
    assert pilot.report(match, Outcome.KILLED).accepted
    assert pilot.report(match, Outcome.KILLED).accepted
    assert pilot.ask().commands == ()
    assert grid.job(job_id).state is state


def test_a_rescheduled_job_is_not_adopted_by_its_former_pilot(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.change(JobChange.RESCHEDULE, job_id)
    assert pilot.finish(match).accepted
    assert grid.job(job_id).state is JobState.WAITING


def test_a_glidein_that_is_gone_ends_its_leases_at_once(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.take()
    grid.glidein_ended(pilot)
    job = grid.job(job_id)
    assert (job.state, job.spent_attempts) == (JobState.WAITING, 1)
    assert isinstance(pilot.ask().commands[-1], DrainPilot)


def test_a_pilot_that_says_good_bye_gives_its_jobs_back_unspent(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.take()
    pilot.beat(ending=True, ending_reason="its time is over")
    job = grid.job(job_id)
    assert (job.state, job.spent_attempts, job.reason) == (JobState.WAITING, 0, "its time is over")
    assert pilot.claim() == []


def test_a_draining_pilot_gets_no_work_and_keeps_what_it_has(grid: Grid) -> None:
    first, _ = grid.submit(count=2)
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.drain(pilot)
    answer = pilot.ask()
    assert (answer.matches, answer.commands) == ((), (DrainPilot("maintenance", evict=False),))
    assert pilot.finish(match).accepted
    assert grid.job(first).state is JobState.DONE


def test_a_pilot_that_drains_by_itself_drains_until_it_says_otherwise(grid: Grid) -> None:
    pilot = grid.start_pilot()
    pilot.show(an_idle_slot(), draining=True)
    pilot.beat()
    assert state_of(grid, pilot) is PilotState.DRAINING
    pilot.show(an_idle_slot(), draining=False)
    assert state_of(grid, pilot) is PilotState.RUNNING


def state_of(grid: Grid, pilot: Pilot) -> PilotState:
    """Return the state that the server has a pilot in."""
    return grid.read(lambda unit, _: load_pilots(unit.session, [pilot.stamp]))[pilot.stamp].state


def test_a_late_outcome_of_what_was_edited_since_is_not_the_jobs(grid: Grid) -> None:
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    match = pilot.take()
    grid.pass_time(minutes=21)
    grid.write(lambda unit, world: edit_job(unit, world, a_user(), job_id, JobDescription("/bin/false")))
    assert not pilot.finish(match).accepted
    assert grid.job(job_id).state is JobState.WAITING


def test_a_server_that_was_stopped_for_a_while_gives_no_lease_up_for_that(grid: Grid) -> None:
    (job_id,) = grid.submit()
    grid.start_pilot().take()
    grid.sweep()
    grid.clock.advance(timedelta(hours=3))
    swept = grid.sweep()
    assert (swept.jobs, swept.gap) == ((), timedelta(hours=3))
    assert grid.job(job_id).state is JobState.MATCHED


def test_many_jobs_that_come_back_to_one_task_queue_are_told_of_at_once(grid: Grid) -> None:
    ids = grid.submit(count=50, hold=True)
    told: list[int] = []
    grid.world.on_enqueued.append(lambda task_queue, count: told.append(count))
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


def test_a_pilot_may_not_report_on_the_attempt_of_another(grid: Grid) -> None:
    (job_id,) = grid.submit()
    match = grid.start_pilot().take()
    assert "is not this pilot's" in grid.start_pilot().finish(match).refusal
    assert grid.job(job_id).state is JobState.MATCHED


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


def test_a_running_limit_is_exact(database: Database, clock: VirtualClock) -> None:
    limit = RunningLimit("cern", None, None, "JobType", "mc", at_most=2)
    grid = Grid(database, clock, LONG, "CERN/ce02/q", "FNAL/ce/q", rules=Rules(running_limits=(limit,)))
    ids = grid.submit(count=5, attributes={"jobtype": "MC"})
    (other,) = grid.submit(attributes={"JobType": "user"})
    pilot = grid.start_pilot()
    taken = pilot.ask(*(a_slot(f"s{n}") for n in range(4))).matches
    assert sorted(match.job_id for match in taken) == sorted([*ids[:2], other])
    assert grid.start_pilot("CERN/ce02/q").claim() == []
    assert grid.start_pilot("FNAL/ce/q").claim() == [ids[2]]
    pilot.finish(next(match for match in taken if match.job_id == ids[0]))
    assert grid.start_pilot("CERN/ce02/q").claim(a_slot("a"), a_slot("b")) == [ids[3]]


def test_the_end_of_a_job_that_a_limit_counts_is_told_to_who_waits_for_another(
    database: Database, clock: VirtualClock
) -> None:
    limit = RunningLimit("CERN", None, None, "owner", "alice", 1)
    grid = Grid(database, clock, rules=Rules(running_limits=(limit,)))
    first, _ = grid.submit(a_user("alice"), count=2)
    grid.submit(a_user("bob"))
    pilot = grid.start_pilot()
    match = pilot.take()
    assert match.job_id == first
    told: list[str] = []
    grid.world.on_enqueued.append(lambda task_queue, count: told.append(task_queue.account.owner))
    pilot.finish(match)
    assert told == ["alice"]


def test_time_without_any_server_extends_the_leases(grid: Grid) -> None:
    (job_id,) = grid.submit()
    grid.write(note_alive)
    pilot = grid.start_pilot()
    pilot.take()
    grid.clock.advance(hours=3)
    assert grid.write(note_alive) == timedelta(hours=3)
    assert grid.sweep().jobs == ()
    assert grid.sweep().pilots == ()
    assert grid.pass_time(minutes=21).jobs == (job_id,)


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
    grid.world.on_enqueued.append(lambda queue, count: told.append((queue.account.owner, count)))
    grid.submit(count=7)
    assert told == [("alice", 7)]


def test_a_pilot_that_was_lost_and_speaks_lives_again(grid: Grid) -> None:
    pilot = grid.start_pilot()
    pilot.show()
    assert grid.pass_time(hours=1).pilots == (pilot.stamp,)
    grid.submit()
    assert pilot.beat().node_wanted
    assert len(pilot.claim()) == 1


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
    assert again.world.shares.use(Account("lhcb", "users", "alice"), again.clock()).core_s == pytest.approx(
        600, rel=0.01
    )
    assert pilot.take().owner == "bob"


def test_a_new_limit_tells_jobs_apart_that_came_before_it(database: Database, clock: VirtualClock) -> None:
    before = Grid(database, clock)
    ids = before.submit(attributes={"JobType": "MC"}) + before.submit(attributes={"JobType": "user"})
    ids += before.submit(attributes={"JobType": "mc"})
    limit = RunningLimit("CERN", None, None, "jobtype", "MC", at_most=1)
    after = Grid(database, clock, rules=Rules(running_limits=(limit,)))
    assert after.write(rekey_for_limits) == 1
    assert after.write(rekey_for_limits) == 0
    assert len({job.task_queue_id for job in after.jobs(ids).values()}) == 2
    assert after.start_pilot().claim(*(a_slot(f"s{n}") for n in range(3))) == ids[:2]


def test_who_waits_is_woken_only_for_what_it_could_take(grid: Grid) -> None:
    told: list[TaskQueue] = []
    grid.world.on_enqueued.append(lambda queue, _: told.append(queue))
    grid.submit(request_cpus=2)
    credential = grid.start_pilot(LONG, "lhcb").identity.pilot
    other = grid.start_pilot(LONG, "cms").identity.pilot
    assert credential is not None
    assert other is not None
    assert could_take(grid.world, told[0], credential, [a_slot(cpus=1), a_slot(cpus=2)])
    assert not could_take(grid.world, told[0], credential, [a_slot(cpus=1)])
    assert not could_take(grid.world, told[0], other, [a_slot(cpus=2)])


def test_slots_are_kept_as_their_pilot_last_showed_them(grid: Grid) -> None:
    pilot = grid.start_pilot()
    assert pilot.beat().node_wanted
    assert not pilot.show(an_idle_slot("a"), an_idle_slot("b")).node_wanted
    assert not pilot.beat().node_wanted
    pilot.show(an_idle_slot("b", cpus=4), an_idle_slot("c"))
    slots = grid.read(lambda unit, _: list_slots(unit, QueueId.parse(LONG)))
    assert [(info.slot.name, info.slot.free.cpus, info.pilot_stamp) for info in slots] == [
        ("b", 4, pilot.stamp),
        ("c", 1, pilot.stamp),
    ]
    pilot.beat(ending=True)
    assert grid.read(lambda unit, _: list_slots(unit)) == ()


def test_pilots_are_listed_with_what_they_hold(grid: Grid) -> None:
    grid.submit(count=3)
    busy, idle = grid.start_pilot(), grid.start_pilot()
    match = busy.take()
    busy.take()
    busy.finish(match)
    grid.glidein_ended(idle)
    assert grid.glidein(GlideinReport("nobody", "1", PilotState.RUNNING)) == ("nobody",)
    (info,) = grid.read(lambda unit, _: list_pilots(unit))
    assert (info.pilot.stamp, info.pilot.state, info.jobs, info.pilot.jobs_ended) == (
        busy.stamp,
        PilotState.RUNNING,
        1,
        1,
    )
    every = grid.read(lambda unit, _: list_pilots(unit, QueueId.parse(LONG), ended=True))
    assert {each.pilot.stamp: each.pilot.state for each in every}[idle.stamp] is PilotState.ENDED


def test_a_pilot_cannot_be_registered_for_a_queue_that_is_not_there(grid: Grid) -> None:
    with pytest.raises(NotFoundError, match="CERN/ce01/none"):
        grid.start_pilot("CERN/ce01/none")


def test_a_list_of_pools_that_differs_from_the_servers_is_told_and_no_list_claims_nothing(grid: Grid) -> None:
    grid.put(a_tree(LONG, Memory=8000))
    pilot = grid.start_pilot()
    (job_id,) = grid.submit(requirements={"Memory": 4000})
    assert not pilot.ask().pools_changed
    mine, another = grid.job(job_id).pool_id, "0" * 64
    assert not _asked(grid, pilot, (mine,)).pools_changed
    assert _asked(grid, pilot, (another,)).pools_changed


def _asked(grid: Grid, pilot: Pilot, pool_ids: tuple[str, ...]) -> WorkAnswer:
    return grid.write(lambda unit, world: request_jobs(unit, world, pilot.identity, WorkRequest(pool_ids=pool_ids)))
