"""What a server's memory has been told of task queues, and whether the database has more or less for a moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple


class Told(NamedTuple):
    """What has been told of a task queue: `version` is another after each change.

    `waiting` was counted up from when `base` was set. The jobs `under_way` are taken by matches that are not at their
    ends: they do not count, though the database may have them waiting. `is_marked` = there is more to tell, by what
    `Untold` knows, or by a match that has no answer yet.
    """

    version: int
    waiting: int
    base: int
    under_way: frozenset[int]
    is_marked: bool

    def is_all_since(self, before: Told | None) -> bool:
        """Whether this is all, and was all before already."""
        return self == before and not self.is_marked


class Untold:
    """Marks on task queues in which transactions of this server let jobs come or go that are not told to the end.

    While there is one, the database may have what the memory has not, or the other way about: to count then what the
    database has would count the same jobs once more when they are told. Matches make no marks: lines know what they
    have taken.
    """

    def __init__(self) -> None:
        self._marks: Counter[int] = Counter()

    def begin(self, task_queue_ids: Iterable[int]) -> None:
        """Mark each of these task queues once more, for a transaction that is to come to its commit."""
        self._marks.update(task_queue_ids)

    def end(self, task_queue_ids: Iterable[int]) -> None:
        """Take one mark from each: what it was for has been told, or has come to nothing."""
        for task_queue_id in task_queue_ids:
            self._marks[task_queue_id] -= 1
            if not self._marks[task_queue_id]:
                del self._marks[task_queue_id]

    def __contains__(self, task_queue_id: int) -> bool:
        return task_queue_id in self._marks
