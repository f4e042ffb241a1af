"""The settings of the racer."""

from __future__ import annotations

from pydantic import Field

from pilotage_agents.racer.planning import RacingRules
from pilotage_agents.runtime.settings import AgentSection, Interval, Seconds


class RacerSettings(AgentSection):
    """The racer: when race copies of repeatable jobs are started, and how many.

    A job at the tail of its set is slow when it has run both `slower_than` and `least_run_s`.
    """

    least_jobs: int = Field(10, ge=2, le=10**6, description="The least number of jobs of a set that has a tail.")
    part_done: float = Field(
        0.9, gt=0, le=1, description="A set is at its tail when this part of it has succeeded and none of it waits."
    )
    slower_than: float = Field(
        1.5, ge=1, le=1000, description="A slow job has run this many times as long as 95 of 100 jobs of the set took."
    )
    least_run_s: Seconds = Field(600, description="The least time that a slow job has run.")
    tail_copies: int = Field(1, ge=0, le=8, description="The copies of a slow job at the tail.")
    urgent_copies: int = Field(2, ge=0, le=8, description="The copies of an urgent job.")
    urgent_after_s: Seconds = Field(60, description="An urgent job gets its copies after this time.")
    needs_free_slot: bool = Field(
        False,
        description="Whether copies start only where another site has a free slot now, so that no pilot must be sent.",
    )
    most_copies: int = Field(100, ge=0, le=100_000, description="The largest number of copies that race at once.")
    most_copies_of_owner: int = Field(
        20, ge=0, le=100_000, description="The largest number of copies of one owner that race at once."
    )
    most_lost_core_s_a_day: float = Field(
        360_000,
        ge=0,
        le=1e12,
        description="No copy may raise an owner's cost of races within a day above this, in core seconds.",
    )
    interval_s: Interval = Field(30, description="The time between two cycles.")

    def rules(self) -> RacingRules:
        """Return the settings that decide on races."""
        return RacingRules(**self.model_dump(exclude={"interval_s", "token_file"}))
