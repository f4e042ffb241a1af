"""What a pilot hears of jobs through a broker, and how long it rests when there are none for it.

Rules
-----
Without a broker it never rests: its requests wait at the server. With one they are answered at once, and after one in
vain it rests until it is called, until its slots are not any more as that request had them, and never for very long.
A call that comes while a request is under way counts after it, for its answer may have missed what the call is about.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.rules import Rules

SlotsVersion = tuple[int, ...]
"""Stands for all that is offered of the slots, and for the connection over which a pilot hears of jobs for them."""


@dataclass(frozen=True, slots=True)
class _Rest:
    slots: SlotsVersion
    since_boot_s: float
    until_boot_s: float


class Hearing:
    """The ears of one pilot."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.is_connected = False
        """Whether it would hear of jobs."""
        self.connection = 0
        """Counts the changes of the connection."""
        self._jitter = 0.0
        self._called = False
        self._rest: _Rest | None = None

    def broker_changed(self, *, connected: bool, jitter: float) -> None:
        """Note whether the connection stands; `jitter` (0 to 1) spreads the rests of many pilots over time."""
        self.is_connected = connected
        self.connection += 1
        self._jitter = jitter
        self._rest = None

    def called(self) -> None:
        """Note that there may be something for it at the server."""
        self._called = True

    def asked(self) -> None:
        """Note that a request is sent, which covers all calls up to now."""
        self._called = False

    def answered_in_vain(self, slots: SlotsVersion, now: Moment) -> None:
        """Rest for as long as the slots are as they were when the request was sent, and it hears what comes."""
        if self.is_connected:
            length_s = self._rules.idle_ask_s * (1 - self._jitter / 2)
            self._rest = _Rest(slots, now.boot_s, now.boot_s + length_s)

    def rests(self, slots: SlotsVersion, now: Moment) -> bool:
        """Whether it has no reason to ask for jobs for its slots, as they are now."""
        rest = self._rest
        return rest is not None and not self._called and rest.slots == slots and now.boot_s < rest.until_boot_s

    def has_rested_since_before(self, boot_s: float) -> bool:
        """Whether the last answer that it rests upon is older than this."""
        return self._rest is not None and self._rest.since_boot_s < boot_s

    def alarms(self) -> Iterator[float]:
        """Yield when the rest is over, on the boot clock."""
        if self._rest is not None:
            yield self._rest.until_boot_s
