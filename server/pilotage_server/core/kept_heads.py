"""How many heads of lines are kept in all: those that were asked for longest ago go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from pilotage_server.core.waiting_line import Line

MOST_HEADS = 200_000
"""So many heads are kept in all, beside one for each task queue."""


class KeptHeads:
    """Counts the heads of these lines, by task queue, and shortens lines where there are too many."""

    def __init__(self, lines: Mapping[int, Line], most: int = MOST_HEADS) -> None:
        self._lines = lines
        self._most = most
        self._heads = 0
        self._longer: OrderedDict[int, None] = OrderedDict()

    def count(self, line: Line) -> None:
        """Count the heads of a line that has changed."""
        self._count(line)
        if line.counted > 1 and line.task_queue.id not in self._longer:
            self._longer[line.task_queue.id] = None
            while self._heads > self._most + len(self._lines) and self._longer:
                self._shorten(self._longer.popitem(last=False)[0])

    def count_taken(self, line: Line) -> None:
        """Count that the first head of a line, which knows more, was taken."""
        line.counted -= 1
        self._heads -= 1

    def asked(self, task_queue_id: int) -> None:
        """Let a line whose heads are asked for now be the last to be shortened, once it has been counted."""
        self._longer.pop(task_queue_id, None)

    def check(self) -> None:
        """Assert what must always be so."""
        assert self._heads == sum(len(line.heads) for line in self._lines.values())
        assert self._heads <= self._most + len(self._lines)

    def _shorten(self, task_queue_id: int) -> None:
        line = self._lines.get(task_queue_id)
        if line is not None:
            line.shorten(1)
            self._count(line)

    def _count(self, line: Line) -> None:
        self._heads += len(line.heads) - line.counted
        line.counted = len(line.heads)
