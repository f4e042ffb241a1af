"""A log of what has changed, so that who remembers something can bring it up to date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

Thing = TypeVar("Thing")

_LONGEST = 20_000


class ChangeLog(Generic[Thing]):
    """The last changes, in order; long past ones are forgotten.

    `now` is the end of the log, to be handed to `since` later.
    """

    __slots__ = ("_changes", "now")

    def __init__(self) -> None:
        self.now = 0
        self._changes: list[Thing] = []

    def note(self, thing: Thing) -> None:
        """Log that something has changed."""
        self.now += 1
        self._changes.append(thing)
        if len(self._changes) > _LONGEST:
            del self._changes[: _LONGEST // 2]

    def since(self, then: int) -> Sequence[Thing] | None:
        """Return what has changed since `then`; None = that is forgotten, and anything may have."""
        begin = len(self._changes) - (self.now - then)
        return None if begin < 0 else self._changes[begin:]
