"""What attempts use: charged to their accounts when it ends or pauses, and known to the shares as it goes on.

An attempt is metered from its match to its end. Where suspended time is discounted, the meter stops while its job
is suspended. What it has used is charged in one piece each time the meter stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial

from pilotage_server.core.fair_share import accrued
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobState
from pilotage_server.core.leases import AttemptRecord
from pilotage_server.operations.usage_tab import charge
from pilotage_server.operations.world import World
from pilotage_server.storage import attempts as stored
from pilotage_server.storage.engine import Unit


def meter_moves(unit: Unit, world: World, moves: Iterable[tuple[JobRecord, JobRecord]]) -> None:
    """Stop the meters of jobs that are now suspended, and let those go on that are suspended no more."""
    held = [(before, after) for before, after in moves if before.is_leased and after.is_leased]
    paused = [_key(after) for before, after in held if _is_suspended(after) and not _is_suspended(before)]
    going = [_key(after) for before, after in held if _is_suspended(before) and not _is_suspended(after)]
    if paused and world.rules.sharing.discount_suspended:
        found = stored.load_attempts(unit.session, paused).values()
        stored.change(unit.session, paused, {"metered": None})
        settle(unit, world, found)
    if going:
        stopped = [each for each in stored.load_attempts(unit.session, going).values() if each.metered is None]
        go_on(unit, world, stopped, unit.now)


def settle(unit: Unit, world: World, attempts: Iterable[AttemptRecord]) -> None:
    """Charge for what the attempts have used; their meters stop, which the caller writes down."""
    half_life = world.rules.sharing.half_life
    for attempt in attempts:
        if attempt.metered is not None:
            used_s = max(0.0, (unit.now - attempt.metered).total_seconds())
            charge(unit, world, attempt.account, accrued(attempt.weight, used_s, half_life))
            unit.after_commit(partial(world.run_ended, attempt.account, attempt.weight, unit.now))


def go_on(unit: Unit, world: World, attempts: Sequence[AttemptRecord], since: datetime) -> None:
    """Let the meters of attempts run again, as if from `since` on."""
    keys = [(attempt.job_id, attempt.attempt) for attempt in attempts]
    stored.change(unit.session, keys, {"metered": since})
    for attempt in attempts:
        unit.after_commit(partial(world.run_started, attempt.account, attempt.weight, unit.now, since))


def _is_suspended(job: JobRecord) -> bool:
    return job.state is JobState.SUSPENDED


def _key(job: JobRecord) -> stored.AttemptKey:
    return (job.id, job.attempt)
