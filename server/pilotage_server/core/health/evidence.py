"""Evidence of black holes: attempts that ended in the last interval, and attempts that still run.

Evidence is an immutable value. The interval slides on in periods. What ended at a location before its circuit breaker
was closed counts no longer, neither for the location nor for those inside it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Self

from pilotage.values.accounts import Account
from pilotage_server.core.health.black_holes import Counts, EvidenceKey, Location
from pilotage_server.core.jobs.states import JobCause

OUTLASTS_BY = timedelta(seconds=1)
"""A running job counts as successful after twice the longest failure of its account plus this time."""

FAILURES = frozenset(
    {
        JobCause.PLUGGED,
        JobCause.FAILED,
        JobCause.RETRIED,
        JobCause.HELD,
        JobCause.START_FAILED,
        JobCause.ATTEMPTS_EXHAUSTED,
        JobCause.LEFT_TO_COPIES,
    }
)
"""Causes of steps that may follow from a failed attempt."""

PERIODS = 5
"""Number of periods of an interval."""


class AttemptGroup(NamedTuple):
    """Attempts with equal key and equal result: they failed fast or not.

    `matched` = the latest match. `longest` = the longest run time so far. `trial` = all were probes of the locations
    with open circuit breakers.
    """

    key: EvidenceKey
    failed: bool
    number: int
    matched: datetime
    longest: timedelta
    trial: bool = False


class RunningAttempts(NamedTuple):
    """Running attempts with equal key.

    `longest` = the run time of the oldest. `lasted` = those that cannot fail fast any more, None = there are none.
    """

    key: EvidenceKey
    longest: timedelta
    lasted: AttemptGroup | None = None

    def has_outlasted(self, failure: timedelta | None) -> bool:
        """Whether one of them has run clearly longer than the failures; None = there are no failures."""
        return failure is not None and self.longest >= 2 * failure + OUTLASTS_BY


class RunningFilter(NamedTuple):
    """The running attempts to be read beside probes: those at `sites` and those of `owners`.

    Others are neither at a suspected location nor of an account that failed there or in a probe, so they cannot change
    the result.
    """

    sites: frozenset[str] = frozenset()
    owners: frozenset[str] = frozenset()

    @classmethod
    def of_suspects(cls, suspects: Mapping[Location, Collection[Account]], ended: Iterable[AttemptGroup]) -> Self:
        """Return the filter for these suspects and for the failed probes among the ended attempts."""
        suspect_owners = {account.owner for accounts in suspects.values() for account in accounts}
        probe_owners = {group.key.account.owner for group in ended if group.trial and group.failed}
        return cls(frozenset(location.site for location in suspects), frozenset(suspect_owners | probe_owners))


@dataclass(frozen=True, slots=True)
class EvidencePeriod:
    """Attempts that ended in one period, from `since` on, and the longest failures by account."""

    since: datetime
    counts: Mapping[EvidenceKey, Counts]
    longest_failures: Mapping[Account, timedelta]

    def with_ended(self, ended: Iterable[AttemptGroup]) -> EvidencePeriod:
        """Return the period with these ended attempts added."""
        counts = {key: Counts(group.good, group.failed) for key, group in self.counts.items()}
        longest = dict(self.longest_failures)
        for group in ended:
            good, failed = (0, group.number) if group.failed else (group.number, 0)
            counts.setdefault(group.key, Counts()).add(good, failed)
            if group.failed:
                longest[group.key.account] = max(longest.get(group.key.account, timedelta(0)), group.longest)
        return EvidencePeriod(self.since, counts, longest)

    def is_superseded(self, key: EvidenceKey, opened: Mapping[Location, datetime]) -> bool:
        """Whether the breaker of a location of the key was closed after the period began."""
        return any(self.since <= opened[location] for location in key.locations if location in opened)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Attempts that ended in the last interval, by key."""

    periods: tuple[EvidencePeriod, ...] = ()

    def with_ended(
        self, ended: Iterable[AttemptGroup], opened: Mapping[Location, datetime], interval: timedelta, now: datetime
    ) -> Evidence:
        """Return the evidence with new ended attempts and without periods older than the interval.

        A new period begins when a breaker closes (`opened`), to keep older evidence separate.
        """
        periods = tuple(period for period in self.periods if period.since > now - interval)
        newest = periods[-1] if periods else None
        bounds = (*opened.values(), now - interval / PERIODS)
        if newest is None or any(newest.since <= bound for bound in bounds):
            return Evidence((*periods, EvidencePeriod(now, {}, {}).with_ended(ended)))
        return Evidence((*periods[:-1], newest.with_ended(ended)))

    @property
    def has_failures(self) -> bool:
        """Whether there is any failure."""
        return any(period.longest_failures for period in self.periods)

    def with_running(
        self, running: Iterable[RunningAttempts], opened: Mapping[Location, datetime]
    ) -> dict[EvidenceKey, Counts]:
        """Return the counts, including running attempts that count as successful.

        These are all that cannot fail fast any more. Otherwise one counts if it has outlasted the failures of its
        account.
        """
        counts = self.counts(opened)
        longest = self._longest_failures()
        for each in running:
            if each.lasted is not None:
                counts.setdefault(each.key, Counts()).add(each.lasted.number, 0)
            elif each.has_outlasted(longest.get(each.key.account)):
                counts.setdefault(each.key, Counts()).add(1, 0)
        return counts

    def counts(self, opened: Mapping[Location, datetime]) -> dict[EvidenceKey, Counts]:
        """Return the ended attempts by key, without those that ended before the breaker of their location closed."""
        counts: dict[EvidenceKey, Counts] = {}
        for period in self.periods:
            for key, each in period.counts.items():
                if not (opened and period.is_superseded(key, opened)):
                    counts.setdefault(key, Counts()).add(each.good, each.failed)
        return counts

    def _longest_failures(self) -> dict[Account, timedelta]:
        longest: dict[Account, timedelta] = {}
        for period in self.periods:
            for account, lasted in period.longest_failures.items():
                longest[account] = max(longest.get(account, timedelta(0)), lasted)
        return longest
