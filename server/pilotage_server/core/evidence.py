"""What attempts tell of the places that they were at: those that have ended of late, and those that still run.

Rules
-----
Evidence is a value: what is heard makes a new one. It covers the last interval, and what is older goes part by part.
What ended at a place before that was opened proves nothing any more, neither of it nor of the places within it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Self

from pilotage_server.core.accounting import Account
from pilotage_server.core.health import Counts, Place, Spot
from pilotage_server.core.jobs import JobCause

OUTLASTS_BY = timedelta(seconds=1)
"""A job does well that has run twice as long as the longest failure of its account, and so much longer."""

FAILURES = frozenset(
    {
        JobCause.PLUGGED,
        JobCause.FAILED,
        JobCause.START_FAILED,
        JobCause.ATTEMPTS_EXHAUSTED,
        JobCause.LEFT_TO_COPIES,
    }
)
"""Causes of steps that jobs make when an attempt has failed, among others."""

PARTS = 5
"""In so many parts an interval slides on."""


class Attempts(NamedTuple):
    """Attempts at one spot that did alike: they failed fast or not.

    The last of them was matched at `matched`, and the one that ran longest has run for `longest` so far. `trial` = each
    was matched as a trial of the throttled places that it was at.
    """

    spot: Spot
    failed: bool
    number: int
    matched: datetime
    longest: timedelta
    trial: bool = False


class Running(NamedTuple):
    """Attempts at one spot that still run.

    `longest` = how long the oldest of them has. `lasted` = those that cannot fail fast any more, None = there are none.
    """

    spot: Spot
    longest: timedelta
    lasted: Attempts | None = None

    def has_outlasted(self, failure: timedelta | None) -> bool:
        """Whether one of them has clearly run for longer than failures last; None = there are no failures."""
        return failure is not None and self.longest >= 2 * failure + OUTLASTS_BY


class Wanted(NamedTuple):
    """Which of the attempts that run are worth a look, beside trials: those at `sites`, and those of `owners`.

    What neither is at a place that may be a black hole, nor of an account whose jobs have failed there or in a trial,
    has no say in whether it is one.
    """

    sites: frozenset[str] = frozenset()
    owners: frozenset[str] = frozenset()

    @classmethod
    def by(cls, suspects: Mapping[Place, Collection[Account]], ended: Iterable[Attempts]) -> Self:
        """Return what is wanted for these suspects, and for the trials among what has ended."""
        accused = {account.owner for accounts in suspects.values() for account in accounts}
        tried = {each.spot.account.owner for each in ended if each.trial and each.failed}
        return cls(frozenset(place.site for place in suspects), frozenset(accused | tried))


@dataclass(frozen=True, slots=True)
class Part:
    """What ended in one part of the interval, which began at `since`, and how long failures lasted at most."""

    since: datetime
    counts: Mapping[Spot, Counts]
    longest_failures: Mapping[Account, timedelta]

    def after(self, ended: Iterable[Attempts]) -> Part:
        """Return the part with attempts that have ended in it as well."""
        counts = {spot: Counts(each.good, each.failed) for spot, each in self.counts.items()}
        longest = dict(self.longest_failures)
        for each in ended:
            good, failed = (0, each.number) if each.failed else (each.number, 0)
            counts.setdefault(each.spot, Counts()).add(good, failed)
            if each.failed:
                longest[each.spot.account] = max(longest.get(each.spot.account, timedelta(0)), each.longest)
        return Part(self.since, counts, longest)

    def is_void(self, spot: Spot, opened: Mapping[Place, datetime]) -> bool:
        """Whether a place that the spot is at was opened after this part began."""
        return any(self.since <= opened[place] for place in spot.places if place in opened)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What has ended in the last interval, counted by spot."""

    parts: tuple[Part, ...] = ()

    def after(
        self, ended: Iterable[Attempts], opened: Mapping[Place, datetime], interval: timedelta, now: datetime
    ) -> Evidence:
        """Return the evidence with attempts that have ended just now, and without what is older than the interval.

        `opened` = when places were opened: what comes later is told apart from what was before.
        """
        parts = tuple(part for part in self.parts if part.since > now - interval)
        newest = parts[-1] if parts else None
        bounds = (*opened.values(), now - interval / PARTS)
        if newest is None or any(newest.since <= bound for bound in bounds):
            return Evidence((*parts, Part(now, {}, {}).after(ended)))
        return Evidence((*parts[:-1], newest.after(ended)))

    @property
    def has_failures(self) -> bool:
        """Whether anything has failed."""
        return any(part.longest_failures for part in self.parts)

    def beside(self, running: Iterable[Running], opened: Mapping[Place, datetime]) -> dict[Spot, Counts]:
        """Return the counts with those that still run and have not failed fast.

        Of those that run, and have not lasted for so long yet, one does well that has clearly outlasted the failures.
        """
        counts = self.counts(opened)
        longest = self._longest_failures()
        for each in running:
            if each.lasted is not None:
                counts.setdefault(each.spot, Counts()).add(each.lasted.number, 0)
            elif each.has_outlasted(longest.get(each.spot.account)):
                counts.setdefault(each.spot, Counts()).add(1, 0)
        return counts

    def counts(self, opened: Mapping[Place, datetime]) -> dict[Spot, Counts]:
        """Return what has ended by spot, but for what ended before its place was opened."""
        counts: dict[Spot, Counts] = {}
        for part in self.parts:
            for spot, each in part.counts.items():
                if not (opened and part.is_void(spot, opened)):
                    counts.setdefault(spot, Counts()).add(each.good, each.failed)
        return counts

    def _longest_failures(self) -> dict[Account, timedelta]:
        longest: dict[Account, timedelta] = {}
        for part in self.parts:
            for account, lasted in part.longest_failures.items():
                longest[account] = max(longest.get(account, timedelta(0)), lasted)
        return longest
