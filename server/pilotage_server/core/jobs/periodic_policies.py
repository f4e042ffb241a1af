"""Periodic policies of jobs: what the owner's and the operators' expressions decide, and which jobs are due.

Rules
-----
As HTCondor's schedd decides (manual: condor_submit, periodic_hold, periodic_release, periodic_remove,
SYSTEM_PERIODIC_*):

- Only True acts; undefined does nothing.
- Hold comes before release, release before remove, and the job's expression before the operators'.
- No expression releases a job that a person has held, or that has been released the allowed number of times. Such a
  job can still be removed.
- A job whose payload has ended is left alone: its outcome will be reported.
- Values are cached by the attributes that an expression reads, so one evaluation serves a whole array.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import lru_cache
from itertools import islice

from pilotage.job_description import NO_POLICY, JobDescription, JobPolicy, Value
from pilotage.text import fold
from pilotage_server.core.classads.evaluation import AdEvaluator, FoldedAd, changes_with_time, is_constant, reads_any
from pilotage_server.core.jobs.changes import JobChange, refusal_of
from pilotage_server.core.jobs.record import JobRecord, PolicyWatch
from pilotage_server.core.jobs.states import LIVE, HoldCode, JobCause, JobState
from pilotage_server.core.jobs.usage import USAGE_NAMES

UNDER_POLICY = LIVE - {JobState.RECEIVED, JobState.COMPLETING, JobState.RACING}
"""States in which policies may act on a job."""

_STARTED = frozenset({JobState.RUNNING, JobState.SUSPENDED})
_ALLOWED_DURATION = fold("AllowedJobDuration")
_LARGEST_SUBCODE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PeriodicPolicyAction:
    """A policy's decision: the job is HELD, RELEASED or REMOVED, with the reason, and for a hold with its codes."""

    cause: JobCause
    reason: str
    code: HoldCode = HoldCode.JOB_POLICY
    subcode: int = 0


@dataclass(frozen=True, slots=True)
class _Source:
    """The owner's or the operators' policy, the prefix of its reasons, and the code of its holds."""

    policy: JobPolicy
    reason_prefix: str
    code: HoldCode


class PeriodicPolicyEvaluator:
    """Evaluates the policies of jobs; `system` is the operators' policy for all jobs.

    `max_releases` = how often a job may be released, None = without limit.
    """

    def __init__(self, system: JobPolicy = NO_POLICY, max_releases: int | None = None) -> None:
        self._max_releases = max_releases
        self._system = _Source(system, "system_", HoldCode.SYSTEM_POLICY)
        self._evaluator = AdEvaluator()

    def watch(self, description: JobDescription) -> PolicyWatch:
        """Return when jobs of this description must be evaluated."""
        own = _watch_of(description.policy)
        if _allowed_duration_s(description.attributes) is not None:
            own = PolicyWatch.EACH_MINUTE
        return max(own, self.system_watch)

    @property
    def system_watch(self) -> PolicyWatch:
        """When every job must be evaluated because of the operators' policy."""
        return _watch_of(self._system.policy)

    def reads_usage(self, description: JobDescription) -> bool:
        """Return whether the policies of such jobs may read what an attempt has used."""
        return any(_reads_usage(policy) for policy in (description.policy, self._system.policy))

    def action(
        self, job: JobRecord, description: JobDescription, ad: FoldedAd, now: datetime
    ) -> PeriodicPolicyAction | None:
        """Return the decision for the job with the complete ad `ad`; None = nothing is to be done."""
        if job.state not in UNDER_POLICY:
            return None
        sources = (_Source(description.policy, "its ", HoldCode.JOB_POLICY), self._system)
        if job.state is JobState.HELD:
            first = self._released(job, sources, ad)
        else:
            first = _duration_hold(job, description, now) or self._held(sources, ad)
        return first or self._removed(sources, ad)

    def _held(self, sources: tuple[_Source, ...], ad: FoldedAd) -> PeriodicPolicyAction | None:
        for source in sources:
            policy = source.policy
            if self._is_true(policy.periodic_hold, ad):
                reason = self._text(policy.periodic_hold_reason, ad)
                reason = reason or _became_true(source, "periodic_hold", policy.periodic_hold)
                subcode = self._integer(policy.periodic_hold_subcode, ad)
                return PeriodicPolicyAction(JobCause.HELD, reason, source.code, subcode)
        return None

    def _released(self, job: JobRecord, sources: tuple[_Source, ...], ad: FoldedAd) -> PeriodicPolicyAction | None:
        if job.hold_code == HoldCode.USER_REQUEST or refusal_of(job, JobChange.RELEASE, self._max_releases):
            return None
        for source in sources:
            text = source.policy.periodic_release
            if self._is_true(text, ad):
                return PeriodicPolicyAction(JobCause.RELEASED, _became_true(source, "periodic_release", text))
        return None

    def _removed(self, sources: tuple[_Source, ...], ad: FoldedAd) -> PeriodicPolicyAction | None:
        for source in sources:
            text = source.policy.periodic_remove
            if self._is_true(text, ad):
                return PeriodicPolicyAction(JobCause.REMOVED, _became_true(source, "periodic_remove", text))
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
    return f"{source.reason_prefix}{name} became true: {' '.join((text or '').split())}"


def _duration_hold(job: JobRecord, description: JobDescription, now: datetime) -> PeriodicPolicyAction | None:
    """Return the hold of a job that runs longer than its AllowedJobDuration (condor_submit, allowed_job_duration)."""
    allowed_s = _allowed_duration_s(description.attributes)
    if allowed_s is None or job.started is None or job.state not in _STARTED:
        return None
    if (now - job.started).total_seconds() <= allowed_s:
        return None
    reason = f"it ran longer than its allowed_job_duration of {allowed_s:g} s"
    return PeriodicPolicyAction(JobCause.HELD, reason, HoldCode.JOB_DURATION_EXCEEDED)


def _allowed_duration_s(attributes: Mapping[str, Value]) -> float | None:
    """Return the attribute in seconds; None = missing or not a number."""
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


@lru_cache(maxsize=1024)
def _reads_usage(policy: JobPolicy) -> bool:
    texts = [getattr(policy, each.name) for each in fields(policy)]
    return any(reads_any(text, USAGE_NAMES) for text in texts if text is not None)


def _watch_of_expression(text: str) -> PolicyWatch:
    if changes_with_time(text) or reads_any(text, USAGE_NAMES):
        return PolicyWatch.EACH_MINUTE
    never = is_constant(text) and AdEvaluator().value(text, FoldedAd({})) is not True
    return PolicyWatch.NEVER if never else PolicyWatch.ON_CHANGE


_MOST = 100_000


class PolicyQueue:
    """Ids of jobs whose policies are due, in order; bounded.

    When too many jobs change at once, only a flag is kept that all jobs are due. A job that a policy has just moved is
    due again after the usual interval, so that two policies that undo each other do not use up a processor.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._now: dict[int, None] = {}
        self._later: deque[tuple[datetime, int]] = deque()
        self._most = most
        self._all = True
        self._all_later: datetime | None = None

    @property
    def has_any(self) -> bool:
        """Whether jobs are due now or later."""
        return bool(self._now or self._later or self._all_later)

    def add(self, job_ids: Iterable[int]) -> None:
        """Add jobs that have changed."""
        for job_id in job_ids:
            if len(self._now) >= self._most:
                self._all = True
                return
            self._now[job_id] = None

    def defer(self, job_ids: Iterable[int], until: datetime) -> None:
        """Make these jobs due at `until`, not before. Times must not decrease between calls."""
        for job_id in job_ids:
            self._now.pop(job_id, None)
            if len(self._later) < self._most:
                self._later.append((until, job_id))
            else:
                self._all_later = until

    def pop(self, now: datetime, most: int) -> list[int]:
        """Remove and return the next jobs that are due."""
        while self._later and self._later[0][0] <= now:
            self.add([self._later.popleft()[1]])
        if self._all_later is not None and self._all_later <= now:
            self._all, self._all_later = True, None
        taken = list(islice(self._now, most))
        for job_id in taken:
            del self._now[job_id]
        return taken

    def pop_all_flag(self) -> bool:
        """Return and reset whether all jobs are due: at first, or after too many changes."""
        was, self._all = self._all, False
        return was


def pause_s(took_s: float, share: float) -> float:
    """Return the pause after work of that duration that keeps it to this share of one processor."""
    return max(0.0, took_s) * (1.0 / share - 1.0)
