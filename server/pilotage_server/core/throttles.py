"""The life of a throttle: a place gets single jobs until it proves well, unless an operator says otherwise.

Rules
-----
Only trials that were matched after the last one that was judged tell of the place as it is now: what was there when it
was throttled, or comes from a server that had not heard of it, proves nothing. A job that has outlasted the time in
which failures count as fast proves the place well while it still runs. A place that was opened, by its proofs or by an
operator, is left alone for one interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from pilotage_server.core.evidence import Attempts
from pilotage_server.core.health import (
    BlackHole,
    Counts,
    HealthRules,
    Place,
    Spot,
    Testimony,
    find_black_holes,
    without,
)


class ThrottleState(StrEnum):
    """Whether a place gets jobs."""

    THROTTLED = "throttled"
    HELD = "held"
    OPENED = "opened"


@dataclass(frozen=True, slots=True)
class Throttle:
    """What is known of a place that was found out, or that an operator has closed or opened.

    `failures` of `ends` attempts are the evidence. `proofs` = trials in a row that went well. `next_trial` = when it
    may get a job again, None = an operator must open it, or it is open. `judged` = when the last attempt was matched
    of which the outcome counts.
    """

    place: Place
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
    def is_closed(self) -> bool:
        """Whether it gets no more than single jobs."""
        return self.state is not ThrottleState.OPENED

    def is_held(self, now: datetime) -> bool:
        """Whether an operator lets it get no job at all; at the end of that it is tried."""
        return self.state is ThrottleState.HELD and (self.next_trial is None or self.next_trial > now)

    def __str__(self) -> str:
        """Return in words for people what stands against the place."""
        trial = f"a single job is tried from {self.next_trial.isoformat()} on" if self.next_trial else "it gets no job"
        by = f" by {self.by}" if self.by else ""
        return f"{self.place.level} {self.place} is {self.state}{by}: {self.reason}; {trial}"


class ClosedBy(NamedTuple):
    """An operator's word that a place gets no jobs; `until` None = until he opens it."""

    place: Place
    reason: str
    by: str
    until: datetime | None = None


def throttle(found: BlackHole, rules: HealthRules, now: datetime) -> Throttle:
    """Return the throttle of a black hole that was just found."""
    pause = rules.first_pause(found.place.level)
    return Throttle(
        place=found.place,
        state=ThrottleState.THROTTLED,
        since=now,
        reason=_evidence(found.failures, found.ends, rules),
        failures=found.failures,
        ends=found.ends,
        pause=pause,
        next_trial=now + pause,
        judged=now,
    )


def hold(closed: ClosedBy, now: datetime, rules: HealthRules) -> Throttle:
    """Return the throttle of a place that an operator closes."""
    pause = rules.first_pause(closed.place.level)
    return Throttle(
        closed.place,
        ThrottleState.HELD,
        now,
        closed.reason,
        closed.by,
        pause=pause,
        next_trial=closed.until,
        judged=now,
    )


def opened(closed: Throttle, now: datetime, *, reason: str, by: str = "") -> Throttle:
    """Return the throttle of a place that gets jobs again."""
    return replace(closed, state=ThrottleState.OPENED, since=now, reason=reason, by=by, next_trial=None)


def is_forgotten(each: Throttle, rules: HealthRules, now: datetime) -> bool:
    """Whether a place has been open for so long that it is like any other again."""
    return not each.is_closed and now >= each.since + rules.interval


def trial_ends(each: Throttle, rules: HealthRules, now: datetime) -> datetime:
    """Return when the next job may be tried at the latest, if nothing is heard of the one that is tried now."""
    return now + max(each.pause, 2 * rules.fast)


def judge_trials(
    each: Throttle, attempts: Iterable[Attempts], testimony: Testimony, rules: HealthRules, now: datetime
) -> Throttle:
    """Return the throttle after what attempts tell of the place; the same where they tell nothing new.

    Failures that follow their job to other places count neither way.
    """
    if each.state is not ThrottleState.THROTTLED:
        return each
    told = [tried for tried in attempts if _is_new(tried, each)]
    failed = [tried for tried in told if tried.failed and not testimony.follow_the_job(tried.spot.account, each.place)]
    good = [tried for tried in told if not tried.failed]
    if failed:
        return _failed_again(each, failed, rules, now)
    return _went_well(each, good, rules, now) if good else each


def unwatched(each: Throttle, now: datetime) -> Throttle:
    """Return the throttle where nobody looks for black holes: it is open as soon as no operator holds it."""
    if not each.is_closed or each.is_held(now):
        return each
    return opened(each, now, reason="nobody looks for black holes")


def _is_new(tried: Attempts, each: Throttle) -> bool:
    is_later = each.judged is None or tried.matched > each.judged
    return tried.trial and is_later and each.place in tried.spot.places


def _failed_again(each: Throttle, tried: Sequence[Attempts], rules: HealthRules, now: datetime) -> Throttle:
    pause = min(2 * each.pause, rules.longest_pause)
    failures = each.failures + sum(those.number for those in tried)
    ends = each.ends + sum(those.number for those in tried)
    return replace(
        each,
        reason=_evidence(failures, ends, rules),
        failures=failures,
        ends=ends,
        proofs=0,
        pause=pause,
        next_trial=now + pause,
        judged=max(those.matched for those in tried),
    )


def _went_well(each: Throttle, tried: Sequence[Attempts], rules: HealthRules, now: datetime) -> Throttle:
    proofs = each.proofs + 1
    judged = max(those.matched for those in tried)
    better = replace(each, ends=each.ends + 1, proofs=proofs, next_trial=now, judged=judged)
    return opened(better, now, reason=f"{proofs} trials in a row went well") if proofs >= rules.proofs else better


def _evidence(failures: int, ends: int, rules: HealthRules) -> str:
    return f"{failures} of {ends} attempts failed within {rules.fast.total_seconds():g} s"


class Change(NamedTuple):
    """A throttle as it was (None = there was none) and as it is to be (None = it is forgotten)."""

    old: Throttle | None
    new: Throttle | None


def review(
    throttles: Sequence[Throttle],
    counts: Mapping[Spot, Counts],
    news: Sequence[Attempts],
    rules: HealthRules,
    now: datetime,
) -> list[Change]:
    """Return what is to be changed by the counts of this interval, and by what has ended or lasted of late."""
    elsewhere = without(counts, closed_places(throttles))
    testimonies = {level: Testimony(level, elsewhere) for level in {each.place.level for each in throttles}}
    changes: list[Change] = []
    for each in throttles:
        after = unwatched(each, now)
        if rules.watch:
            after = judge_trials(each, news, testimonies[each.place.level], rules, now)
        if is_forgotten(each, rules, now):
            changes.append(Change(each, None))
        elif after is not each:
            changes.append(Change(each, after))
    found = find_black_holes(counts, closed_places(throttles), opened_places(throttles), rules)
    return [*changes, *(Change(None, throttle(each, rules, now)) for each in found)]


def closed_places(throttles: Iterable[Throttle]) -> Mapping[Place, Throttle]:
    """Return the throttles of places that get no more than single jobs."""
    return {each.place: each for each in throttles if each.is_closed}


def opened_places(throttles: Iterable[Throttle]) -> dict[Place, datetime]:
    """Return the places that were opened lately, and when."""
    return {each.place: each.since for each in throttles if not each.is_closed}
