"""The task queues of one account in order, and the first of them that is in a bit set.

The order is kept in short blocks, each with the bit set of its task queues; several blocks share a union of their sets.
A search for few task queues among many skips whole blocks. The last result is kept: most searches ask for the same set
again while the order has not changed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from functools import reduce
from operator import or_
from typing import TypeAlias

from pilotage_server.core.queueing.bitsets import bit_set

QueuePosition: TypeAlias = tuple[int, int, int, int]
"""Sorts task queues by their heads: the head's sort key (two numbers), then the task queue's id and bit."""

_MAX_BLOCK = 64
"""A block that grows longer is split."""

_BLOCKS_PER_UNION = 16
"""The number of blocks that share a union."""


class AccountOrder:
    """Positions in order, each once."""

    __slots__ = ("_blocks", "_found", "_lasts", "_looked_for", "_sets", "_unions")

    def __init__(self) -> None:
        self._blocks: list[list[QueuePosition]] = []
        self._sets: list[int] = []
        self._lasts: list[QueuePosition] = []
        self._unions: list[int] | None = None
        self._looked_for: int | None = None
        self._found: tuple[list[QueuePosition], int] | None = None

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def first_among(self, bits: int) -> QueuePosition | None:
        """Return the first position whose bit is in the set; None = there is none."""
        if bits != self._looked_for:
            self._looked_for, self._found = bits, self._find(bits)
        if self._found is None:
            return None
        block, index = self._found
        return block[index]

    def replace(self, before: QueuePosition | None, after: QueuePosition | None) -> None:
        """Replace the position of a task queue; None = it has none."""
        if before is not None and after is not None:
            self.move(before, after)
        elif before is not None:
            self._remove(before)
        elif after is not None:
            self._add(after)

    def move(self, before: QueuePosition, after: QueuePosition) -> None:
        """Replace the position of a task queue that has one."""
        number = bisect_left(self._lasts, before) if len(self._lasts) > 1 else 0
        block = self._blocks[number]
        index = bisect_left(block, before)
        is_last = index + 1 == len(block)
        if before < after and not is_last and after < block[index + 1]:  # the usual case: the order stays
            block[index] = after
        elif before < after and is_last and number + 1 == len(self._lasts):
            block[index] = self._lasts[number] = after
        else:
            self._remove(before)
            self._add(after)

    def positions(self) -> list[QueuePosition]:
        """Return all positions in order."""
        return [position for block in self._blocks for position in block]

    def check(self) -> None:
        """Assert the invariants."""
        assert self.positions() == sorted(self.positions())
        assert all(0 < len(block) <= _MAX_BLOCK for block in self._blocks)
        assert self._sets == [bit_set(position[3] for position in block) for block in self._blocks]
        if self._unions is not None:  # they may hold more: removed bits stay in them
            assert not any(each & ~self._unions[number // _BLOCKS_PER_UNION] for number, each in enumerate(self._sets))
        assert self._lasts == [block[-1] for block in self._blocks]

    def _find(self, bits: int) -> tuple[list[QueuePosition], int] | None:
        """Return the block with the first position of the set, and its index there."""
        if len(self._sets) <= _BLOCKS_PER_UNION:
            return self._find_from(0, bits)
        if self._unions is None:
            self._unions = [
                reduce(or_, self._sets[begin : begin + _BLOCKS_PER_UNION])
                for begin in range(0, len(self._sets), _BLOCKS_PER_UNION)
            ]
        for number, union in enumerate(self._unions):
            if union & bits:
                found = self._find_from(number * _BLOCKS_PER_UNION, bits)
                if found is not None:
                    return found
        return None

    def _find_from(self, begin: int, bits: int) -> tuple[list[QueuePosition], int] | None:
        """Search one union's blocks from number `begin` on."""
        for number in range(begin, min(begin + _BLOCKS_PER_UNION, len(self._sets))):
            found = self._sets[number] & bits
            if found:
                block = self._blocks[number]
                return block, _first_of(block, found)
        return None

    def _add(self, position: QueuePosition) -> None:
        self._looked_for = None
        if not self._blocks:
            self._blocks, self._sets, self._lasts = [[position]], [1 << position[3]], [position]
            self._unions = None
            return
        number = min(bisect_left(self._lasts, position), len(self._lasts) - 1)
        block = self._blocks[number]
        insort(block, position)
        self._sets[number] |= 1 << position[3]
        if self._unions is not None:
            self._unions[number // _BLOCKS_PER_UNION] |= 1 << position[3]
        self._lasts[number] = block[-1]
        if len(block) > _MAX_BLOCK:
            self._split(number)

    def _remove(self, position: QueuePosition) -> None:
        self._looked_for = None
        number = bisect_left(self._lasts, position)
        block = self._blocks[number]
        del block[bisect_left(block, position)]
        if block:
            self._sets[number] ^= 1 << position[3]
            self._lasts[number] = block[-1]
        else:
            del self._blocks[number], self._sets[number], self._lasts[number]
            self._unions = None

    def _split(self, number: int) -> None:
        block = self._blocks[number]
        halves = [block[: _MAX_BLOCK // 2], block[_MAX_BLOCK // 2 :]]
        self._blocks[number : number + 1] = halves
        self._sets[number : number + 1] = [bit_set(position[3] for position in half) for half in halves]
        self._lasts[number : number + 1] = [half[-1] for half in halves]
        self._unions = None


def _first_of(block: list[QueuePosition], found: int) -> int:
    """Return the index of the first position of the block whose bit is in the set, which is not empty."""
    if found.bit_count() == 1:  # a fast path: testing bits of a large set is slow
        bit = found.bit_length() - 1
        return next(index for index, position in enumerate(block) if position[3] == bit)
    return next(index for index, position in enumerate(block) if found >> position[3] & 1)
