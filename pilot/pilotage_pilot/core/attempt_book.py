"""All attempts that a pilot holds: those under way, and those that have ended and are not acknowledged yet.

Rules
-----
Of the ended ones there can be many and nothing is due to them but a word to the server: so they are kept apart, and
those among them that the server has not been told of, in the order in which they ended.
"""

from __future__ import annotations

from collections.abc import Iterator

from pilotage_pilot.core.attempts import Attempt, Stage
from pilotage_pilot.core.jobs import AttemptKey


class AttemptBook:
    """The attempts of one pilot."""

    def __init__(self) -> None:
        self._under_way: dict[AttemptKey, Attempt] = {}
        self._ended: dict[AttemptKey, Attempt] = {}
        self._untold: dict[AttemptKey, Attempt] = {}

    def __len__(self) -> int:
        return len(self._under_way) + len(self._ended)

    def __iter__(self) -> Iterator[Attempt]:
        return iter((*self._ended.values(), *self._under_way.values()))

    def __getitem__(self, key: AttemptKey) -> Attempt:
        return self._under_way.get(key) or self._ended[key]

    def get(self, key: AttemptKey) -> Attempt | None:
        """Return an attempt; None = there is none of this key (any more)."""
        return self._under_way.get(key) or self._ended.get(key)

    def under_way(self) -> tuple[Attempt, ...]:
        """Return those that have not ended."""
        return tuple(self._under_way.values())

    def untold_ends(self) -> Iterator[Attempt]:
        """Yield those that have ended and that the server has not been told of, the first that ended first."""
        return iter(self._untold.values())

    def put(self, attempt: Attempt) -> None:
        """Keep an attempt as it is now."""
        key = attempt.key
        if attempt.stage is not Stage.REPORTING:
            self._under_way[key] = attempt
            return
        self._under_way.pop(key, None)
        self._ended[key] = attempt
        if attempt.untold() is None:
            self._untold.pop(key, None)
        else:
            self._untold[key] = attempt

    def remove_ended(self, key: AttemptKey) -> None:
        """Keep an attempt no longer, if it has ended."""
        self._ended.pop(key, None)
        self._untold.pop(key, None)
