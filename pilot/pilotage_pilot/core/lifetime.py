"""The end of a pilot: its phases, its idle timeout, the end of its glidein, and the intervals of node samples.

Rules
-----
A pilot that drains never opens again. Its first reason stands; a later one can only shorten the time.
A pilot with work has no idle timeout. A pilot without work requests jobs once more before it gives up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from pilotage_pilot.core.instructions import SampleNode
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.rules import Lifetime, PilotRules

NEVER = float("inf")


class Phase(StrEnum):
    """Phase of a pilot's life."""

    OPEN = "open"
    DRAINING = "draining"
    LEAVING = "leaving"
    ENDED = "ended"


class ExitCode(IntEnum):
    """Exit codes of the pilot's process."""

    AS_PLANNED = 0
    """It ended for lack of jobs or time, or by order; all it had to report is reported."""
    OWN_ERROR = 1
    """An internal error, or the pilot was killed."""
    WRONG_CONFIGURATION = 2
    """A setting, option or policy is wrong."""
    NO_SERVER = 3
    """The server could not be reached for too long, or refuses the pilot."""
    NODE_UNFIT = 4
    """The node is not fit: a check, the clock, the isolation, or too many failed starts."""


@dataclass(frozen=True, slots=True)
class EndReason:
    """Why a pilot ends; `is_normal` = for lack of jobs or time, not by a fault or an order."""

    text: str
    exit_code: ExitCode = ExitCode.AS_PLANNED
    is_normal: bool = False


class Shutdown:
    """The phases of a pilot from draining to its end."""

    def __init__(self) -> None:
        self.phase = Phase.OPEN
        self.reason: EndReason | None = None
        self._deadline_boot_s = NEVER
        self._end_boot_s = NEVER

    @property
    def is_open(self) -> bool:
        """Whether the pilot takes jobs."""
        return self.phase is Phase.OPEN

    def drain(self, reason: EndReason) -> bool:
        """Take no more jobs; returns whether that is new."""
        if self.phase is not Phase.OPEN:
            return False
        self.phase = Phase.DRAINING
        self.reason = reason
        return True

    def limit_time(self, deadline_boot_s: float) -> None:
        """Set a deadline for draining; an earlier one stays."""
        self._deadline_boot_s = min(self._deadline_boot_s, deadline_boot_s)

    def is_out_of_time(self, now: Now) -> bool:
        """Whether the deadline for draining has passed."""
        return self._deadline_boot_s <= now.boot_s

    def begin_goodbye(self, timeout_s: float, now: Now) -> None:
        """Enter LEAVING; the last heartbeat may take `timeout_s`."""
        self.phase = Phase.LEAVING
        self._end_boot_s = min(self._deadline_boot_s, now.boot_s) + timeout_s

    def is_over(self, now: Now) -> bool:
        """Whether the time for the last heartbeat is over."""
        return self.phase is Phase.LEAVING and self._end_boot_s <= now.boot_s

    def end(self) -> EndReason:
        """Enter ENDED; returns the reason."""
        assert self.reason is not None, "a pilot ends for a reason"
        self.phase = Phase.ENDED
        return self.reason

    def alarms(self) -> Iterator[float]:
        """Yield the deadlines of the present phase, on the boot clock."""
        if self.phase is Phase.DRAINING:
            yield self._deadline_boot_s
        if self.phase is Phase.LEAVING:
            yield self._end_boot_s


class IdleTimeout:
    """How long a pilot goes on without a job, and without an answer of its server."""

    def __init__(self, rules: PilotRules, now: Now) -> None:
        self._rules = rules
        self._idle_boot_s: float | None = now.boot_s

    def watch(self, *, working: bool, now: Now) -> bool:
        """Record whether there is work; returns True when it has just ended."""
        if working:
            self._idle_boot_s = None
            return False
        if self._idle_boot_s is not None:
            return False
        self._idle_boot_s = now.boot_s
        return True

    def idle_end_boot_s(self) -> float:
        """Return when the idle time is over; infinity = never."""
        if self._rules.max_idle_s is None or self._idle_boot_s is None:
            return NEVER
        return self._idle_boot_s + self._rules.max_idle_s

    def unreachable_boot_s(self, last_contact_boot_s: float) -> float:
        """Return when the server counts as unreachable after its last answer; infinity = never."""
        return NEVER if self._idle_boot_s is None else last_contact_boot_s + self._rules.unreachable_s

    def wait_s(self, now: Now) -> float:
        """Return how long a request may wait for a job."""
        return min(self._rules.wait_s, max(0.0, self.idle_end_boot_s() - now.boot_s))

    def alarms(self, last_contact_boot_s: float) -> Iterator[float]:
        """Yield when a timeout ends."""
        yield self.idle_end_boot_s()
        yield self.unreachable_boot_s(last_contact_boot_s)


class GlideinEnd:
    """The end of the glidein: first payloads are warned, then no jobs are taken, then running jobs are evicted."""

    def __init__(self, lifetime: Lifetime) -> None:
        self._lifetime = lifetime
        self._warned = False
        self._evicted = False

    @property
    def is_announced(self) -> bool:
        """Whether payloads have been warned."""
        return self._warned

    @property
    def stop_margin_s(self) -> float:
        """How long a pilot may run after the eviction."""
        return self._lifetime.stop_margin_s

    def time_left_s(self, now: Now) -> float:
        """Return the time until the eviction."""
        return self._lifetime.time_left_s(now) or 0.0

    def announce(self, now: Now) -> bool:
        """Return True once, when payloads have to be warned."""
        is_due = not self._warned and now.boot_s >= self._lifetime.warn_boot_s()
        self._warned = self._warned or is_due
        return is_due

    def is_near(self, now: Now) -> bool:
        """Whether no more jobs are to be taken."""
        return now.boot_s >= self._lifetime.close_boot_s()

    def begin_eviction(self, now: Now) -> bool:
        """Return True once, when the eviction is due."""
        is_due = not self._evicted and now.boot_s >= self._lifetime.evict_boot_s()
        self._evicted = self._evicted or is_due
        return is_due

    def alarms(self) -> Iterable[float]:
        """Return all times at which something becomes due, including past ones."""
        return (self._lifetime.warn_boot_s(), self._lifetime.close_boot_s(), self._lifetime.evict_boot_s())


class NodeSampling:
    """Schedule of node samples, one at a time, every `every_s` seconds."""

    def __init__(self, every_s: float, now: Now) -> None:
        self._every_s = every_s
        self._next_boot_s = now.boot_s

    def due(self, now: Now) -> list[SampleNode]:
        """Return the instruction to sample the node, if it is due."""
        if now.boot_s < self._next_boot_s:
            return []
        self._next_boot_s = NEVER
        return [SampleNode()]

    def sampled(self, now: Now) -> None:
        """Schedule the next sample after a result."""
        self._next_boot_s = now.boot_s + self._every_s

    def alarm_boot_s(self) -> float:
        """Return when the next sample is due, on the boot clock; infinity = one is in progress."""
        return self._next_boot_s
