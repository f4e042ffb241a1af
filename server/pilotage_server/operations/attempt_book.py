"""The attempts that a piece of work handles: read together, changed in memory, written together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlmodel import Session

from pilotage_server.core.leases import AttemptRecord
from pilotage_server.storage.attempts import AttemptKey, change_attempts, load_attempts


class AttemptBook:
    """Attempts by their keys; what is changed is seen at once, and in the database after `write`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._records: dict[AttemptKey, AttemptRecord | None] = {}
        self._changes: dict[AttemptKey, dict[str, Any]] = {}
        self._unwritten: set[AttemptKey] = set()

    def read(self, keys: Iterable[AttemptKey]) -> None:
        """Have these attempts at hand."""
        new = [key for key in keys if key not in self._records]
        if new:
            found = load_attempts(self._session, new)
            self._records.update((key, found.get(key)) for key in new)

    def get(self, key: AttemptKey) -> AttemptRecord | None:
        """Return an attempt that was read; None = there is none such."""
        record, changes = self._records[key], self._changes.get(key)
        return record if record is None or changes is None else record.changed(changes)

    def known(self, key: AttemptKey) -> AttemptRecord:
        """Return an attempt that was read, and that there is."""
        record = self.get(key)
        assert record is not None, "there is such an attempt"
        return record

    def change(self, key: AttemptKey, columns: Mapping[str, Any]) -> None:
        """Give an attempt that was read, and that there is, these columns."""
        self._changes.setdefault(key, {}).update(columns)
        self._unwritten.add(key)

    def write(self) -> None:
        """Store all changes since the last time."""
        change_attempts(self._session, {key: self._changes[key] for key in self._unwritten})
        self._unwritten.clear()
