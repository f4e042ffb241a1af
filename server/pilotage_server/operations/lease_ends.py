"""What the end of a lease means beside the job's own step: its attempt, the use it is charged for, its pilot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import BY_WISH, JobCause
from pilotage_server.core.routes import is_routers
from pilotage_server.operations.attempt_book import AttemptBook
from pilotage_server.operations.metering import settle
from pilotage_server.operations.world import World
from pilotage_server.storage.attempts import AttemptKey
from pilotage_server.storage.engine import Unit


class LeaseEnd(NamedTuple):
    """A job, as it was before, that gives up its lease, and why."""

    job: JobRecord
    cause: JobCause
    reason: str

    @property
    def key(self) -> AttemptKey:
        """Job id and attempt."""
        return (self.job.id, self.job.attempt)


def leases_ended(unit: Unit, world: World, ends: Sequence[LeaseEnd], book: AttemptBook) -> None:
    """End the attempts of jobs that leave their leases, charge their use, and call the pilots that must stop."""
    book.read(end.key for end in ends)
    open_ends = [(end, attempt) for end in ends if (attempt := book.get(end.key)) is not None and attempt.ended is None]
    settle(unit, world, [attempt for _, attempt in open_ends])
    for end, attempt in open_ends:
        # one of which its pilot has said how it ended keeps that word
        told = {} if attempt.reported else {"outcome": end.cause.value, "reason": end.reason}
        book.change(end.key, {"ended": unit.now, "metered": None, **told})
    still_open = [end for end, _ in open_ends]
    for stamp in sorted({end.job.pilot_stamp for end in still_open if end.cause in BY_WISH}):
        if is_routers(stamp):  # it asks by itself which copies are wanted no more
            continue
        unit.after_commit(partial(world.call_pilot, stamp))
