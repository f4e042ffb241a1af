"""The pilot's end: why it comes, how long what is left to do may take, and the good-bye.

Rules
-----
A pilot that drains never opens again. The first reason stands; a later one can only make it faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from pilotage_pilot.core.moment import Moment

NEVER = float("inf")


class Phase(StrEnum):
    """Where a pilot is on its own way."""

    OPEN = "open"
    DRAINING = "draining"
    LEAVING = "leaving"
    ENDED = "ended"


class ExitCode(IntEnum):
    """How the pilot's process ends."""

    AS_PLANNED = 0
    OWN_ERROR = 1
    WRONG_CONFIGURATION = 2
    NO_SERVER = 3
    NODE_UNFIT = 4


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a pilot ends, for people and for its parent process; `of_itself` = nothing but work or time is lacking."""

    text: str
    exit_code: ExitCode = ExitCode.AS_PLANNED
    of_itself: bool = False


class Departure:
    """A pilot's way out."""

    def __init__(self) -> None:
        self.phase = Phase.OPEN
        self.reason: Reason | None = None
        self._give_up_boot_s = NEVER
        self._end_boot_s = NEVER

    @property
    def is_open(self) -> bool:
        """Whether the pilot takes jobs."""
        return self.phase is Phase.OPEN

    def drain(self, reason: Reason) -> bool:
        """Take no more jobs; returns whether that is new."""
        if self.phase is not Phase.OPEN:
            return False
        self.phase = Phase.DRAINING
        self.reason = reason
        return True

    def hurry(self, give_up_boot_s: float) -> None:
        """Wait for nothing any longer than this, on the boot clock."""
        self._give_up_boot_s = min(self._give_up_boot_s, give_up_boot_s)

    def gives_up(self, now: Moment) -> bool:
        """Whether what is not done by now stays undone."""
        return self._give_up_boot_s <= now.boot_s

    def leave(self, patience_s: float, now: Moment) -> None:
        """Say good-bye, and wait for an answer at most so long."""
        self.phase = Phase.LEAVING
        self._end_boot_s = min(self._give_up_boot_s, now.boot_s) + patience_s

    def is_over(self, now: Moment) -> bool:
        """Whether the pilot has waited long enough for an answer to its good-bye."""
        return self.phase is Phase.LEAVING and self._end_boot_s <= now.boot_s

    def end(self) -> Reason:
        """Be ended; returns why."""
        assert self.reason is not None, "a pilot ends for a reason"
        self.phase = Phase.ENDED
        return self.reason

    def alarms(self) -> Iterator[float]:
        """Yield the times, on the boot clock, at which patience ends."""
        if self.phase is Phase.DRAINING:
            yield self._give_up_boot_s
        if self.phase is Phase.LEAVING:
            yield self._end_boot_s
