"""Which nodes, queues and sites are black holes: jobs fail fast there that succeed elsewhere.

Rules
-----
- A failure is an attempt that could not start, or whose payload failed within `fast`.
- A location's failure rate times the interval is the number of failures that make it suspect (as the threshold of
  HTCondor's Job Router).
- Failures of an account that fails at most other locations as well do not count.
- An account that ran nowhere else is no evidence, unless the jobs of several accounts fail.
- A queue is blamed when more than one and more than half of its nodes are bad, and a site likewise for its queues.
  Otherwise the bad nodes or queues are blamed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple, Self

from pilotage.resources.tree import QueueId
from pilotage.text import fold
from pilotage.values.accounts import Account


class LocationLevel(StrEnum):
    """The level of a location, widest first."""

    SITE = "site"
    QUEUE = "queue"
    NODE = "node"


class Location(NamedTuple):
    """A node, a queue or a site; fields below its level are "".

    The name of a node is folded because host names are case-insensitive.
    """

    level: LocationLevel
    site: str
    ce: str = ""
    queue: str = ""
    node: str = ""

    def __str__(self) -> str:
        """Return the name: SITE, SITE/CE/QUEUE, or SITE/NODE for a node."""
        return "/".join(part for part in self[1:] if part)

    @property
    def key(self) -> str:
        """A unique text: the level and the name."""
        return f"{self.level.value} {self}"

    @classmethod
    def from_key(cls, key: str) -> Self:
        """Return the location of a key."""
        level, _, name = key.partition(" ")
        return cls.from_name(LocationLevel(level), name)

    @classmethod
    def from_name(cls, level: LocationLevel, name: str) -> Self:
        """Return the location of this level and name."""
        match level:
            case LocationLevel.NODE:
                site, _, node = name.partition("/")
                return cls(level, site, node=node)
            case LocationLevel.QUEUE:
                site, ce, queue = name.split("/", 2)
                return cls(level, site, ce, queue)
            case LocationLevel.SITE:
                return cls(level, name)


def locations_of(queue: QueueId, node: str) -> tuple[Location, ...]:
    """Return the locations that contain a slot, narrowest first; `node` "" = unknown.

    A remote server of a job router is a site without queues.
    """
    found = (
        _location_at(level, queue, node) for level in (LocationLevel.NODE, LocationLevel.QUEUE, LocationLevel.SITE)
    )
    return tuple(location for location in found if location is not None)


def _location_at(level: LocationLevel, queue: QueueId, node: str) -> Location | None:
    match level:
        case LocationLevel.NODE:
            return Location(level, queue.site, node=fold(node)) if node else None
        case LocationLevel.QUEUE:
            return Location(level, *queue) if queue.queue else None
        case LocationLevel.SITE:
            return Location(level, queue.site)


@dataclass(frozen=True, slots=True)
class HealthRules:
    """When the circuit breaker of a location opens, and how the location is probed.

    `watch` = whether black holes are looked for. `failures_per_s` = the allowed failures by level. Open locations get
    probes only. The breaker closes after `proofs` successful probes in a row. Each failed probe doubles the pause
    before the next one, up to `longest_pause`.
    """

    watch: bool = True
    interval: timedelta = timedelta(minutes=10)
    fast: timedelta = timedelta(minutes=1)
    failures_per_s: Mapping[LocationLevel, float] = field(
        default_factory=lambda: {LocationLevel.NODE: 0.01, LocationLevel.QUEUE: 0.03, LocationLevel.SITE: 0.03}
    )
    proofs: int = 3
    longest_pause: timedelta = timedelta(hours=1)

    def most_failures(self, level: LocationLevel) -> float:
        """Return the number of failures in one interval that makes a location suspect."""
        return self.failures_per_s[level] * self.interval.total_seconds()

    @property
    def least_failures(self) -> float:
        """The smallest number of failures that makes any location suspect."""
        return min(map(self.most_failures, LocationLevel))

    def first_pause(self, level: LocationLevel) -> timedelta:
        """Return the pause before the first probe: at this pace, failing probes stay within the allowed rate."""
        return min(self.longest_pause, timedelta(seconds=1 / self.failures_per_s[level]))


class EvidenceKey(NamedTuple):
    """Queue, node and account of attempts: the key that evidence is counted by."""

    queue: QueueId
    node: str
    account: Account

    @property
    def locations(self) -> tuple[Location, ...]:
        """The locations of the attempts, narrowest first."""
        return locations_of(self.queue, self.node)

    def location(self, level: LocationLevel) -> Location | None:
        """Return the location of this level; None = the node is unknown."""
        return _location_at(level, self.queue, self.node)

    def sublocation(self, level: LocationLevel) -> Location | None:
        """Return the location one level below; None = there is none, or the node is unknown."""
        if level is LocationLevel.NODE:
            return None
        return self.location(LocationLevel.QUEUE if level is LocationLevel.SITE else LocationLevel.NODE)


@dataclass(slots=True)
class Counts:
    """Numbers of successful and of fast failed attempts."""

    good: int = 0
    failed: int = 0

    def add(self, good: int, failed: int) -> None:
        """Add to both counts."""
        self.good += good
        self.failed += failed

    @property
    def is_bad(self) -> bool:
        """Whether more attempts failed than succeeded."""
        return self.failed > self.good


@dataclass(frozen=True, slots=True)
class BlackHole:
    """A location that is a black hole: `failures` of `ends` attempts count against it."""

    location: Location
    failures: int
    ends: int


class FailureStats:
    """Failure statistics of all accounts for the locations of one level."""

    def __init__(self, level: LocationLevel, counts: Mapping[EvidenceKey, Counts]) -> None:
        self._entries = [
            (key, location, key_counts)
            for key, key_counts in counts.items()
            if (location := key.location(level)) is not None
        ]
        self._level = level
        self._by_account: dict[Account, dict[Location, Counts]] = defaultdict(dict)
        for key, location, key_counts in self._entries:
            self._by_account[key.account].setdefault(location, Counts()).add(key_counts.good, key_counts.failed)
        self._bad = {
            account: sum(key_counts.is_bad for key_counts in locations.values())
            for account, locations in self._by_account.items()
        }

    def elsewhere(self, account: Account, location: Location) -> Counts:
        """Return at how many other locations the account's jobs succeed, and at how many they fail."""
        locations = self._by_account.get(account, {})
        bad = self._bad.get(account, 0) - (location in locations and locations[location].is_bad)
        return Counts(len(locations) - (location in locations) - bad, bad)

    def fails_elsewhere(self, account: Account, location: Location) -> bool:
        """Whether the account's jobs fail at most other locations as well."""
        return self.elsewhere(account, location).is_bad

    def black_holes(self, most_failures: float) -> list[BlackHole]:
        """Return the black holes: locations with at least so many failures that count against them."""
        totals: dict[Location, _LocationCounts] = defaultdict(_LocationCounts)
        for key, location, counts in self._entries:
            totals[location].add(key, key.sublocation(self._level), counts, self.elsewhere(key.account, location))
        return [
            BlackHole(location, total.all.failed, total.all.failed + total.all.good)
            for location, total in totals.items()
            if total.all.failed >= most_failures and total.is_proven
        ]


@dataclass(slots=True)
class _LocationCounts:
    """Counts of one location: in all, by sublocation (None = the node is unknown) and by account."""

    all: Counts = field(default_factory=Counts)
    by_sublocation: dict[Location | None, Counts] = field(default_factory=dict)
    by_account: dict[Account, Counts] = field(default_factory=dict)
    succeeds_elsewhere: bool = False

    def add(self, key: EvidenceKey, sublocation: Location | None, here: Counts, elsewhere: Counts) -> None:
        """Add the attempts of one account at one sublocation; `elsewhere` = its other locations, good and bad."""
        held = 0 if elsewhere.is_bad else here.failed
        self.all.add(here.good, held)
        self.by_sublocation.setdefault(sublocation, Counts()).add(here.good, held)
        self.by_account.setdefault(key.account, Counts()).add(not here.is_bad, held > here.good)
        self.succeeds_elsewhere |= held > 0 and elsewhere.good > 0

    @property
    def is_proven(self) -> bool:
        accounts = sum(each.is_bad for each in self.by_account.values())
        return self.all.is_bad and (self.succeeds_elsewhere or accounts > 1) and self._is_spread

    @property
    def _is_spread(self) -> bool:
        """Whether the failures are not explained by one sublocation."""
        bad = sum(each.is_bad for each in self.by_sublocation.values())
        return None in self.by_sublocation or (bad > 1 and 2 * bad > len(self.by_sublocation))


def without_locations(
    counts: Mapping[EvidenceKey, Counts], locations: Collection[Location]
) -> dict[EvidenceKey, Counts]:
    """Return the counts without those at these locations."""
    if not locations:
        return dict(counts)
    return {key: each for key, each in counts.items() if not any(location in locations for location in key.locations)}


def suspected_locations(
    counts: Mapping[EvidenceKey, Counts],
    tripped: Collection[Location],
    opened: Collection[Location],
    rules: HealthRules,
) -> dict[Location, set[Account]]:
    """Return the locations with enough failures to be black holes, with the accounts whose jobs failed there.

    This is a quick check without the running attempts: successes do not make a location suspect. Locations inside
    `tripped` ones are explained by these, and `opened` ones are left alone.
    """
    failures: dict[Location, int] = defaultdict(int)
    accounts: dict[Location, set[Account]] = defaultdict(set)
    for key, each in counts.items():
        for location in _unexplained(key, tripped) if each.failed else ():
            if location not in opened:
                failures[location] += each.failed
                accounts[location].add(key.account)
    return {
        location: accounts[location]
        for location, most in failures.items()
        if most >= rules.most_failures(location.level)
    }


def _unexplained(key: EvidenceKey, tripped: Collection[Location]) -> tuple[Location, ...]:
    """Return the locations of the attempts that are neither tripped nor inside a tripped one."""
    locations = key.locations
    last = max((number for number, location in enumerate(locations) if location in tripped), default=-1)
    return locations[last + 1 :]


def find_black_holes(
    counts: Mapping[EvidenceKey, Counts],
    tripped: Collection[Location],
    opened: Collection[Location],
    rules: HealthRules,
) -> list[BlackHole]:
    """Return the new black holes, widest first.

    Failures inside `tripped` locations are explained by these. An `opened` location is left alone; the locations inside
    it and around it are not.
    """
    found: list[BlackHole] = []
    explained: set[Location] = set()
    suspect_levels = {location.level for location in suspected_locations(counts, tripped, opened, rules)}
    for level in LocationLevel:
        explained |= {location for location in tripped if location.level is level}
        if level not in suspect_levels:
            continue
        holes = FailureStats(level, without_locations(counts, explained)).black_holes(rules.most_failures(level))
        found += [each for each in holes if each.location not in opened]
        explained |= {each.location for each in found}
    return found
