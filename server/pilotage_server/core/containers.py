"""Small containers: a bounded cache, a log of changes, and batches of items with different keys."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

MAX_CACHED_VALUES = 20_000
MAX_CACHED_BYTES = 64 * 1024 * 1024


class BoundedCache(Generic[Key, Value]):
    """A cache that is emptied when it is full, by number or by size; values that are still needed are computed again.

    Threads may share it: a full dictionary is replaced and never emptied, so that readers keep theirs.
    """

    __slots__ = ("_bytes", "_most", "_most_bytes", "known")

    def __init__(self, most: int = MAX_CACHED_VALUES, most_bytes: int = MAX_CACHED_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self.known: dict[Key, Value] = {}

    def put(self, key: Key, value: Value, size: int) -> None:
        """Add a value of about `size` bytes."""
        if len(self.known) >= self._most or self._bytes + size > self._most_bytes:
            self.known = {}
            self._bytes = 0
        self.known[key] = value
        self._bytes += size


Thing = TypeVar("Thing")

_LONGEST = 20_000


class ChangeLog(Generic[Thing]):
    """The last changes in order, by which the owner of a cache brings it up to date; old changes are dropped.

    `now` is the present end of the log, an argument for a later `since`.
    """

    __slots__ = ("_changes", "now")

    def __init__(self) -> None:
        self.now = 0
        self._changes: list[Thing] = []

    def add(self, thing: Thing) -> None:
        """Add a change."""
        self.now += 1
        self._changes.append(thing)
        if len(self._changes) > _LONGEST:
            del self._changes[: _LONGEST // 2]

    def since(self, then: int) -> Sequence[Thing] | None:
        """Return the changes since `then`; None = some of them have been dropped."""
        begin = len(self._changes) - (self.now - then)
        return None if begin < 0 else self._changes[begin:]


def batch_by_key(keys: Iterable[Hashable]) -> list[list[int]]:
    """Return the indexes of the keys in batches: the first of each key, then the second of each, and so on.

    No batch has a key twice, so that the items of a batch can be handled together and equal keys keep their order.
    """
    found: list[list[int]] = []
    seen: dict[Hashable, int] = {}
    for index, key in enumerate(keys):
        number = seen.get(key, 0)
        seen[key] = number + 1
        if number == len(found):
            found.append([])
        found[number].append(index)
    return found
