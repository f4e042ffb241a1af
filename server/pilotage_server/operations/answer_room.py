"""How many jobs the answer to one request has room for: their descriptions may be large, and messages may not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from pilotage_server.core.slots import SlotOffer

LARGEST_ANSWER = 8 * 1024 * 1024
"""Characters of the descriptions and ads in one answer, one job apart.

A message of the wire has room for 64 MiB: for as many characters of four bytes, with macros filled in.
"""

_OF_A_MATCH = 500
_OF_AN_AD = 3500
"""About so many characters does a job take beside its description."""


class AnswerRoom:
    """What is left for jobs in one answer; `is_full` = a job has had to be left for the next request."""

    __slots__ = ("_is_empty", "_left", "_of_a_job", "_times", "is_full")

    def __init__(self, *, with_ads: bool = False) -> None:
        # What a description says stands in the job's ad once more.
        self._times = 2 if with_ads else 1
        self._of_a_job = _OF_A_MATCH + (_OF_AN_AD if with_ads else 0)
        self._left = LARGEST_ANSWER
        self._is_empty = True
        self.is_full = False

    @classmethod
    def of(cls, slots: Iterable[SlotOffer]) -> Self:
        """Return the room in an answer that is about these slots."""
        return cls(with_ads=any(slot.job_ad_wanted for slot in slots))

    def takes(self, size: int) -> bool:
        """Make room for a job whose description has so many characters; False = there is none. The first always has."""
        self._left -= self._times * size + self._of_a_job
        fits = self._left >= 0 or self._is_empty
        self._is_empty = False
        self.is_full = self.is_full or not fits
        return fits
