"""One transaction under way, as operations see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlmodel import Session


@dataclass(slots=True)
class Unit:
    """A transaction, or a part of one that fails alone: its session, its time, and what waits for its end.

    `notes` are what operations gather until the end, by a name of their own.
    """

    session: Session
    now: datetime
    notes: dict[str, Any] = field(default_factory=dict)
    _before_commit: list[Callable[[], None]] = field(default_factory=list)
    _after_commit: list[Callable[[], None]] = field(default_factory=list)
    _on_rollback: list[Callable[[], None]] = field(default_factory=list)

    def before_commit(self, act: Callable[[], None]) -> None:
        """Let `act` run as the last thing inside the transaction, when every row it touches is locked."""
        self._before_commit.append(act)

    def after_commit(self, act: Callable[[], None]) -> None:
        """Let `act` run once the transaction is on disk; it is forgotten when the transaction fails."""
        self._after_commit.append(act)

    def on_rollback(self, act: Callable[[], None]) -> None:
        """Let `act` undo what was changed in memory ahead of the commit, if it does not come to that."""
        self._on_rollback.append(act)

    @contextmanager
    def part(self) -> Iterator[Unit]:
        """Give a unit for one piece of the work: when the block raises, nothing of that piece has happened."""
        part = Unit(self.session, self.now)
        try:
            with self.session.begin_nested():
                yield part
        except BaseException:
            part.rolled_back()
            raise
        self._before_commit.append(part.committing)
        self._after_commit.append(part.committed)
        self._on_rollback.append(part.rolled_back)

    def committing(self) -> None:
        """Run what waited for the end of the transaction, in the order in which it was asked for."""
        for act in self._before_commit:
            act()

    def committed(self) -> None:
        """Run what waited for the commit, in the order in which it was asked for."""
        for act in self._after_commit:
            act()

    def rolled_back(self) -> None:
        """Undo what was changed in memory, the last change first."""
        for act in reversed(self._on_rollback):
            act()
