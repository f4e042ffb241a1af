"""The task queues of one account in their turn, and the first of them that is among some.

Rules
-----
Sets of task queues are integers with one bit for each place, so that what they have in common is found at once. The
order is kept in short stretches, each with its set, and many of them have theirs again: who looks for few among many
passes over whole stretches. Most often the same are looked for again while nobody has overtaken anybody: then the
first is where it was.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from functools import reduce
from operator import or_
from typing import TypeAlias

from pilotage_server.core.place_sets import set_of

Turn: TypeAlias = tuple[int, int, int, int]
"""Sorts task queues by who is first in them: what sorts heads (two numbers), then the task queue's id and place."""

_LONGEST = 64
"""A stretch that grows longer is divided."""

_MANY = 16
"""So many stretches are passed over at once, where there are more."""


class AccountOrder:
    """Turns in order; each is there once."""

    __slots__ = ("_found", "_lasts", "_looked_for", "_sets", "_stretches", "_unions")

    def __init__(self) -> None:
        self._stretches: list[list[Turn]] = []
        self._sets: list[int] = []
        self._lasts: list[Turn] = []
        self._unions: list[int] | None = None
        self._looked_for: int | None = None
        self._found: tuple[list[Turn], int] | None = None

    def __bool__(self) -> bool:
        return bool(self._stretches)

    def __len__(self) -> int:
        return sum(map(len, self._stretches))

    def first_among(self, places: int) -> Turn | None:
        """Return the first turn whose place is in the set; None = there is none."""
        if places != self._looked_for:
            self._looked_for, self._found = places, self._find(places)
        if self._found is None:
            return None
        stretch, index = self._found
        return stretch[index]

    def change(self, before: Turn | None, after: Turn | None) -> None:
        """Let a task queue have another turn; None = it has none."""
        if before is not None and after is not None:
            self.move(before, after)
        elif before is not None:
            self._remove(before)
        elif after is not None:
            self._add(after)

    def move(self, before: Turn, after: Turn) -> None:
        """Let a task queue that has a turn have another one."""
        number = bisect_left(self._lasts, before) if len(self._lasts) > 1 else 0
        stretch = self._stretches[number]
        index = bisect_left(stretch, before)
        is_last = index + 1 == len(stretch)
        if before < after and not is_last and after < stretch[index + 1]:  # most often nobody is overtaken
            stretch[index] = after
        elif before < after and is_last and number + 1 == len(self._lasts):
            stretch[index] = self._lasts[number] = after
        else:
            self._remove(before)
            self._add(after)

    def turns(self) -> list[Turn]:
        """Return all turns in order."""
        return [turn for stretch in self._stretches for turn in stretch]

    def check(self) -> None:
        """Assert what must always be so."""
        assert self.turns() == sorted(self.turns())
        assert all(0 < len(stretch) <= _LONGEST for stretch in self._stretches)
        assert self._sets == [set_of(turn[3] for turn in stretch) for stretch in self._stretches]
        if self._unions is not None:  # they may hold more, for what leaves is not taken out
            assert not any(each & ~self._unions[number // _MANY] for number, each in enumerate(self._sets))
        assert self._lasts == [stretch[-1] for stretch in self._stretches]

    def _find(self, places: int) -> tuple[list[Turn], int] | None:
        """Return the stretch in which the first turn of the set is, and where in it."""
        if len(self._sets) <= _MANY:
            return self._find_from(0, places)
        if self._unions is None:
            self._unions = [_union(self._sets[begin : begin + _MANY]) for begin in range(0, len(self._sets), _MANY)]
        for number, union in enumerate(self._unions):
            if union & places:
                found = self._find_from(number * _MANY, places)
                if found is not None:
                    return found
        return None

    def _find_from(self, begin: int, places: int) -> tuple[list[Turn], int] | None:
        """Return where the first turn of the set is in the next few stretches."""
        for number in range(begin, min(begin + _MANY, len(self._sets))):
            found = self._sets[number] & places
            if found:
                stretch = self._stretches[number]
                return stretch, _first_of(stretch, found)
        return None

    def _add(self, turn: Turn) -> None:
        self._looked_for = None
        if not self._stretches:
            self._stretches, self._sets, self._lasts = [[turn]], [1 << turn[3]], [turn]
            self._unions = None
            return
        number = min(bisect_left(self._lasts, turn), len(self._lasts) - 1)
        stretch = self._stretches[number]
        insort(stretch, turn)
        self._sets[number] |= 1 << turn[3]
        if self._unions is not None:
            self._unions[number // _MANY] |= 1 << turn[3]
        self._lasts[number] = stretch[-1]
        if len(stretch) > _LONGEST:
            self._divide(number)

    def _remove(self, turn: Turn) -> None:
        self._looked_for = None
        number = bisect_left(self._lasts, turn)
        stretch = self._stretches[number]
        del stretch[bisect_left(stretch, turn)]
        if stretch:
            self._sets[number] ^= 1 << turn[3]
            self._lasts[number] = stretch[-1]
        else:
            del self._stretches[number], self._sets[number], self._lasts[number]
            self._unions = None

    def _divide(self, number: int) -> None:
        stretch = self._stretches[number]
        halves = [stretch[: _LONGEST // 2], stretch[_LONGEST // 2 :]]
        self._stretches[number : number + 1] = halves
        self._sets[number : number + 1] = [set_of(turn[3] for turn in half) for half in halves]
        self._lasts[number : number + 1] = [half[-1] for half in halves]
        self._unions = None


def _first_of(stretch: list[Turn], found: int) -> int:
    """Return where the first turn is whose place is in the set, in which some of the stretch are."""
    if found.bit_count() == 1:  # told apart, for to look at one bit of a large set takes long
        place = found.bit_length() - 1
        return next(index for index, turn in enumerate(stretch) if turn[3] == place)
    return next(index for index, turn in enumerate(stretch) if found >> turn[3] & 1)


def _union(sets: list[int]) -> int:
    return reduce(or_, sets)
