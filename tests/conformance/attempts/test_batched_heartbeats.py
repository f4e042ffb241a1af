"""Heartbeats of many pilots are recorded at once, each as if it had come alone."""

from __future__ import annotations

from datetime import timedelta

from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey, Outcome
from pilotage_server.core.attempts.reports import JobReport, NodeState
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.attempts.heartbeats import HeartbeatAnswer, ReceivedHeartbeat, report_states
from pilotage_server.storage.database.engine import Database
from support.grid import Grid, Pilot
from support.virtual_clock import VirtualClock


def beat(grid: Grid, *beats: tuple[Pilot, ReceivedHeartbeat]) -> list[HeartbeatAnswer]:
    """Record the heartbeats in one transaction."""
    calls = [(pilot.identity, heartbeat) for pilot, heartbeat in beats]
    return grid.write(lambda transaction, state: report_states(transaction, state, calls))


def renewed(answer: HeartbeatAnswer) -> list[int]:
    """Return the ids of the jobs whose leases go on."""
    return [lease.job_id for lease in answer.renewed]


def test_each_pilot_is_answered_for_its_own_leases(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    pilots = [grid.start_pilot() for _ in range(3)]
    jobs = grid.submit(count=3)
    for pilot in pilots:
        pilot.start(pilot.take())
    clock.advance(minutes=5)
    end = JobReport(jobs[1], 1, outcome=Outcome.EXITED, exit_code=0)
    stays, ends, leaves = beat(
        grid,
        (pilots[0], ReceivedHeartbeat(tuple(pilots[0].held), node=NodeState("n1", Amounts(8)))),
        (pilots[1], ReceivedHeartbeat(reports=(end,))),
        (pilots[2], ReceivedHeartbeat(tuple(pilots[2].held), ending=True, ending_reason="its node goes down")),
    )
    assert renewed(stays) == [jobs[0]]
    assert not stays.node_wanted
    assert ends.results[0].accepted
    assert ends.node_wanted
    assert not renewed(leaves)
    assert "its node goes down" in leaves.lost[0].reason
    states = [job.state for job in grid.jobs(jobs).values()]
    assert states == [JobState.RUNNING, JobState.DONE, JobState.WAITING]
    assert grid.job(jobs[0]).lease_until == clock() + timedelta(minutes=20)


def test_leases_of_different_lengths_are_renewed_for_their_own(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    first, second = grid.start_pilot(), grid.start_pilot()
    (usual,), (short,) = grid.submit(), grid.submit(lease=timedelta(minutes=8))
    first.take()
    second.take()
    beat(grid, (first, ReceivedHeartbeat(tuple(first.held))), (second, ReceivedHeartbeat(tuple(second.held))))
    until = {job_id: job.lease_until for job_id, job in grid.jobs([usual, short]).items()}
    assert until == {usual: clock() + timedelta(minutes=20), short: clock() + timedelta(minutes=8)}


def test_what_one_pilot_lost_for_silence_is_adopted_beside_another_s_renewal(
    database: Database, clock: VirtualClock
) -> None:
    grid = Grid(database, clock)
    silent, other = grid.start_pilot(), grid.start_pilot()
    (lost,) = grid.submit(lease=timedelta(minutes=1))
    silent.start(silent.take())
    (kept,) = grid.submit()
    other.start(other.take())
    assert grid.pass_time(minutes=2).jobs == (lost,)
    answers = beat(grid, (silent, ReceivedHeartbeat(tuple(silent.held))), (other, ReceivedHeartbeat(tuple(other.held))))
    assert [renewed(answer) for answer in answers] == [[lost], [kept]]
    assert grid.job(lost).state is JobState.RUNNING


def test_two_heartbeats_of_one_pilot_count_in_their_order(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    pilot = grid.start_pilot()
    (job_id,) = grid.submit()
    held = AttemptKey(job_id, 1)
    pilot.take()
    started = ReceivedHeartbeat((held,), (JobReport(job_id, 1, state=JobState.RUNNING),))
    ended = ReceivedHeartbeat(reports=(JobReport(job_id, 1, outcome=Outcome.EXITED, exit_code=0),))
    first, second, late = beat(grid, (pilot, started), (pilot, ended), (pilot, ReceivedHeartbeat((held,))))
    assert renewed(first) == [job_id]
    assert second.results[0].accepted
    assert not renewed(late)
    assert grid.job(job_id).state is JobState.DONE
