"""Counts of write transactions, for the metrics."""

from __future__ import annotations

import threading
from collections import Counter

from pilotage.errors import PilotageError, WorldError
from pilotage.metrics.table import DATABASE_COMMIT_SIZE, DATABASE_WRITE_SECONDS
from pilotage.metrics.values import Observations
from pilotage_server.storage.database.transaction import WriteConflictError


class WriteCounts:
    """The write transactions by result, the times of the committed ones, and the sizes of groups. For any thread."""

    def __init__(self) -> None:
        self.by_result: Counter[str] = Counter(committed=0, refused=0, repeated=0, failed=0)
        self.durations_s = Observations(DATABASE_WRITE_SECONDS.bounds)
        self.group_sizes = Observations(DATABASE_COMMIT_SIZE.bounds)
        self._lock = threading.Lock()

    def add_committed(self, took_s: float) -> None:
        """Count a transaction that is on disk."""
        with self._lock:
            self.by_result["committed"] += 1
            self.durations_s.observe(took_s)

    def add_group(self, size: int) -> None:
        """Count a group of operations that one transaction has put on disk."""
        with self._lock:
            self.group_sizes.observe(size)

    def add_error(self, error: BaseException, *, is_repeated: bool) -> None:
        """Count a transaction that was rolled back; `is_repeated` = it runs again."""
        is_refusal = isinstance(error, PilotageError) and (
            not isinstance(error, WorldError) or isinstance(error, WriteConflictError)
        )
        with self._lock:
            self.by_result["repeated" if is_repeated else "refused" if is_refusal else "failed"] += 1
