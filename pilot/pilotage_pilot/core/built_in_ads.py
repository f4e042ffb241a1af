"""The ads of a node without a policy, or without the ClassAd library: facts alone, and HTCondor's defaults.

Rules
-----
Nothing is evaluated and no job's ad is read, so that a pilot on a platform without the library works as one with it
that was given no policy. Such an ad has no Start and no Rank: every job may start, none is preferred.
"""

from __future__ import annotations

from collections.abc import Mapping

from pilotage_pilot.core.fact_ads import FactAds
from pilotage_pilot.core.judgement import BuiltInJudge
from pilotage_pilot.core.moment import Moment


class BuiltInAds(FactAds):
    """The ads of a node's slots under the built-in policy."""

    settable: tuple[str, ...] = ()
    preempts = False

    def judge(self, name: str, now: Moment) -> BuiltInJudge:
        """Return who answers for the slot's expressions."""
        return BuiltInJudge()

    def starts(self, name: str, job_ad: str, now: Moment) -> bool | None:
        """Say whether a job may start in a slot: any may."""
        return True

    def rank(self, name: str, job_ad: str, now: Moment) -> float:
        """Return how much a slot likes a job: all alike."""
        return 0.0

    def renice(self, name: str, job_ad: str, now: Moment) -> int:
        """Return the nice value of a job in a slot."""
        return 0

    def set_attributes(self, expressions: Mapping[str, str]) -> dict[str, str]:
        """Refuse what operators set; returns why, by attribute."""
        return dict.fromkeys(expressions, "this node has no policy that lists it as settable")
