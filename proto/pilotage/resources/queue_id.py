"""The name of a queue in the tree."""

from __future__ import annotations

from typing import NamedTuple, Self

from pilotage.errors import InvalidInputError, Violation


class QueueId(NamedTuple):
    """A queue's site, its computing element, and its name in that one's batch system."""

    site: str
    ce: str
    queue: str

    def __str__(self) -> str:
        """Return "site/ce/queue", which `parse` reads."""
        return f"{self.site}/{self.ce}/{self.queue}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "site/ce/queue"; raises InvalidInputError.

        Names of sites and computing elements have no "/"; the text after the second one is the queue's name.
        """
        parts = text.split("/", maxsplit=2)
        if len(parts) != 3 or not all(parts):
            raise InvalidInputError(Violation("", f'"{text}" does not name a queue as SITE/CE/QUEUE'))
        return cls(*parts)
