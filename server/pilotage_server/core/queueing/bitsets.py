"""Sets of small numbers as integers with one bit each, and the allocation of bits to task queues.

The intersection of two sets is one operation, whatever their sizes (a bitmap index). A released bit is allocated again.
`BitAllocator.changes` lists the bits whose meaning has changed, so that kept sets can be refreshed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pilotage_server.core.containers import ChangeLog

ALL_BITS: Final = -1
"""The set of all bits."""


def bit_set(bits: Iterable[int]) -> int:
    """Return the set of these bits."""
    found = list(bits)
    if not found:
        return 0
    octets = bytearray((max(found) >> 3) + 1)
    for bit in found:
        octets[bit >> 3] |= 1 << (bit & 7)
    return int.from_bytes(octets, "little")


class BitAllocator:
    """Allocates bits, released ones first."""

    def __init__(self) -> None:
        self.changes: ChangeLog[int] = ChangeLog()
        self._free: list[int] = []
        self._allocated = 0

    def allocate(self) -> int:
        """Return a free bit."""
        if self._free:
            bit = self._free.pop()
        else:
            bit = self._allocated
            self._allocated += 1
        self.changes.add(bit)
        return bit

    def release(self, bit: int) -> None:
        """Release a bit."""
        self._free.append(bit)
        self.changes.add(bit)
