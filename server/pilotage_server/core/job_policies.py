"""The policies that a job is under, its own and the operators', and what they want done with it now.

Rules
-----
As HTCondor's schedd decides (its manual: condor_submit, periodic_hold, periodic_release, periodic_remove, and
SYSTEM_PERIODIC_*): only True itself counts, so undefined does nothing; hold goes before release, release before
remove, and the job's own expression before the operators'. A hold that somebody asked for is not lifted by an
expression, nor that of a job which has been released as often as it may be: that one can still be removed. A job
whose payload has ended is left alone: its outcome is on the way. An expression is evaluated once for equal values of
what it refers to, so an array of jobs that it cannot tell apart costs one evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pilotage.folding import fold
from pilotage.job_description import NO_POLICY, JobDescription, JobPolicy, Value
from pilotage_server.core.ad_evaluator import AdEvaluator, FoldedAd, changes_with_time, is_constant
from pilotage_server.core.holds import HoldCode
from pilotage_server.core.job_changes import JobChange, refusal_of
from pilotage_server.core.job_record import JobRecord, PolicyWatch
from pilotage_server.core.jobs import LIVE, JobCause, JobState

UNDER_POLICY = LIVE - {JobState.RECEIVED, JobState.COMPLETING, JobState.RACING}
"""States in which policies may act on a job."""

_STARTED = frozenset({JobState.RUNNING, JobState.SUSPENDED})
_ALLOWED_DURATION = fold("AllowedJobDuration")
_LARGEST_SUBCODE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done with a job: it is HELD, RELEASED or REMOVED, why, and for a hold its codes."""

    cause: JobCause
    reason: str
    code: HoldCode = HoldCode.JOB_POLICY
    subcode: int = 0


@dataclass(frozen=True, slots=True)
class _Source:
    """Whose a policy is: how its reasons begin, and the code of its holds."""

    policy: JobPolicy
    words: str
    code: HoldCode


class PolicyJudge:
    """Says what policies want done with jobs; `system` is the operators', over every job.

    `max_releases` = how often a job may be released, None = without limit.
    """

    def __init__(self, system: JobPolicy = NO_POLICY, max_releases: int | None = None) -> None:
        self._max_releases = max_releases
        self._system = _Source(system, "system_", HoldCode.SYSTEM_POLICY)
        self._evaluator = AdEvaluator()

    def watch(self, description: JobDescription) -> PolicyWatch:
        """Return when jobs of this description must be looked at."""
        own = _watch_of(description.policy)
        if _allowed_duration_s(description.attributes) is not None:
            own = PolicyWatch.EACH_MINUTE
        return max(own, self.watch_of_all)

    @property
    def watch_of_all(self) -> PolicyWatch:
        """When every job must be looked at, for the operators' sake."""
        return _watch_of(self._system.policy)

    def verdict(self, job: JobRecord, description: JobDescription, ad: FoldedAd, now: datetime) -> Verdict | None:
        """Return what is to be done with the job, whose full ad is `ad`; None = nothing."""
        if job.state not in UNDER_POLICY:
            return None
        sources = (_Source(description.policy, "its ", HoldCode.JOB_POLICY), self._system)
        if job.state is JobState.HELD:
            first = self._released(job, sources, ad)
        else:
            first = _overstayed(job, description, now) or self._held(sources, ad)
        return first or self._removed(sources, ad)

    def _held(self, sources: tuple[_Source, ...], ad: FoldedAd) -> Verdict | None:
        for source in sources:
            policy = source.policy
            if self._is_true(policy.periodic_hold, ad):
                reason = self._text(policy.periodic_hold_reason, ad)
                reason = reason or _became_true(source, "periodic_hold", policy.periodic_hold)
                subcode = self._integer(policy.periodic_hold_subcode, ad)
                return Verdict(JobCause.HELD, reason, source.code, subcode)
        return None

    def _released(self, job: JobRecord, sources: tuple[_Source, ...], ad: FoldedAd) -> Verdict | None:
        if job.hold_code == HoldCode.USER_REQUEST or refusal_of(job, JobChange.RELEASE, self._max_releases):
            return None
        for source in sources:
            text = source.policy.periodic_release
            if self._is_true(text, ad):
                return Verdict(JobCause.RELEASED, _became_true(source, "periodic_release", text))
        return None

    def _removed(self, sources: tuple[_Source, ...], ad: FoldedAd) -> Verdict | None:
        for source in sources:
            text = source.policy.periodic_remove
            if self._is_true(text, ad):
                return Verdict(JobCause.REMOVED, _became_true(source, "periodic_remove", text))
        return None

    def _is_true(self, text: str | None, ad: FoldedAd) -> bool:
        return text is not None and self._evaluator.value(text, ad) is True

    def _text(self, text: str | None, ad: FoldedAd) -> str:
        value = None if text is None else self._evaluator.value(text, ad)
        return value if isinstance(value, str) else ""

    def _integer(self, text: str | None, ad: FoldedAd) -> int:
        value = None if text is None else self._evaluator.value(text, ad)
        if isinstance(value, bool) or not isinstance(value, int):
            return 0
        return value if abs(value) <= _LARGEST_SUBCODE else 0


def _became_true(source: _Source, name: str, text: str | None) -> str:
    return f"{source.words}{name} became true: {' '.join((text or '').split())}"


def _overstayed(job: JobRecord, description: JobDescription, now: datetime) -> Verdict | None:
    """Return the hold of a job that runs longer than its AllowedJobDuration (condor_submit, allowed_job_duration)."""
    allowed_s = _allowed_duration_s(description.attributes)
    if allowed_s is None or job.started is None or job.state not in _STARTED:
        return None
    if (now - job.started).total_seconds() <= allowed_s:
        return None
    reason = f"it ran longer than its allowed_job_duration of {allowed_s:g} s"
    return Verdict(JobCause.HELD, reason, HoldCode.JOB_DURATION_EXCEEDED)


def _allowed_duration_s(attributes: Mapping[str, Value]) -> float | None:
    """Return the attribute in seconds; None = there is none, or it is no number."""
    for name, value in attributes.items():
        if fold(name) == _ALLOWED_DURATION and isinstance(value, int | float) and not isinstance(value, bool):
            return value
    return None


def _watch_of(policy: JobPolicy) -> PolicyWatch:
    if policy == NO_POLICY:
        return PolicyWatch.NEVER
    texts = (policy.periodic_hold, policy.periodic_release, policy.periodic_remove)
    watches = [_watch_of_expression(text) for text in texts if text is not None]
    return max(watches, default=PolicyWatch.NEVER)


def _watch_of_expression(text: str) -> PolicyWatch:
    if changes_with_time(text):
        return PolicyWatch.EACH_MINUTE
    never = is_constant(text) and AdEvaluator().value(text, FoldedAd({})) is not True
    return PolicyWatch.NEVER if never else PolicyWatch.ON_CHANGE
