"""The pace of long work: all at once, or with rests in which others have the interpreter.

Rules
-----
Who works on thousands of things takes them from a pace, which yields them as they are. Whether it rests in between is
the business of who has the work done.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Pace(Protocol):
    """Gives the things to work on, each when its time has come."""

    def __call__(self, items: Iterable[Item], /) -> Iterable[Item]:
        """Return the items in their order."""


def at_once(items: Iterable[Item], /) -> Iterable[Item]:
    """Return the items: nobody waits meanwhile."""
    return items
