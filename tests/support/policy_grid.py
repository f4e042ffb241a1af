"""A grid whose server looks after the jobs' policies, but only when it is told to."""

from __future__ import annotations

from functools import partial

from pilotage_server.core.jobs.record import PolicyWatch
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.operations.jobs.periodic_policies import apply_policies, scan_changed, scan_next
from pilotage_server.operations.jobs.queries import get_events
from pilotage_server.operations.matching.work import Match
from pilotage_server.storage.retention import WatchPosition, first_watched
from support.grid import Grid, Pilot
from support.submissions import an_operator


class PolicyGrid(Grid):
    """A grid whose server looks after policies as its duty does, but only when it is told to."""

    def look(self) -> list[int]:
        """Look at what has changed, and do what is wanted; return the ids of the jobs that moved."""
        moved: list[int] = []
        while (seen := self.read(lambda transaction, state: scan_changed(transaction, state, 100))).jobs:
            moved += self.act(seen.due)
        return moved

    def look_round(self, least: PolicyWatch = PolicyWatch.EACH_MINUTE, batch: int = 3) -> list[int]:
        """Make one round over the jobs under policies of that watch."""
        place: WatchPosition | None = first_watched(least)
        moved: list[int] = []
        while place is not None:
            seen = self.read(partial(scan_next, place=place, most=batch))
            moved += self.act(seen.due)
            place = seen.position
        return moved

    def act(self, wanting: tuple[int, ...]) -> list[int]:
        """Do what is wanted; return the ids of the jobs that moved."""
        return [job.id for job in self.write(lambda transaction, state: apply_policies(transaction, state, wanting))]

    def run_for(self, pilot: Pilot, seconds: float) -> Match:
        """Let the pilot run a job for so long; it stays running."""
        match = pilot.take()
        pilot.start(match)
        left = seconds
        while left > 0:
            step = min(left, 600.0)
            self.pass_time(seconds=step)
            pilot.beat()
            left -= step
        return match

    def causes(self, job_id: int) -> list[JobCause]:
        """Return what has happened to a job."""
        return [
            event.cause for event in self.read(lambda transaction, _: get_events(transaction, an_operator(), job_id))
        ]
