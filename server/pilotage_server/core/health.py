"""Which nodes, queues and sites are black holes: jobs fail fast there that do well elsewhere.

Rules
-----
A failure is an attempt that could not be started, or whose payload failed before it had run for `fast`. So many of
them as a place's failure rate allows in one interval are the most that it gets before it is found out (the Job Router's
threshold, with no interval to wait for). What fails at most other places as well fails for the job's sake, and is not
held against the place. What is seen nowhere else proves nothing, unless the jobs of several accounts agree. A queue
is blamed when most of its nodes are bad, and several are, a site when most of its queues are; else its bad parts are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple, Self

from pilotage.folding import fold
from pilotage.resource_tree import QueueId
from pilotage_server.core.accounting import Account


class Level(StrEnum):
    """What kind of place it is, the widest first."""

    SITE = "site"
    QUEUE = "queue"
    NODE = "node"


class Place(NamedTuple):
    """A node, a queue or a site; what its level does not name is "".

    The name of a node is folded: hosts know no letter case.
    """

    level: Level
    site: str
    ce: str = ""
    queue: str = ""
    node: str = ""

    def __str__(self) -> str:
        """Return its name: SITE, SITE/CE/QUEUE, or for a node SITE/NODE."""
        return "/".join(part for part in self[1:] if part)

    @property
    def key(self) -> str:
        """What tells it apart from every other place, in one text."""
        return f"{self.level.value} {self}"

    @classmethod
    def of_key(cls, key: str) -> Self:
        """Return the place that has this key."""
        level, _, name = key.partition(" ")
        return cls.of_name(Level(level), name)

    @classmethod
    def of_name(cls, level: Level, name: str) -> Self:
        """Return the place of this level that has this name."""
        match level:
            case Level.NODE:
                site, _, node = name.partition("/")
                return cls(level, site, node=node)
            case Level.QUEUE:
                site, ce, queue = name.split("/", 2)
                return cls(level, site, ce, queue)
            case Level.SITE:
                return cls(level, name)


def places_of(queue: QueueId, node: str) -> tuple[Place, ...]:
    """Return the places that a slot is at, the narrowest first; `node` "" = it is not known.

    Another server that copies go to is a site without queues.
    """
    found = (_place_at(level, queue, node) for level in (Level.NODE, Level.QUEUE, Level.SITE))
    return tuple(place for place in found if place is not None)


def _place_at(level: Level, queue: QueueId, node: str) -> Place | None:
    match level:
        case Level.NODE:
            return Place(level, queue.site, node=fold(node)) if node else None
        case Level.QUEUE:
            return Place(level, *queue) if queue.queue else None
        case Level.SITE:
            return Place(level, queue.site)


@dataclass(frozen=True, slots=True)
class HealthRules:
    """When a place is throttled, and how it is tried again.

    `watch` = whether black holes are looked for at all. `failures_per_s` is allowed to a place of each level.
    A throttled place gets single jobs; it is open again after `proofs` of them in a row that went well, and each that
    fails doubles the pause before the next, up to `longest_pause`.
    """

    watch: bool = True
    interval: timedelta = timedelta(minutes=10)
    fast: timedelta = timedelta(minutes=1)
    failures_per_s: Mapping[Level, float] = field(
        default_factory=lambda: {Level.NODE: 0.01, Level.QUEUE: 0.03, Level.SITE: 0.03}
    )
    proofs: int = 3
    longest_pause: timedelta = timedelta(hours=1)

    def most_failures(self, level: Level) -> float:
        """Return how many failures a place may have in one interval."""
        return self.failures_per_s[level] * self.interval.total_seconds()

    @property
    def least_failures(self) -> float:
        """How many failures are a reason to look which place they are at."""
        return min(map(self.most_failures, Level))

    def first_pause(self, level: Level) -> timedelta:
        """Return how long after it was found out a place is tried: at this pace single jobs keep to its rate."""
        return min(self.longest_pause, timedelta(seconds=1 / self.failures_per_s[level]))


class Spot(NamedTuple):
    """Where attempts were, and whose."""

    queue: QueueId
    node: str
    account: Account

    @property
    def places(self) -> tuple[Place, ...]:
        """The places that they were at, the narrowest first."""
        return places_of(self.queue, self.node)

    def place(self, level: Level) -> Place | None:
        """Return the place of this level that it is at; None = its node is not known."""
        return _place_at(level, self.queue, self.node)

    def part(self, level: Level) -> Place | None:
        """Return the place within that of this level that it is at; None = there is none, or it is not known."""
        return None if level is Level.NODE else self.place(Level.QUEUE if level is Level.SITE else Level.NODE)


@dataclass(slots=True)
class Counts:
    """How many attempts did well and how many failed fast."""

    good: int = 0
    failed: int = 0

    def add(self, good: int, failed: int) -> None:
        """Count more."""
        self.good += good
        self.failed += failed

    @property
    def is_bad(self) -> bool:
        """Whether more failed than did well."""
        return self.failed > self.good


@dataclass(frozen=True, slots=True)
class BlackHole:
    """A place that was found out: of `ends` attempts `failures` are held against it."""

    place: Place
    failures: int
    ends: int


class Testimony:
    """What the attempts of all accounts say of the places of one level."""

    def __init__(self, level: Level, counts: Mapping[Spot, Counts]) -> None:
        self._spots = [(spot, place, each) for spot, each in counts.items() if (place := spot.place(level)) is not None]
        self._level = level
        self._by_account: dict[Account, dict[Place, Counts]] = defaultdict(dict)
        for spot, place, each in self._spots:
            self._by_account[spot.account].setdefault(place, Counts()).add(each.good, each.failed)
        self._bad = {
            account: sum(each.is_bad for each in places.values()) for account, places in self._by_account.items()
        }

    def elsewhere(self, account: Account, place: Place) -> Counts:
        """Return at how many other places the account's jobs do well, and at how many they fail."""
        places = self._by_account.get(account, {})
        bad = self._bad.get(account, 0) - (place in places and places[place].is_bad)
        return Counts(len(places) - (place in places) - bad, bad)

    def follow_the_job(self, account: Account, place: Place) -> bool:
        """Whether the account's jobs fail at most other places as well."""
        return self.elsewhere(account, place).is_bad

    def black_holes(self, most_failures: float) -> list[BlackHole]:
        """Return the places with so many failures that are held against them, or more."""
        cases: dict[Place, _Case] = defaultdict(_Case)
        for spot, place, counts in self._spots:
            cases[place].hear(spot, spot.part(self._level), counts, self.elsewhere(spot.account, place))
        return [
            BlackHole(place, case.all.failed, case.all.failed + case.all.good)
            for place, case in cases.items()
            if case.all.failed >= most_failures and case.is_proven
        ]


@dataclass(slots=True)
class _Case:
    """What is held against one place and what speaks for it, in all and by its parts; None = parts are not known."""

    all: Counts = field(default_factory=Counts)
    parts: dict[Place | None, Counts] = field(default_factory=dict)
    accusers: dict[Account, Counts] = field(default_factory=dict)
    does_well_elsewhere: bool = False

    def hear(self, spot: Spot, part: Place | None, here: Counts, elsewhere: Counts) -> None:
        """Hear what an account's jobs did at a part of the place, and at how many other places they do well or fail."""
        held = 0 if elsewhere.is_bad else here.failed
        self.all.add(here.good, held)
        self.parts.setdefault(part, Counts()).add(here.good, held)
        self.accusers.setdefault(spot.account, Counts()).add(not here.is_bad, held > here.good)
        self.does_well_elsewhere |= held > 0 and elsewhere.good > 0

    @property
    def is_proven(self) -> bool:
        accounts = sum(parts.is_bad for parts in self.accusers.values())
        return self.all.is_bad and (self.does_well_elsewhere or accounts > 1) and self._is_spread

    @property
    def _is_spread(self) -> bool:
        """Whether no smaller place explains it."""
        bad = sum(each.is_bad for each in self.parts.values())
        return None in self.parts or (bad > 1 and 2 * bad > len(self.parts))


def without(counts: Mapping[Spot, Counts], places: Collection[Place]) -> dict[Spot, Counts]:
    """Return the counts but for those of spots at these places."""
    if not places:
        return dict(counts)
    return {spot: each for spot, each in counts.items() if not any(place in places for place in spot.places)}


def suspects(
    counts: Mapping[Spot, Counts], closed: Collection[Place], opened: Collection[Place], rules: HealthRules
) -> dict[Place, set[Account]]:
    """Return the places with so many failures that they may be black holes, and whose jobs failed there.

    What does well makes no place more suspect: what runs is not looked at. Nothing that a `closed` place explains is
    one, nor is an `opened` one.
    """
    failures: dict[Place, int] = defaultdict(int)
    accounts: dict[Place, set[Account]] = defaultdict(set)
    for spot, each in counts.items():
        for place in _unexplained(spot, closed) if each.failed else ():
            if place not in opened:
                failures[place] += each.failed
                accounts[place].add(spot.account)
    return {place: accounts[place] for place, most in failures.items() if most >= rules.most_failures(place.level)}


def _unexplained(spot: Spot, closed: Collection[Place]) -> tuple[Place, ...]:
    """Return the places that a spot is at but for those that are closed, or within one that is."""
    places = spot.places
    last = max((number for number, place in enumerate(places) if place in closed), default=-1)
    return places[last + 1 :]


def find_black_holes(
    counts: Mapping[Spot, Counts], closed: Collection[Place], opened: Collection[Place], rules: HealthRules
) -> list[BlackHole]:
    """Return the places to be throttled, the widest first.

    What is at a `closed` place is explained by that. A place that was `opened` is itself left alone; what is in it, and
    what it is in, is not.
    """
    found: list[BlackHole] = []
    explained: set[Place] = set()
    suspect_levels = {place.level for place in suspects(counts, closed, opened, rules)}
    for level in Level:
        explained |= {place for place in closed if place.level is level}
        if level not in suspect_levels:
            continue
        holes = Testimony(level, without(counts, explained)).black_holes(rules.most_failures(level))
        found += [each for each in holes if each.place not in opened]
        explained |= {each.place for each in found}
    return found
