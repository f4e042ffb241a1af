"""What hooks have said of copies, and how much of it the server has heard: it is told what is new, and that once.

Rules
-----
A router that takes copies over does not know what the server has heard: it tells all anew.
"""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.classads import AdValue
from pilotage.job_description import NOTHING
from pilotage_agents.core.copies.copy_life import Key

Attributes = Mapping[str, AdValue]


class Sayings:
    """Attributes by the keys of copies."""

    def __init__(self) -> None:
        self._said: dict[Key, Attributes] = {}
        self._heard: dict[Key, Attributes] = {}

    def says(self, key: Key, attributes: Attributes) -> bool:
        """Take note of all that hooks have said of a copy; returns whether that is new."""
        if not attributes or self._said.get(key) == attributes:
            return False
        self._said[key] = attributes
        return True

    def news_of(self, key: Key) -> Attributes:
        """Return what hooks have said of a copy, none = the server has heard it, or there is nothing."""
        said = self._said.get(key, NOTHING)
        return NOTHING if said == self._heard.get(key) else said

    def heard(self, key: Key, attributes: Attributes) -> None:
        """Take note that the server knows this of a copy; none = it was told nothing new."""
        if attributes:
            self._heard[key] = attributes

    def forget(self, key: Key) -> None:
        """Forget a copy."""
        self._said.pop(key, None)
        self._heard.pop(key, None)
