"""The attempts that a piece of work handles: read together, changed in memory, written together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlmodel import Session

from pilotage_server.core.leases import AttemptRecord
from pilotage_server.storage.attempts import AttemptKey, change_attempts, load_attempts

_SHOWN = frozenset(AttemptRecord._fields)


class AttemptBook:
    """Attempts by their keys; what is changed is seen at once, and in the database after `write`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._records: dict[AttemptKey, AttemptRecord | None] = {}
        self._changes: dict[AttemptKey, dict[str, Any]] = {}

    def read(self, keys: Iterable[AttemptKey]) -> None:
        """Have these attempts at hand."""
        new = [key for key in keys if key not in self._records]
        if new:
            found = load_attempts(self._session, new)
            self._records.update((key, found.get(key)) for key in new)

    def get(self, key: AttemptKey) -> AttemptRecord | None:
        """Return an attempt that was read; None = there is none such."""
        return self._records[key]

    def known(self, key: AttemptKey) -> AttemptRecord:
        """Return an attempt that was read, and that there is."""
        record = self._records[key]
        assert record is not None, "there is such an attempt"
        return record

    def change(self, key: AttemptKey, values: Mapping[str, Any]) -> None:
        """Give an attempt that was read, and that there is, these columns."""
        self._records[key] = self.known(key)._replace(**{name: values[name] for name in _SHOWN & values.keys()})
        self._changes.setdefault(key, {}).update(values)

    def write(self) -> None:
        """Store all changes since the last time."""
        change_attempts(self._session, self._changes)
        self._changes = {}
