"""RouteJobs: job routers take waiting jobs for copies that they are about to make."""

from __future__ import annotations

from collections.abc import Sequence

from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.job_steps import waits
from pilotage_server.core.jobs import JobCause, JobState
from pilotage_server.core.leases import AttemptRecord
from pilotage_server.core.routes import NO_END, CopyRecord, NewCopy, RoutedJob, stamp_of
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.core.turns import Turn
from pilotage_server.operations.job_steps import Move, steps
from pilotage_server.operations.route_gates import gates_of
from pilotage_server.operations.task_queueing import task_queues_of
from pilotage_server.operations.turns import hold_turn
from pilotage_server.operations.world import World
from pilotage_server.storage.attempts import insert_attempts, mark_trials
from pilotage_server.storage.claims import lock_jobs
from pilotage_server.storage.copies import insert_copies
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import load_jobs


def route_jobs(unit: Unit, world: World, turn: Turn, copies: Sequence[NewCopy]) -> tuple[RoutedJob, ...]:
    """Begin an attempt, which the router holds, of each of the jobs that may go as these copies; answers in order.

    The jobs are different ones. Raises TurnLostError.
    """
    hold_turn(unit, turn)
    ids = [copy.job_id for copy in copies]
    lock_jobs(unit.session, ids)
    jobs = load_jobs(unit.session, ids)
    task_queues = task_queues_of(unit, world, {job.task_queue_id for job in jobs.values()})
    gates = gates_of(unit, world, [copy.place for copy in copies])
    taken: list[tuple[NewCopy, JobRecord]] = []
    refusals: dict[int, str] = {}
    for copy in copies:
        job = jobs.get(copy.job_id)
        why = why_not_waiting(copy.job_id, job)
        if job is not None and not why:
            why = gates[copy.place].enter(job, task_queues[job.task_queue_id])
        if job is None or why:
            refusals[copy.job_id] = why
        else:
            taken.append((copy, job))
    _take(unit, world, turn, taken, task_queues)
    mark_trials(unit.session, [gate.trial for gate in gates.values() if gate.trial is not None])
    attempts = {job.id: job.attempt + 1 for _, job in taken}
    return tuple(RoutedJob(id_, attempts.get(id_, 0), refusals.get(id_, "")) for id_ in ids)


def why_not_waiting(job_id: int, job: JobRecord | None) -> str:
    """Return why the job cannot be taken, wherever the copy goes; "" = it can."""
    if job is None:
        return f"there is no job {job_id}"
    if waits(job):
        return ""
    return "its last attempt may still be running" if job.state is JobState.WAITING else f"it is {job.state}"


def _take(
    unit: Unit,
    world: World,
    turn: Turn,
    taken: Sequence[tuple[NewCopy, JobRecord]],
    task_queues: dict[int, TaskQueue],
) -> None:
    """Begin the attempts: jobs that are locked cannot be moved by anybody else."""
    if not taken:
        return
    moved = steps(unit, world, [_move(unit, turn, copy, job) for copy, job in taken])
    after = [job for job in moved if job is not None]
    assert len(after) == len(taken), "nobody moves jobs that are locked"
    insert_attempts(unit.session, [_attempt(unit, job, task_queues[job.task_queue_id]) for job in after])
    records = [
        CopyRecord(job.id, job.attempt, turn.agent, copy.route, copy.target, "", unit.now)
        for (copy, _), job in zip(taken, after, strict=True)
    ]
    insert_copies(unit.session, records)


def _move(unit: Unit, turn: Turn, copy: NewCopy, job: JobRecord) -> Move:
    stamp = stamp_of(turn.agent)
    changes = {
        "attempt": job.attempt + 1,
        "lease_until": unit.now + NO_END,
        "pilot_stamp": stamp,
        "queue": copy.place,
        "node": "",
        "slot": copy.route,
    }
    return Move(job, JobCause.MATCHED, stamp, f"route {copy.route} to {copy.target}", changes)


def _attempt(unit: Unit, job: JobRecord, task_queue: TaskQueue) -> AttemptRecord:
    """Return the attempt that has begun; it uses nothing before its payload starts."""
    assert job.queue is not None, "a job that was just routed has a place"
    cpus = task_queue.traits.amounts.cpus
    return AttemptRecord(
        job_id=job.id,
        attempt=job.attempt,
        pilot_stamp=job.pilot_stamp,
        queue=job.queue,
        node=job.node,
        slot=job.slot,
        cpus=cpus,
        weight=float(cpus),
        account=task_queue.account,
        matched=unit.now,
    )
