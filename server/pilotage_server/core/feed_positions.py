"""Which events of the feed other servers have told and this one has not heard of yet.

Rules
-----
Positions grow in the order of commits, and those of one transaction follow each other without a gap. A server notes
its own before they are committed, so before anybody can see them: what is visible and not its own is of others.
"""

from __future__ import annotations


class OthersEvents:
    """How far a server has followed the others in the feed; `position` is that of the last event it knows of."""

    def __init__(self, position: int) -> None:
        self.position = position
        self._own: dict[int, int] = {}

    def note_own(self, first: int, count: int) -> None:
        """Note the positions of a transaction of this server, which may still fail."""
        self._own[first] = first + count - 1

    def disown(self, first: int) -> None:
        """Take back what was noted of a transaction that has failed, as far as this server can tell."""
        self._own.pop(first, None)

    def unheard(self, newest: int) -> list[tuple[int, int]]:
        """Return the ranges of positions up to `newest` that are not this server's own, both ends included."""
        ranges: list[tuple[int, int]] = []
        begin = self.position + 1
        for first, last in sorted(self._own.items()):  # as they are now: a writer may take one back meanwhile
            if first > newest:
                break
            if begin < first:
                ranges.append((begin, first - 1))
            begin = max(begin, last + 1)
        return [*ranges, (begin, newest)] if begin <= newest else ranges

    def heard(self, newest: int) -> None:
        """Note that all events up to `newest` have been heard of."""
        self.position = max(self.position, newest)
        for first, last in list(self._own.items()):
            if last <= newest:
                self._own.pop(first, None)
