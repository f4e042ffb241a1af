"""One transaction under way, as operations see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Protocol, Self, TypeVar

from sqlmodel import Session

from pilotage.errors import WorldError


class OvertakenError(WorldError):
    """Another transaction was quicker: what this one has read is no longer so. It is to run again."""

    def __init__(self, why: str) -> None:
        super().__init__(f"another server was quicker: {why}", transient=True)


class Tab(Protocol):
    """What operations of one transaction gather, to be written once, as its last act.

    `rank` tells in which order the tabs of a transaction are written, the lowest first: locks are taken in one order.
    """

    rank: ClassVar[int]

    def take_over(self, part: Self) -> None:
        """Add what a part of the transaction has gathered after this."""

    def write(self, unit: Unit) -> None:
        """Write it down."""


TabT = TypeVar("TabT", bound=Tab)


@dataclass(slots=True)
class Unit:
    """A transaction, or a part of one that fails alone: its session, its time, and what waits for its end.

    `again` = it ran before, and another was quicker.
    """

    session: Session
    now: datetime
    again: bool = False
    _whole: Unit | None = None
    _tabs: dict[type[Any], Any] = field(default_factory=dict)
    _after_commit: list[Callable[[], None]] = field(default_factory=list)
    _on_rollback: list[Callable[[], None]] = field(default_factory=list)

    def tab(self, kind: type[TabT], begin: Callable[[], TabT]) -> TabT:
        """Return the tab of a kind, begun when it is wanted first."""
        tab: TabT | None = self._tabs.get(kind)
        if tab is None:
            tab = self._tabs[kind] = begin()
        return tab

    def tabs(self, kind: type[TabT]) -> Iterator[TabT]:
        """Yield what the transaction has gathered of a kind so far: in this part of it, and before."""
        unit: Unit | None = self
        while unit is not None:
            if kind in unit._tabs:
                yield unit._tabs[kind]
            unit = unit._whole

    def after_commit(self, act: Callable[[], None]) -> None:
        """Let `act` run once the transaction is on disk; it is forgotten when the transaction fails."""
        self._after_commit.append(act)

    def on_rollback(self, act: Callable[[], None]) -> None:
        """Let `act` undo what was changed in memory ahead of the commit, if it does not come to that."""
        self._on_rollback.append(act)

    @contextmanager
    def part(self) -> Iterator[Unit]:
        """Give a unit for one piece of the work: when the block raises, nothing of that piece has happened."""
        part = Unit(self.session, self.now, self.again, self)
        try:
            with self.session.begin_nested():
                self.session.connection()  # which sets the savepoint: statements of `bulk` would not
                yield part
        except BaseException:
            part.rolled_back()
            raise
        self._take_over(part._tabs)
        self._after_commit.append(part.committed)
        self._on_rollback.append(part.rolled_back)

    def _take_over(self, tabs: dict[type[Any], Any]) -> None:
        for kind, tab in tabs.items():
            if kind in self._tabs:
                self._tabs[kind].take_over(tab)
            else:
                self._tabs[kind] = tab

    def committing(self) -> None:
        """Write what was gathered: the last thing inside the transaction, when every other row it touches is locked."""
        for tab in sorted(self._tabs.values(), key=lambda tab: tab.rank):
            tab.write(self)

    def committed(self) -> None:
        """Run what waited for the commit, in the order asked for; one that fails keeps no other from it.

        Raises
        ------
        ExceptionGroup
            Of those that failed.
        """
        failures: list[Exception] = []
        for act in self._after_commit:
            try:
                act()
            except Exception as error:  # whatever it is: the others must hear of what is on disk
                failures.append(error)
        if failures:
            raise ExceptionGroup("what followed a commit failed", failures)

    def rolled_back(self) -> None:
        """Undo what was changed in memory, the last change first; one that fails keeps no other from it."""
        with ExitStack() as undoing:
            for act in self._on_rollback:
                undoing.callback(act)
