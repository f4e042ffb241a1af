"""The one way to move jobs: decided by the table of steps, stored by compare-and-set, told as events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pilotage.errors import StateConflictError
from pilotage_server.core.job_events import JobEvent
from pilotage_server.core.job_policies import UNDER_POLICY
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.job_steps import stepped, waits
from pilotage_server.core.jobs import JobCause, JobState
from pilotage_server.core.waiting import Head
from pilotage_server.operations.arrivals import arrive, depart
from pilotage_server.operations.event_outbox import tell
from pilotage_server.operations.lease_ends import LeaseEnd, leases_ended
from pilotage_server.operations.metering import meter_moves
from pilotage_server.operations.running_counts import count_moves
from pilotage_server.operations.task_queueing import placed_again
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import COUNTED, changed_columns, compare_and_set


@dataclass(frozen=True, slots=True)
class Move:
    """A step that a job is to take; `changes` are fields of its record that change with it."""

    job: JobRecord
    cause: JobCause
    reason: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)


def step(
    unit: Unit, world: World, job: JobRecord, cause: JobCause, *, reason: str, actor: str, **changes: Any
) -> JobRecord:
    """Move one job and return its record after the step.

    Raises
    ------
    IllegalTransitionError
        The job's state has no such step.
    StateConflictError
        Somebody else has moved the job since it was loaded.
    """
    (moved,) = steps(unit, world, [Move(job, cause, reason, changes)], actor=actor)
    if moved is None:
        raise StateConflictError(f"job {job.id} is no longer {job.state} in attempt {job.attempt}")
    return moved


def steps(unit: Unit, world: World, moves: Sequence[Move], *, actor: str) -> tuple[JobRecord | None, ...]:
    """Move jobs, each at most once, and return their records after it; None = somebody else has moved that one.

    Raises
    ------
    IllegalTransitionError
        Some job's state has no such step; then no job has moved.
    """
    after = _placed(unit, world, moves, [_after(unit, move) for move in moves])
    moved = _store(unit, moves, after)
    leases_ended(unit, world, _lease_ends(moves, after, moved))
    made = [(move, record) for move, record in zip(moves, after, strict=True) if record.id in moved]
    meter_moves(unit, world, ((move.job, record) for move, record in made))
    count_moves(unit, world, [(move.job, record) for move, record in made])
    depart(unit, world, [move.job for move, _ in made if waits(move.job)])
    waiting = [record for _, record in made if waits(record)]
    arrive(unit, world, [(record.task_queue_id, Head(record.priority, record.id)) for record in waiting])
    changed = [record.id for _, record in made if record.watch and record.state in UNDER_POLICY]
    if changed:
        unit.after_commit(partial(world.look_at, changed))
    for move, record in made:
        tell(unit, world, _event(unit, move, record, actor))
    return tuple(record if record.id in moved else None for record in after)


@dataclass(frozen=True, slots=True)
class _Alike:
    """Jobs whose rows change alike, but for what is counted."""

    values: Mapping[str, Any]
    jobs: list[JobRecord] = field(default_factory=list)
    own: list[Mapping[str, Any]] = field(default_factory=list)


def _after(unit: Unit, move: Move) -> JobRecord:
    # PostgreSQL keeps no zero characters, and a reason may come from a payload's last words.
    reason = move.reason.replace("\0", "")
    return stepped(move.job, move.cause, reason=reason, now=unit.now, **move.changes)


def _placed(unit: Unit, world: World, moves: Sequence[Move], after: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the records, those that come back to wait in the task queues where what they have behind them leads."""
    waiting = JobState.WAITING
    pairs = zip(moves, after, strict=True)
    comers = [record for move, record in pairs if record.state is waiting and move.job.state is not waiting]
    places = placed_again(unit, world, comers, {move.job.id for move in moves if "pool_id" in move.changes})
    return [replace(record, task_queue_id=places.get(record.id, record.task_queue_id)) for record in after]


def _store(unit: Unit, moves: Sequence[Move], after: Sequence[JobRecord]) -> set[int]:
    """Store the records, those that change alike in one statement; return the ids of the jobs that moved."""
    alike: dict[tuple[object, ...], _Alike] = {}
    for move, record in zip(moves, after, strict=True):
        values = {"state": record.state.value, **changed_columns(move.job, record)}
        own = {name: values.pop(name) for name in COUNTED & values.keys()}
        group = alike.setdefault((move.job.state, move.job.attempt, *sorted(values.items())), _Alike(values))
        group.jobs.append(move.job)
        group.own.append(own)
    stored = (compare_and_set(unit.session, group.jobs, group.values, group.own) for group in alike.values())
    return {job_id for moved in stored for job_id in moved}


def _lease_ends(moves: Sequence[Move], after: Sequence[JobRecord], moved: set[int]) -> list[LeaseEnd]:
    return [
        LeaseEnd(move.job, move.cause, record.reason)
        for move, record in zip(moves, after, strict=True)
        if record.id in moved and move.job.is_leased and not record.is_leased
    ]


def _event(unit: Unit, move: Move, after: JobRecord, actor: str) -> JobEvent:
    return JobEvent(
        position=0,
        job_id=after.id,
        time=unit.now,
        from_state=move.job.state,
        to_state=after.state,
        cause=move.cause,
        reason=after.reason,
        attempt=after.attempt,
        actor=actor,
    )
