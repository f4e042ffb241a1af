"""Task queues by what a question of a policy sees of them, as sets: what is so of one is so of all of its kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from pilotage_server.core.ad_views import Names
from pilotage_server.core.job_views import JobViews, requirements_of, seen_by
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.core.waiting import WaitingIndex
from pilotage_server.core.waiting_line import Line

MOST_QUESTIONS = 32
"""Kinds are kept for so many questions."""

MOST_ORDERS = 256
"""So many orders are kept for a question."""


@dataclass(slots=True)
class Kind:
    """Task queues that look alike; `example` is one of them, or was."""

    example: TaskQueue
    places: int = 0


class Liking(NamedTuple):
    """How much a slot likes a job; `lasts` = as much later, and so do the slots that are alike."""

    rank: float
    lasts: bool


class JobKinds:
    """The kinds of all task queues that are known.

    `look` tells by what a task queue is told from others; None = it is of no other's kind.
    """

    def __init__(self, waiting: WaitingIndex, look: Callable[[TaskQueue], str | None]) -> None:
        self._waiting = waiting
        self._look = look
        self._kinds: dict[str | int, Kind] = {}
        self._keys: dict[int, str | int] = {}
        self._seen = -1
        self._orders: dict[tuple[Hashable, int], list[int]] = {}

    def in_order(self, key: Hashable, among: int, like: Callable[[TaskQueue], Liking]) -> list[int]:
        """Return the kinds that are `among` these task queues as sets, those that are liked best first.

        What is liked alike is one set. What `like` says is remembered, if it lasts, for all whose `key` is equal.
        """
        self._agree()
        kept = self._orders.get((key, among))
        if kept is not None:
            return kept
        likings = [(like(kind.example), kind.places) for kind in self._kinds.values() if kind.places & among]
        ranks: dict[float, int] = {}
        for liking, places in likings:
            ranks[liking.rank] = ranks.get(liking.rank, 0) | places
        order = [ranks[rank] for rank in sorted(ranks, reverse=True)]
        if all(liking.lasts for liking, _ in likings):
            while len(self._orders) >= MOST_ORDERS:
                del self._orders[next(iter(self._orders))]
            self._orders[key, among] = order
        return order

    def of(self, line: Line) -> Kind:
        """Return the kind of a task queue."""
        self._agree()
        return self._kinds[self._keys[line.place]]

    def _agree(self) -> None:
        changes = self._waiting.places.changes
        if self._seen == changes.now:
            return
        places = changes.since(self._seen) if self._seen >= 0 else None
        if places is None:
            self._kinds.clear()
            self._keys.clear()
            places = self._waiting.all_places()
        self._seen = changes.now
        self._orders.clear()
        for place in dict.fromkeys(places):
            self._leave(place)
            line = self._waiting.line_at(place)
            if line is not None:
                self._join(line)

    def _join(self, line: Line) -> None:
        look = self._look(line.task_queue)
        key = line.task_queue.id if look is None else look
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = Kind(line.task_queue)
        kind.places |= 1 << line.place
        self._keys[line.place] = key

    def _leave(self, place: int) -> None:
        key = self._keys.pop(place, None)
        if key is None:
            return
        self._kinds[key].places &= ~(1 << place)
        if not self._kinds[key].places:
            del self._kinds[key]


class Seen:
    """The task queues as policies see them, kept from one request to the next."""

    def __init__(self, waiting: WaitingIndex, views: JobViews) -> None:
        self.views = views
        self.waiting = waiting
        self._by_names: dict[Names, JobKinds] = {}
        self._by_requirements = JobKinds(waiting, self._requirements)

    def by(self, wanted: Names) -> JobKinds:
        """Return the kinds that who looks for these attributes tells apart."""
        kinds = self._by_names.get(wanted)
        if kinds is None:
            while len(self._by_names) >= MOST_QUESTIONS:
                del self._by_names[next(iter(self._by_names))]
            kinds = self._by_names[wanted] = JobKinds(self.waiting, lambda each: seen_by(wanted, self.views.view(each)))
        return kinds

    @property
    def by_requirements(self) -> JobKinds:
        """The kinds that slots tell apart by the jobs' own expressions."""
        return self._by_requirements

    def _requirements(self, task_queue: TaskQueue) -> str | None:
        text = task_queue.traits.requirements_expression
        return requirements_of(self.views.view(task_queue), text) if text else ""
