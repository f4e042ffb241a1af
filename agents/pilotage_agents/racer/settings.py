"""The settings of the racer."""

from __future__ import annotations

from pydantic import Field

from pilotage.settings import Section
from pilotage_agents.racer.planning import RacingRules
from pilotage_agents.runtime.settings import Interval, Seconds


class RacerSettings(Section):
    """The racer: when race copies of repeatable jobs are started, and how many.

    A set of at least `least_jobs` is at its tail when `part_done` of it has succeeded and none of it waits. A job at
    the tail is slow when it has run `slower_than` times as long as 95 of 100 jobs of the set took, and at least
    `least_run_s`; it gets `tail_copies`. An urgent job gets `urgent_copies` after `urgent_after_s`. `needs_free_slot`:
    only where another site has a free slot now, not where a pilot would have to be sent. At most `most_copies` race at
    once, `most_copies_of_owner` of one owner, and none that would raise the owner's cost of races within a day above
    `most_lost_core_s_a_day`.
    """

    least_jobs: int = Field(default=10, ge=2)
    part_done: float = Field(default=0.9, gt=0, le=1)
    slower_than: float = Field(default=1.5, ge=1, le=1000)
    least_run_s: Seconds = 600
    tail_copies: int = Field(default=1, ge=0, le=8)
    urgent_copies: int = Field(default=2, ge=0, le=8)
    urgent_after_s: Seconds = 60
    needs_free_slot: bool = False
    most_copies: int = Field(default=100, ge=0, le=100_000)
    most_copies_of_owner: int = Field(default=20, ge=0, le=100_000)
    most_lost_core_s_a_day: float = Field(default=360_000, ge=0)
    interval_s: Interval = 30

    def rules(self) -> RacingRules:
        """Return the settings that decide on races."""
        return RacingRules(**self.model_dump(exclude={"interval_s"}))
