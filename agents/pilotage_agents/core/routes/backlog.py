"""The jobs that wait, as a router keeps them: who came first, and which routes each may take once that is known.

Rules
-----
Ids alone, so that a queue of any length is cheap to keep. A job is judged once, and then stands in the line of its set
of routes; a line of which no route has room is not looked at. A job that was taken waits until it is dropped, lest it
be lost when the server is not heard. A job of which something has changed comes anew, at the end. After a change
of the table all are judged anew, in the order in which they came. A route that could make no copy of a job is closed
to it until the route changes, and for a while each time, the longer the more often that was so: every attempt is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from heapq import heappop, heappush, merge
from itertools import count, islice

from pilotage_agents.core.backoff import backoff

_MOST_BARRED = 50_000
"""Of more jobs it is forgotten which route can make no copy of them, and found out again."""

_BARRED_FOR = timedelta(minutes=10), timedelta(days=1)
"""So long a route is closed to a job of which it could make no copy: the first time, and at most."""

_MOST_REFUSED = 100_000
"""Of more jobs it is forgotten how often they could not be had."""

_ASIDE_FOR = timedelta(seconds=60), timedelta(minutes=10)
"""So long a job is kept back that the server did not give: the first time, and at most."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The job that is next, and those of its routes that have room, in the table's order."""

    job_id: int
    routes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Taken:
    """A job that is being asked for: its number, and the line that it stood in."""

    number: int
    routes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Bar:
    """Routes that are closed to a job until then, at least; `times` one has been closed to it."""

    routes: tuple[str, ...]
    times: int
    until: datetime


class Backlog:
    """Waiting jobs; each id has the number of its coming, and stands in one line."""

    def __init__(self, job_ids: Iterable[int] = ()) -> None:
        self._numbers = count()
        self._unjudged: OrderedDict[int, int] = OrderedDict()
        self._lines: dict[tuple[str, ...], OrderedDict[int, int]] = {}
        self._taken: dict[int, _Taken] = {}
        self._aside: dict[int, datetime] = {}
        self._returns: list[tuple[datetime, int, int]] = []
        self._refusals: OrderedDict[int, int] = OrderedDict()
        self._barred: OrderedDict[int, _Bar] = OrderedDict()
        self._opens: list[tuple[datetime, int]] = []
        for job_id in job_ids:
            self.add(job_id)

    def __len__(self) -> int:
        """Return how many jobs wait."""
        return len(self._aside) + len(self._taken) + sum(map(len, self._all_lines()))

    def __iter__(self) -> Iterator[int]:
        """Yield the ids in the order in which they came, those set aside last."""
        yield from (job for _, job in self._came())
        yield from self._aside

    def add(self, job_id: int) -> None:
        """Take a job in that waits, or waits anew."""
        self.drop(job_id)
        self._unjudged[job_id] = next(self._numbers)

    def drop(self, job_id: int) -> None:
        """Forget a job that does not wait any more, if it did."""
        if self._aside.pop(job_id, None) is not None or self._taken.pop(job_id, None) is not None:
            return
        for line in self._all_lines():
            if line.pop(job_id, None) is not None:
                return

    def unjudged(self, most: int) -> tuple[int, ...]:
        """Return the first jobs of which nobody knows their routes."""
        return tuple(islice(self._unjudged, most))

    def judged(self, job_id: int, routes: tuple[str, ...]) -> None:
        """Put the first job that is not judged into the line of these routes, which are in the table's order."""
        number = self._unjudged.pop(job_id)
        bar = self._barred.get(job_id)
        open_to_it = routes if bar is None else tuple(route for route in routes if route not in bar.routes)
        self._lines.setdefault(open_to_it, OrderedDict())[job_id] = number

    def bar(self, job_id: int, route: str, now: datetime) -> None:
        """Keep a job from a route that can make no copy of it, for a while that grows."""
        bar = self._barred.pop(job_id, None) or _Bar((), 0, now)
        until = now + backoff(bar.times + 1, *_BARRED_FOR)
        self._barred[job_id] = _Bar((*bar.routes, route), bar.times + 1, until)
        heappush(self._opens, (until, job_id))
        if len(self._barred) > _MOST_BARRED:
            self._barred.popitem(last=False)

    def judge_anew(self) -> None:
        """Let all be judged anew, as what they fulfil may depend on the time."""
        self._unjudged = OrderedDict((job, number) for number, job in list(self._came()))
        self._taken.clear()
        self._lines.clear()

    def take(self, job_id: int) -> None:
        """Let the first of its line leave it, to be asked for; it waits until it is dropped or given back."""
        for routes, line in self._lines.items():
            if (number := line.pop(job_id, None)) is not None:
                self._taken[job_id] = _Taken(number, routes)
                return

    def give_back(self) -> None:
        """Let the jobs that were taken and not dropped stand where they stood."""
        for job_id, taken in sorted(self._taken.items(), key=lambda each: each[1].number, reverse=True):
            line = self._lines.setdefault(taken.routes, OrderedDict())
            line[job_id] = taken.number
            line.move_to_end(job_id, last=False)
        self._taken.clear()

    def follow_another_table(self, changed: Collection[str]) -> None:
        """Let all be judged anew by another table, those set aside like the others, and open the changed routes."""
        while self._aside:
            self.add(next(iter(self._aside)))
        for job_id, bar in self._barred.items():
            self._barred[job_id] = replace(bar, routes=tuple(route for route in bar.routes if route not in changed))
        self.judge_anew()

    def first(self, with_room: Set[str]) -> Candidate | None:
        """Return the first of the judged jobs that may take one of these routes, None = there is none."""
        found: tuple[int, Candidate] | None = None
        for routes, line in self._lines.items():
            open_routes = tuple(route for route in routes if route in with_room)
            if not open_routes or not line:
                continue
            job, number = next(iter(line.items()))
            if found is None or number < found[0]:
                found = number, Candidate(job, open_routes)
        return found and found[1]

    def ready(self, with_room: Set[str]) -> int:
        """Return how many of the judged jobs may take one of these routes."""
        return sum(len(line) for routes, line in self._lines.items() if any(route in with_room for route in routes))

    def set_aside(self, job_id: int, now: datetime) -> None:
        """Keep a job back that cannot be had now, the longer the more often that was so; then it comes anew."""
        self.drop(job_id)
        times = self._refusals.pop(job_id, 0) + 1
        self._refusals[job_id] = times
        if len(self._refusals) > _MOST_REFUSED:
            self._refusals.popitem(last=False)
        until = now + backoff(times, *_ASIDE_FOR)
        self._aside[job_id] = until
        heappush(self._returns, (until, next(self._numbers), job_id))

    def bring_back(self, now: datetime) -> None:
        """Let the jobs come anew whose time is over, those too to which no route was open."""
        while self._returns and self._returns[0][0] <= now:
            until, _, job_id = heappop(self._returns)
            if self._aside.get(job_id) == until:
                self.add(job_id)
        while self._opens and self._opens[0][0] <= now:
            until, job_id = heappop(self._opens)
            if (bar := self._barred.get(job_id)) is not None and bar.until == until:
                self._barred[job_id] = replace(bar, routes=())
                if job_id in self._lines.get((), ()):
                    self.add(job_id)

    def _all_lines(self) -> Sequence[OrderedDict[int, int]]:
        return (self._unjudged, *self._lines.values())

    def _came(self) -> Iterator[tuple[int, int]]:
        """Yield the jobs, those aside left out, with their numbers first, in the order in which they came."""
        taken = sorted((each.number, job) for job, each in self._taken.items())
        return merge(taken, *(((number, job) for job, number in line.items()) for line in self._all_lines()))
