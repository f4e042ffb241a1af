"""The pace of long work: all at once, or with pauses in which other threads get the interpreter.

A function that works on thousands of items takes them from a Pace, which yields them unchanged. The caller decides
whether it pauses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Pace(Protocol):
    """Yields the items to work on, perhaps with pauses."""

    def __call__(self, items: Iterable[Item], /) -> Iterable[Item]:
        """Return the items in their order."""


def at_once(items: Iterable[Item], /) -> Iterable[Item]:
    """Return the items without pauses."""
    return items
