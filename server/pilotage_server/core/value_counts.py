"""How many values an attribute has among the task queues of a pool, so that one with too many leaves the key.

Rules
-----
Every value in a key is a task queue more for every match to look at; an attribute that is each job's own would make
one for each job. Who comes when there are many values already has his value asked job by job instead. That is exact
either way, so the counts may be off, as after a transaction that failed, and servers may disagree.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TypeAlias

from pilotage_server.core.task_queues import TaskQueue, Traits, escaping

MOST_VALUES = 64
"""Values of one attribute that may tell the task queues of one pool apart (DESIGN §7)."""

_Place: TypeAlias = tuple[str, str, str]


class ValueCounts:
    """The values by VO, pool and attribute, each with the ids of the task queues that have it."""

    def __init__(self) -> None:
        self._values: dict[_Place, dict[str, set[int]]] = {}

    def note(self, task_queue: TaskQueue) -> None:
        """Count the values of a task queue."""
        for place, text in _values(task_queue.traits):
            self._values.setdefault(place, {}).setdefault(text, set()).add(task_queue.id)

    def forget(self, task_queue: TaskQueue) -> None:
        """Count the values of a task queue no longer."""
        for place, text in _values(task_queue.traits):
            values = self._values.get(place, {})
            values.get(text, set()).discard(task_queue.id)
            if not values.get(text):
                values.pop(text, None)
            if not values:
                self._values.pop(place, None)

    def admitted(self, traits: Traits, kept: Container[str]) -> Traits:
        """Return the traits without new values of attributes that have too many; those in `kept` never leave."""
        crowded = [place[2] for place, text in _values(traits) if self._is_crowded(place, text)]
        leaving = [name for name in crowded if name not in kept]
        return escaping(traits, leaving) if leaving else traits

    def _is_crowded(self, place: _Place, text: str) -> bool:
        values = self._values.get(place, {})
        return len(values) >= MOST_VALUES and text not in values


def _values(traits: Traits) -> list[tuple[_Place, str]]:
    return [((traits.account.vo, traits.pool_id, name), text) for name, text in traits.attributes]
