"""Which new jobs are offered to free slots just now: no job that another slot may still take drives one out.

Rules
-----
Told by the writers' threads, when jobs have come, and by the event loop, when calls are asked and have answered; read
by the writers' threads. Nothing here outlives a look, so jobs that no free slot takes are soon wanted elsewhere.
"""

from __future__ import annotations

import threading
from collections import Counter


class JobsOnOffer:
    """The task queues of such jobs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._coming: Counter[int] = Counter()
        self._asked: dict[int, Counter[str]] = {}

    def coming(self, task_queue_id: int) -> None:
        """Take note that jobs have come of which the waiting calls have not been told yet."""
        with self._lock:
            self._coming[task_queue_id] += 1

    def arrived(self, task_queue_id: int) -> None:
        """Take note that they have been told."""
        with self._lock:
            self._coming[task_queue_id] -= 1
            if self._coming[task_queue_id] <= 0:
                del self._coming[task_queue_id]

    def asks(self, task_queue_id: int, stamp: str) -> None:
        """Take note that a pilot with a free slot is about to look for the jobs."""
        with self._lock:
            self._asked.setdefault(task_queue_id, Counter())[stamp] += 1

    def asked(self, task_queue_id: int, stamp: str) -> None:
        """Take note that it has looked."""
        with self._lock:
            lookers = self._asked[task_queue_id]
            lookers[stamp] -= 1
            if not lookers[stamp]:
                del lookers[stamp]
            if not lookers:
                del self._asked[task_queue_id]

    def is_offered(self, task_queue_id: int, stamp: str) -> bool:
        """Whether pilots other than the one with this stamp are about to look for the jobs."""
        with self._lock:
            return task_queue_id in self._coming or bool(self._asked.get(task_queue_id, Counter()).keys() - {stamp})
