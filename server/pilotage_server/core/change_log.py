"""A log of what has changed, so that who remembers something can bring it up to date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

Thing = TypeVar("Thing")

_LONGEST = 20_000


class ChangeLog(Generic[Thing]):
    """The last changes, in order; long past ones are forgotten."""

    __slots__ = ("_changes", "_forgotten")

    def __init__(self) -> None:
        self._changes: list[Thing] = []
        self._forgotten = 0

    @property
    def now(self) -> int:
        """The end of the log, to be handed to `since` later."""
        return self._forgotten + len(self._changes)

    def note(self, thing: Thing) -> None:
        """Log that something has changed."""
        self._changes.append(thing)
        if len(self._changes) > _LONGEST:
            half = _LONGEST // 2
            del self._changes[:half]
            self._forgotten += half

    def since(self, then: int) -> Sequence[Thing] | None:
        """Return what has changed since `then`; None = that is forgotten, and anything may have."""
        return None if then < self._forgotten else self._changes[then - self._forgotten :]
