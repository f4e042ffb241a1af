"""Rounds: how items that must come one after the other are handled together with those that need not.

Rules
-----
Of items with the same key none is in one round with another, and their order is kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable


def rounds(keys: Iterable[Hashable]) -> list[list[int]]:
    """Return the places of the keys in rounds: the first of each key, then the second of each, and so on."""
    found: list[list[int]] = []
    seen: dict[Hashable, int] = {}
    for place, key in enumerate(keys):
        number = seen.get(key, 0)
        seen[key] = number + 1
        if number == len(found):
            found.append([])
        found[number].append(place)
    return found
