"""Names of files that the macros of an array's jobs make one: `data$(Process)` and `data0` in the array's first job.

Rules
-----
Macros become digits and nothing else (`pilotage.job_macros`). So names that differ in anything but digits, or before
their first macro, or after their last one, stay two; only those that are left over are filled in for every job.
`$(Cluster)`, which nobody knows beforehand, is taken for a number like no other: whether it makes two names one is
seen where the job is to start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from pilotage.job_macros import split_at_process

MOST_FILLED_IN = 200_000
"""So many names are filled in for one description; where it takes more, they are said to be too many."""

_DIGITS = str.maketrans("", "", "0123456789")


class Clash(NamedTuple):
    """A name that is the same as `other` in the job of place `process` in its array.

    `process` None = nobody can tell: there are too many that differ in digits alone.
    """

    name: str
    other: str
    process: int | None


class _Pattern(NamedTuple):
    """A name, as one of several, in the pieces between which the number of the job stands."""

    place: int
    name: str
    pieces: tuple[str, ...]


def clashes(names: Iterable[str], count: int) -> tuple[Clash, ...]:
    """Return the names of which two become one in an array of `count` jobs, each once and not with itself."""
    patterns = [_Pattern(place, name, split_at_process(name)) for place, name in enumerate(dict.fromkeys(names))]
    groups = _that_may_meet(patterns)
    if sum(len(group) * len(_jobs(group, count)) for group in groups) > MOST_FILLED_IN:
        return tuple(Clash(group[-1].name, group[0].name, None) for group in groups)
    return tuple(clash for group in groups for clash in _clashes(group, count))


def _that_may_meet(patterns: Iterable[_Pattern]) -> list[list[_Pattern]]:
    """Return the groups of those that may become one, as far as a look at each tells."""
    by_letters = defaultdict[str, list[_Pattern]](list)
    for pattern in patterns:
        by_letters["".join(pattern.pieces).translate(_DIGITS)].append(pattern)
    groups = [
        sorted(group)
        for alike in by_letters.values()
        for begun_alike in _agreeing(alike, lambda pattern: pattern.pieces[0])
        for group in _agreeing(begun_alike, lambda pattern: pattern.pieces[-1][::-1])
    ]
    return [group for group in groups if len(group) > 1]


def _agreeing(patterns: Iterable[_Pattern], end: Callable[[_Pattern], str]) -> Iterator[list[_Pattern]]:
    """Yield groups of those of which none can become one with another group's, for their ends differ."""
    group: list[_Pattern] = []
    shortest = ""
    for pattern in sorted(patterns, key=end):
        # In this order all that begin with the shortest follow it.
        if group and not end(pattern).startswith(shortest):
            yield group
            group = []
        if not group:
            shortest = end(pattern)
        group.append(pattern)
    if group:
        yield group


def _jobs(group: list[_Pattern], count: int) -> range:
    """Return the places of the jobs in which the names of a group may be others than in the jobs before."""
    return range(count if any(len(each.pieces) > 1 for each in group) else 1)


def _clashes(group: list[_Pattern], count: int) -> Iterator[Clash]:
    found = set[str]()
    for process in _jobs(group, count):
        number = str(process)
        seen: dict[str, str] = {}
        for pattern in group:
            other = seen.setdefault(number.join(pattern.pieces), pattern.name)
            if other is not pattern.name and pattern.name not in found:
                found.add(pattern.name)
                yield Clash(pattern.name, other, process)
