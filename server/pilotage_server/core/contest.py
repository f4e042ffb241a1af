"""Who goes first, job by job, of those who have something in a set of task queues.

Rules
-----
Accounts come in as they stood at the beginning, and only as many as it takes to know the first; from then on each goes
where what he was given has brought him. What is given brings nobody forward, so where somebody was seen last is never
behind where he is: only of the first of all it has to be asked whether he is still there.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple

from pilotage_server.core.account_order import Turn
from pilotage_server.core.account_turns import Candidate, PlainShare, Stood
from pilotage_server.core.waiting import WaitingIndex
from pilotage_server.core.waiting_line import Line


class Seat(NamedTuple):
    """A task queue whose turn it is in its account.

    Sorts accounts: by share, then by the turn, which is no other's, so that what follows is not compared.
    """

    share: PlainShare
    turn: Turn
    line: Line
    candidate: Candidate


class Contest:
    """The way through what waits for one slot, or for several that are alike; `in_order` yields the accounts."""

    __slots__ = ("_coming", "_next", "_seats", "_waiting")

    def __init__(self, waiting: WaitingIndex, in_order: Iterator[Stood]) -> None:
        self._waiting = waiting
        self._coming = in_order
        self._next = next(in_order, None)
        self._seats: list[Seat] = []

    def first(self, places: int) -> Seat | None:
        """Return the task queue among these whose turn it is, with its account; None = nothing waits in any of them.

        They may be fewer each time, never others.
        """
        seats = self._seats
        while True:
            while self._next is not None and (not seats or self._next[0] <= seats[0].share):
                self._let_in(self._next[1], places)
            if not seats:
                return None
            seat = seats[0]
            share, turn, line, candidate = seat
            now = _share(candidate)
            if line.turn != turn or not places >> line.place & 1:
                self._see_again(candidate, places)
            elif share != now:
                heapreplace(seats, Seat(now, turn, line, candidate))
            else:
                return seat

    def _let_in(self, candidate: Candidate, places: int) -> None:
        """Let another account in, if it has any of these, and look who is the next."""
        seat = self._seat(candidate, places)
        if seat is not None:
            heappush(self._seats, seat)
        self._next = next(self._coming, None)

    def _see_again(self, candidate: Candidate, places: int) -> None:
        """Look which task queue of the first account has its turn now."""
        seat = self._seat(candidate, places)
        if seat is None:
            heappop(self._seats)
        else:
            heapreplace(self._seats, seat)

    def _seat(self, candidate: Candidate, places: int) -> Seat | None:
        turn = candidate.order.first_among(places)
        if turn is None:
            return None
        return Seat(_share(candidate), turn, self._waiting.at(turn[3]), candidate)


def _share(candidate: Candidate) -> PlainShare:
    owner, group = candidate.standing, candidate.standing.group
    return (group.standing, group.use, owner.use, owner.factor)
