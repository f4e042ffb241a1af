"""What the end of a lease means beside the job's own step: its attempt, the use it is charged for, its pilot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import BY_WISH, JobCause
from pilotage_server.core.leases import AttemptRecord
from pilotage_server.operations.metering import settle
from pilotage_server.operations.world import World
from pilotage_server.storage import attempts
from pilotage_server.storage.engine import Unit


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """A job, as it was before, that gives up its lease, and why."""

    job: JobRecord
    cause: JobCause
    reason: str

    @property
    def key(self) -> attempts.AttemptKey:
        """Job id and attempt."""
        return (self.job.id, self.job.attempt)


def leases_ended(unit: Unit, world: World, ends: Sequence[LeaseEnd]) -> None:
    """End the attempts of jobs that leave their leases, charge their use, and call the pilots that must stop."""
    records = attempts.load_attempts(unit.session, [end.key for end in ends])
    still_open = [end for end in ends if end.key in records and records[end.key].ended is None]
    for cause, reason in {(end.cause, end.reason) for end in still_open}:
        alike = [end for end in still_open if (end.cause, end.reason) == (cause, reason)]
        _end_attempts(unit, alike, records, cause, reason)
    settle(unit, world, [records[end.key] for end in still_open])
    for stamp in sorted({end.job.pilot_stamp for end in still_open if end.cause in BY_WISH}):
        unit.after_commit(partial(world.call_pilot, stamp))



def _end_attempts(
    unit: Unit,
    ends: Sequence[LeaseEnd],
    records: dict[attempts.AttemptKey, AttemptRecord],
    cause: JobCause,
    reason: str,
) -> None:
    """End attempts; one of which its pilot has said how it ended keeps that word."""
    told = [end.key for end in ends if records[end.key].reported]
    untold = [end.key for end in ends if not records[end.key].reported]
    attempts.change(unit.session, told, {"ended": unit.now, "metered": None})
    ending = {"ended": unit.now, "metered": None, "outcome": cause.value, "reason": reason}
    attempts.change(unit.session, untold, ending)
