"""The heartbeat: when the next one is due, what it carries, and what the server has heard so far.

Rules
-----
At most one heartbeat is under way. A lost one is not repeated but followed by a fresh one; what it carried is told
again. Leases count from the sending.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from pilotage_pilot.core.events import Failure
from pilotage_pilot.core.instructions import SendHeartbeat
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.rules import Rules

CALLED_AGAIN_AFTER_S = 1.0
"""Whoever calls for heartbeats gets one at once, and the next one not sooner than this."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat under way and when it was sent, on the boot clock."""

    call: SendHeartbeat
    sent_boot_s: float

    def clock_error_s(self, server_time: datetime | None, now: Moment) -> float:
        """Return how far the node's clock is at least from the server's, which was read since the sending."""
        if server_time is None:
            return 0.0
        ahead_s = (now.utc - server_time).total_seconds()
        return max(0.0, -ahead_s, ahead_s - (now.boot_s - self.sent_boot_s))


class Heartbeat:
    """The rhythm of one pilot's heartbeats."""

    def __init__(self, rules: Rules, now: Moment) -> None:
        self._rules = rules
        self._next_boot_s = now.boot_s
        self._called = False
        self._obey_after_boot_s = now.boot_s
        self._beat: Beat | None = None
        self._failures = 0
        self._version_told = -1
        self._slots_boot_s = float("-inf")
        self._ads_told: dict[str, str] = {}
        self.heard_boot_s = now.boot_s

    @property
    def under_way(self) -> bool:
        """Whether a heartbeat has not been answered yet."""
        return self._beat is not None

    def is_free(self, now: Moment) -> bool:
        """Whether a heartbeat may be sent now, if there is something to say."""
        return self._beat is None and (not self._failures or self._next_boot_s <= now.boot_s)

    def is_due(self, now: Moment) -> bool:
        """Whether a heartbeat is to be sent now, whatever there is to say."""
        return self._beat is None and self._due_boot_s() <= now.boot_s

    def _due_boot_s(self) -> float:
        if self._called and not self._failures:
            return min(self._next_boot_s, self._obey_after_boot_s)
        return self._next_boot_s

    def called(self) -> None:
        """Let the next heartbeat be soon, for the server has something to say."""
        self._called = True

    def slots_are_due(self, version: int, now: Moment) -> bool:
        """Whether the server has yet to hear of this version of the slots, and it is time to tell it."""
        return now.boot_s >= self._slots_due_boot_s(version)

    def _slots_due_boot_s(self, version: int) -> float:
        is_new = version != self._version_told
        return self._slots_boot_s + (self._rules.node_report_s if is_new else self._rules.node_retell_s)

    @property
    def ads_told(self) -> Mapping[str, str]:
        """The ads of the slots as the server has heard them, by slot."""
        return self._ads_told

    def tell_all(self) -> None:
        """Let the next heartbeat tell all of the node."""
        self._version_told = -1
        self._slots_boot_s = float("-inf")
        self._ads_told = {}

    def send(self, call: SendHeartbeat, version: int, now: Moment) -> SendHeartbeat:
        """Put a heartbeat on its way; `version` is that of the slots, as they are now."""
        assert self._beat is None, "one heartbeat at a time"
        self._beat = Beat(call, now.boot_s)
        if self._called:
            self._called = False
            self._obey_after_boot_s = now.boot_s + CALLED_AGAIN_AFTER_S
        if call.slots is not None:
            self._version_told = version
            self._slots_boot_s = now.boot_s
            self._ads_told = {slot.name: slot.ad or self._ads_told.get(slot.name, "") for slot in call.slots}
        return call

    def answered(self, request_id: str, next_s: float, node_wanted: bool, now: Moment) -> Beat | None:
        """Take out the heartbeat that was answered; None = it was not under way."""
        beat = self._take(request_id)
        if beat is not None:
            self._failures = 0
            self._next_boot_s = now.boot_s + (next_s if next_s > 0 else self._rules.heartbeat_s)
            self.heard(now)
            if node_wanted:
                self._version_told = -1
                self._ads_told = {}
        return beat

    def failed(self, request_id: str, failure: Failure, now: Moment) -> Beat | None:
        """Take out the heartbeat that was lost and plan the next; None = it was not under way."""
        beat = self._take(request_id)
        if beat is not None:
            self._failures += 1
            self._next_boot_s = now.boot_s + failure.pause_s(self._failures)
            self.tell_all()
        return beat

    def heard(self, now: Moment) -> None:
        """Note that the server has answered something."""
        self.heard_boot_s = now.boot_s

    def _take(self, request_id: str) -> Beat | None:
        beat = self._beat
        if beat is None or beat.call.request_id != request_id:
            return None
        self._beat = None
        return beat

    def next_beat(self) -> Iterator[float]:
        """Yield when the next heartbeat is due, unless one is under way."""
        if self._beat is None:
            yield self._due_boot_s()

    def alarms(self, version: int) -> Iterator[float]:
        """Yield when a heartbeat is due next, be it for a new version of the slots."""
        yield from self.next_beat()
        if self._beat is None and not self._failures:
            yield self._slots_due_boot_s(version)
