"""What was worked out lately, bounded in number and size.

Rules
-----
When there is too much all is forgotten, and what is needed still is worked out again. Threads may share it: what they
are reading is replaced and never emptied.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

MOST_REMEMBERED = 20_000
MOST_BYTES = 64 * 1024 * 1024


class Remembered(Generic[Key, Value]):
    """Values by their keys; `known` is for reading, and another one after each time that all was forgotten."""

    __slots__ = ("_bytes", "_most", "_most_bytes", "known")

    def __init__(self, most: int = MOST_REMEMBERED, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self.known: dict[Key, Value] = {}

    def put(self, key: Key, value: Value, size: int) -> None:
        """Remember a value that takes about so many bytes."""
        if len(self.known) >= self._most or self._bytes + size > self._most_bytes:
            self.known = {}
            self._bytes = 0
        self.known[key] = value
        self._bytes += size
