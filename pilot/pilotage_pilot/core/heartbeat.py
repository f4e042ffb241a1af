"""Schedule and contents of heartbeats, and the list of submit pools.

Rules
-----
At most one heartbeat is in flight. A lost one is not repeated: the next one carries its reports again. Leases count
from the time of sending.
The list of pools is long, so few requests carry it. The server's mapping decides, not the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from pilotage.values.attempts import AttemptKey
from pilotage_pilot.core.events import Failure
from pilotage_pilot.core.instructions import ReadPools, SendHeartbeat
from pilotage_pilot.core.model import NOTHING_USED, Now, Usage
from pilotage_pilot.core.rules import PilotRules

MIN_REQUESTED_INTERVAL_S = 1.0
"""Least interval between heartbeats that the server requests; the first is sent at once."""


@dataclass(frozen=True, slots=True)
class SentHeartbeat:
    """A heartbeat in flight and the time of its sending, on the boot clock."""

    call: SendHeartbeat
    sent_boot_s: float

    def clock_error_s(self, server_time: datetime | None, now: Now) -> float:
        """Return the least possible error of the node's clock; the server read its clock after the sending."""
        if server_time is None:
            return 0.0
        offset_s = (now.utc - server_time).total_seconds()
        return max(0.0, -offset_s, offset_s - (now.boot_s - self.sent_boot_s))


class HeartbeatSchedule:
    """The schedule of one pilot's heartbeats, and what they have reported."""

    def __init__(self, rules: PilotRules, now: Now) -> None:
        self._rules = rules
        self._next_boot_s = now.boot_s
        self._is_requested = False
        self._requested_after_boot_s = now.boot_s
        self._in_flight: SentHeartbeat | None = None
        self._failures = 0
        self._reported_version = -1
        self._slots_boot_s = float("-inf")
        self._reported_ads: dict[str, str] = {}
        self.last_contact_boot_s = now.boot_s

    @property
    def in_flight(self) -> bool:
        """Whether a heartbeat is in flight."""
        return self._in_flight is not None

    def may_send(self, now: Now) -> bool:
        """Whether a heartbeat may be sent now, if there is something to report."""
        return self._in_flight is None and (not self._failures or self._next_boot_s <= now.boot_s)

    def is_due(self, now: Now) -> bool:
        """Whether a heartbeat has to be sent now."""
        return self._in_flight is None and self._due_boot_s() <= now.boot_s

    def _due_boot_s(self) -> float:
        if self._is_requested and not self._failures:
            return min(self._next_boot_s, self._requested_after_boot_s)
        return self._next_boot_s

    def request_soon(self) -> None:
        """Send the next heartbeat soon, because the server asked for one."""
        self._is_requested = True

    def slots_are_due(self, version: int, now: Now) -> bool:
        """Whether the slots have to be reported now, given their version."""
        return now.boot_s >= self._slots_due_boot_s(version)

    def _slots_due_boot_s(self, version: int) -> float:
        is_new = version != self._reported_version
        return self._slots_boot_s + (self._rules.node_report_s if is_new else self._rules.node_refresh_s)

    @property
    def reported_ads(self) -> Mapping[str, str]:
        """The last reported ads, by slot."""
        return self._reported_ads

    def report_all(self) -> None:
        """Report the whole node in the next heartbeat."""
        self._reported_version = -1
        self._slots_boot_s = float("-inf")
        self._reported_ads = {}

    def send(self, call: SendHeartbeat, version: int, now: Now) -> SendHeartbeat:
        """Record a heartbeat as sent; `version` is the present one of the slots."""
        assert self._in_flight is None, "one heartbeat at a time"
        self._in_flight = SentHeartbeat(call, now.boot_s)
        if self._is_requested:
            self._is_requested = False
            self._requested_after_boot_s = now.boot_s + MIN_REQUESTED_INTERVAL_S
        if call.slots is not None:
            self._reported_version = version
            self._slots_boot_s = now.boot_s
            self._reported_ads = {slot.name: slot.ad or self._reported_ads.get(slot.name, "") for slot in call.slots}
        return call

    def answered(self, request_id: str, next_s: float, node_wanted: bool, now: Now) -> SentHeartbeat | None:
        """Return the heartbeat that was answered; None = it was not in flight."""
        heartbeat = self._remove(request_id)
        if heartbeat is not None:
            self._failures = 0
            self._next_boot_s = now.boot_s + (next_s if next_s > 0 else self._rules.heartbeat_s)
            self.record_contact(now)
            if node_wanted:
                self._reported_version = -1
                self._reported_ads = {}
        return heartbeat

    def failed(self, request_id: str, failure: Failure, now: Now) -> SentHeartbeat | None:
        """Return the heartbeat that was lost and schedule the next; None = it was not in flight."""
        heartbeat = self._remove(request_id)
        if heartbeat is not None:
            self._failures += 1
            self._next_boot_s = now.boot_s + failure.pause_s(self._failures)
            self.report_all()
        return heartbeat

    def record_contact(self, now: Now) -> None:
        """Record that the server has answered a call."""
        self.last_contact_boot_s = now.boot_s

    def _remove(self, request_id: str) -> SentHeartbeat | None:
        heartbeat = self._in_flight
        if heartbeat is None or heartbeat.call.request_id != request_id:
            return None
        self._in_flight = None
        return heartbeat

    def next_alarm(self) -> Iterator[float]:
        """Yield when the next heartbeat is due, unless one is in flight."""
        if self._in_flight is None:
            yield self._due_boot_s()

    def alarms(self, version: int) -> Iterator[float]:
        """Yield when a heartbeat is due next, also for a new version of the slots."""
        yield from self.next_alarm()
        if self._in_flight is None and not self._failures:
            yield self._slots_due_boot_s(version)


_LEAST_CPU_S = 10.0
_LEAST_MIB = 8
_LEAST_PART = 0.1


class SentUsages:
    """What heartbeats have said of the use of running attempts; they repeat it when it has changed much."""

    def __init__(self) -> None:
        self._sent: dict[AttemptKey, Usage] = {}

    def due(self, present: Mapping[AttemptKey, Usage]) -> dict[AttemptKey, Usage]:
        """Return those that differ much from what was sent; attempts that are not present are forgotten."""
        self._sent = {key: usage for key, usage in self._sent.items() if key in present}
        return {key: usage for key, usage in present.items() if _has_grown(usage, self._sent.get(key, NOTHING_USED))}

    def record(self, sent: Mapping[AttemptKey, Usage]) -> None:
        """Record that the server has received these."""
        self._sent.update(sent)


def _has_grown(usage: Usage, sent: Usage) -> bool:
    if (usage.peak_memory_mib and not sent.peak_memory_mib) or (usage.peak_disk_mib and not sent.peak_disk_mib):
        return True
    return (
        usage.cpu_s - sent.cpu_s >= max(_LEAST_CPU_S, _LEAST_PART * sent.cpu_s)
        or usage.peak_memory_mib - sent.peak_memory_mib >= max(_LEAST_MIB, _LEAST_PART * sent.peak_memory_mib)
        or usage.peak_disk_mib - sent.peak_disk_mib >= max(_LEAST_MIB, _LEAST_PART * sent.peak_disk_mib)
    )


REREAD_AFTER_S = 10.0
"""Least time after which a stale list is read again."""


class PoolList:
    """The submit pools of the pilot's queue."""

    def __init__(self, rules: PilotRules) -> None:
        self._rules = rules
        self._pool_ids: tuple[str, ...] = ()
        self._ready = False
        self._read_boot_s = float("-inf")
        self._due_boot_s: float | None = None
        self._next_send_boot_s = float("-inf")
        self._failures = 0

    @property
    def ready(self) -> bool:
        """Whether the list has been read."""
        return self._ready

    def read(self, pool_ids: tuple[str, ...], now: Now) -> None:
        """Store the list."""
        self._pool_ids = pool_ids
        self._ready = True
        self._failures = 0
        self._read_boot_s = now.boot_s
        self._next_send_boot_s = now.boot_s

    def failed(self, failure: Failure, now: Now) -> None:
        """Schedule a retry."""
        self._failures += 1
        self._due_boot_s = now.boot_s + failure.pause_s(self._failures)

    def mark_stale(self) -> None:
        """Schedule a fresh read, because the server has other pools for the queue."""
        if self._due_boot_s is None:
            self._due_boot_s = self._read_boot_s + REREAD_AFTER_S

    def due(self, now: Now) -> list[ReadPools]:
        """Return the instruction to read the list, if it is due."""
        if self._due_boot_s is None or now.boot_s < self._due_boot_s:
            return []
        self._due_boot_s = None
        return [ReadPools(fresh=self._ready)]

    def pools_to_send(self, now: Now) -> tuple[str, ...]:
        """Return the pools for the next request; empty = it carries no list."""
        if now.boot_s < self._next_send_boot_s:
            return ()
        self._next_send_boot_s = now.boot_s + self._rules.pools_every_s
        return self._pool_ids

    def alarms(self) -> Iterator[float]:
        """Yield when the list is to be read."""
        if self._due_boot_s is not None:
            yield self._due_boot_s
