"""What a server's memory has been told of task queues, and whether the database has more or less for a moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple


class Told(NamedTuple):
    """What has been told of a task queue: `version` is another after each change.

    `is_all` = no transaction is under way that has more to tell, or has told what may come to nothing.
    """

    version: int
    waiting: int
    is_all: bool

    def is_all_since(self, before: Told | None) -> bool:
        """Whether this is all, and was told before already."""
        return self.is_all and before is not None and before.version == self.version


class Untold:
    """Counts, by task queue, the transactions of this server that let jobs come or go and are not told to the end.

    While there is one, the database may have what the memory has not, or the other way about: to count then what the
    database has would count the same jobs once more when they are told.
    """

    def __init__(self) -> None:
        self._open: Counter[int] = Counter()

    def begin(self, task_queue_ids: Iterable[int]) -> None:
        """Take note of what a transaction does to task queues, before its commit."""
        self._open.update(task_queue_ids)

    def end(self, task_queue_ids: Iterable[int]) -> None:
        """Take note that it has been told, or has come to nothing."""
        for task_queue_id in task_queue_ids:
            self._open[task_queue_id] -= 1
            if not self._open[task_queue_id]:
                del self._open[task_queue_id]

    def __contains__(self, task_queue_id: int) -> bool:
        return task_queue_id in self._open
