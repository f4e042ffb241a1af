"""The settings of the racer."""

from __future__ import annotations

from pydantic import Field

from pilotage_agents.core.racing import RacingRules
from pilotage_agents.settings_sections import Interval, Seconds, Section


class RacerSettings(Section):
    """The racer: when copies of jobs that may be repeated race, and how many.

    A set of at least `least_jobs` is at its tail when `part_done` of it has ended well and none of it waits. A job of
    it is slow when it has run `slower_than` times as long as 95 of 100 of them took, and `least_run_s`; it gets
    `tail_copies` then. An urgent one gets `urgent_copies`, once it has run `urgent_after_s`. `needs_free_slot`: only
    where another site has a slot free for it now, not where a pilot would have to be sent. At most `most_copies` race
    at once, `most_copies_of_owner` of one owner, and none by which races would cost him more within a day than
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
        """Return what of it decides."""
        return RacingRules(**self.model_dump(exclude={"interval_s"}))
