"""The circuit breaker of a location (wire: throttle): open for a black hole, closed again by successful probes.

Wire words: state `opened` = closed, `throttled` = open or half-open, `held` = open by order of an operator; trial =
probe, proofs = successes in a row.

Rules
-----
- Only probes that were matched after the last one that counted change the breaker. Older attempts show the location
  as it was, or come from a server that did not know the breaker yet.
- A running job that has lasted longer than `fast` counts as a success.
- After it closes, by probes or by an operator, a location is left alone for one interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from pilotage_server.core.health.black_holes import (
    BlackHole,
    Counts,
    EvidenceKey,
    FailureStats,
    HealthRules,
    Location,
    find_black_holes,
    without_locations,
)
from pilotage_server.core.health.evidence import AttemptGroup


class ThrottleState(StrEnum):
    """State of the circuit breaker, in the words of the wire."""

    THROTTLED = "throttled"
    HELD = "held"
    OPENED = "opened"


@dataclass(frozen=True, slots=True)
class Throttle:
    """The circuit breaker of a location that is a black hole, or that an operator has held or opened.

    `failures` of `ends` attempts are the evidence. `proofs` = successful probes in a row. `next_trial` = the time of
    the next probe, None = there is none. `judged` = the latest match among the attempts that have counted.
    """

    location: Location
    state: ThrottleState
    since: datetime
    reason: str
    by: str = ""
    failures: int = 0
    ends: int = 0
    proofs: int = 0
    pause: timedelta = timedelta(0)
    next_trial: datetime | None = None
    judged: datetime | None = None

    @property
    def is_tripped(self) -> bool:
        """Whether the location gets no regular jobs: the breaker is open or half-open."""
        return self.state is not ThrottleState.OPENED

    def is_held(self, now: datetime) -> bool:
        """Whether an operator's order bars all jobs; when the order ends, probes begin."""
        return self.state is ThrottleState.HELD and (self.next_trial is None or self.next_trial > now)

    def __str__(self) -> str:
        """Return the state and its reason, for people."""
        trial = f"a single job is tried from {self.next_trial.isoformat()} on" if self.next_trial else "it gets no job"
        by = f" by {self.by}" if self.by else ""
        return f"{self.location.level} {self.location} is {self.state}{by}: {self.reason}; {trial}"


class HoldOrder(NamedTuple):
    """An operator's order that a location gets no jobs; `until` None = until it is opened again."""

    location: Location
    reason: str
    by: str
    until: datetime | None = None


def new_throttle(found: BlackHole, rules: HealthRules, now: datetime) -> Throttle:
    """Return the open circuit breaker of a new black hole."""
    pause = rules.first_pause(found.location.level)
    return Throttle(
        location=found.location,
        state=ThrottleState.THROTTLED,
        since=now,
        reason=_evidence(found.failures, found.ends, rules),
        failures=found.failures,
        ends=found.ends,
        pause=pause,
        next_trial=now + pause,
        judged=now,
    )


def held_throttle(closed: HoldOrder, now: datetime, rules: HealthRules) -> Throttle:
    """Return the circuit breaker of a location that an operator holds."""
    pause = rules.first_pause(closed.location.level)
    return Throttle(
        closed.location,
        ThrottleState.HELD,
        now,
        closed.reason,
        closed.by,
        pause=pause,
        next_trial=closed.until,
        judged=now,
    )


def opened(closed: Throttle, now: datetime, *, reason: str, by: str = "") -> Throttle:
    """Return the circuit breaker after it has closed: the location gets jobs again."""
    return replace(closed, state=ThrottleState.OPENED, since=now, reason=reason, by=by, next_trial=None)


def is_expired(throttle: Throttle, rules: HealthRules, now: datetime) -> bool:
    """Whether the breaker has been closed for an interval and can be removed."""
    return not throttle.is_tripped and now >= throttle.since + rules.interval


def trial_deadline(throttle: Throttle, rules: HealthRules, now: datetime) -> datetime:
    """Return when the next probe may start although the present one has no result."""
    return now + max(throttle.pause, 2 * rules.fast)


def judge_trials(
    throttle: Throttle, attempts: Iterable[AttemptGroup], stats: FailureStats, rules: HealthRules, now: datetime
) -> Throttle:
    """Return the circuit breaker after the results of probes; the same object if there is none.

    Failures of jobs that fail elsewhere, too, do not count.
    """
    if throttle.state is not ThrottleState.THROTTLED:
        return throttle
    probes = [probe for probe in attempts if _is_new(probe, throttle)]
    failed = [
        probe for probe in probes if probe.failed and not stats.fails_elsewhere(probe.key.account, throttle.location)
    ]
    good = [probe for probe in probes if not probe.failed]
    if failed:
        return _after_failures(throttle, failed, rules, now)
    return _after_successes(throttle, good, rules, now) if good else throttle


def without_watch(throttle: Throttle, now: datetime) -> Throttle:
    """Return the circuit breaker where the search for black holes is off: it closes unless an operator holds it."""
    if not throttle.is_tripped or throttle.is_held(now):
        return throttle
    return opened(throttle, now, reason="the search for black holes is off")


def _is_new(probe: AttemptGroup, throttle: Throttle) -> bool:
    is_later = throttle.judged is None or probe.matched > throttle.judged
    return probe.trial and is_later and throttle.location in probe.key.locations


def _after_failures(throttle: Throttle, probes: Sequence[AttemptGroup], rules: HealthRules, now: datetime) -> Throttle:
    pause = min(2 * throttle.pause, rules.longest_pause)
    failures = throttle.failures + sum(probe.number for probe in probes)
    ends = throttle.ends + sum(probe.number for probe in probes)
    return replace(
        throttle,
        reason=_evidence(failures, ends, rules),
        failures=failures,
        ends=ends,
        proofs=0,
        pause=pause,
        next_trial=now + pause,
        judged=max(probe.matched for probe in probes),
    )


def _after_successes(throttle: Throttle, probes: Sequence[AttemptGroup], rules: HealthRules, now: datetime) -> Throttle:
    proofs = throttle.proofs + 1
    judged = max(probe.matched for probe in probes)
    better = replace(throttle, ends=throttle.ends + 1, proofs=proofs, next_trial=now, judged=judged)
    return opened(better, now, reason=f"{proofs} trials in a row went well") if proofs >= rules.proofs else better


def _evidence(failures: int, ends: int, rules: HealthRules) -> str:
    return f"{failures} of {ends} attempts failed within {rules.fast.total_seconds():g} s"


class ThrottleChange(NamedTuple):
    """A circuit breaker before (None = new) and after (None = to be removed)."""

    old: Throttle | None
    new: Throttle | None


def throttle_changes(
    throttles: Sequence[Throttle],
    counts: Mapping[EvidenceKey, Counts],
    ended: Sequence[AttemptGroup],
    rules: HealthRules,
    now: datetime,
) -> list[ThrottleChange]:
    """Return the changes that follow from the counts of this interval and from new ends."""
    elsewhere = without_locations(counts, tripped_locations(throttles))
    stats_by_level = {level: FailureStats(level, elsewhere) for level in {each.location.level for each in throttles}}
    changes: list[ThrottleChange] = []
    for each in throttles:
        after = without_watch(each, now)
        if rules.watch:
            after = judge_trials(each, ended, stats_by_level[each.location.level], rules, now)
        if is_expired(each, rules, now):
            changes.append(ThrottleChange(each, None))
        elif after is not each:
            changes.append(ThrottleChange(each, after))
    found = find_black_holes(counts, tripped_locations(throttles), opened_locations(throttles), rules)
    return [*changes, *(ThrottleChange(None, new_throttle(each, rules, now)) for each in found)]


def tripped_locations(throttles: Iterable[Throttle]) -> Mapping[Location, Throttle]:
    """Return the circuit breakers that are open or half-open, by location."""
    return {each.location: each for each in throttles if each.is_tripped}


def opened_locations(throttles: Iterable[Throttle]) -> dict[Location, datetime]:
    """Return the locations whose circuit breakers have closed, and when."""
    return {each.location: each.since for each in throttles if not each.is_tripped}
