"""What an operator may set of a pilot's behaviour, and when its glidein ends.

Rules
-----
Values only, in seconds; where they come from is `settings`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pilotage_pilot.core.moment import Moment

PLAIN_WAIT_S = 60.0
"""So long may a request wait for slots that follow no policy: nothing about them is another after a while."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The lengths that the machine works with, in seconds where not said otherwise.

    `wait_s`: how long a request may wait for a job. `heartbeat_s`: between heartbeats until the server says more.
    `report_delay_s`: how long news of a running job may wait to travel together; endings never wait.
    `node_report_s`: at least so long between two reports of the slots, `node_retell_s`: at most so long between two
    that tell of loads. `sample_s`: between two looks at the node for its policy's sake. `merge_after_s`: how long
    two requests may wait side by side before they become one again. `requests_at_once`: how many requests may wait.
    `grace_s`: between the signal to stop and the kill. `lease_margin_s`: the payload is killed so long before the
    lease ends, though never more than a tenth of it. `store_patience_s`: how long output is tried again.
    `goodbye_patience_s`: how long the last word may take. `unreachable_s`: a pilot that holds no job gives up so
    long after the server's last word. `max_idle_s`: ends after so long without a job; None = never.
    `failed_starts`: starts in a row that fail on the node's side before the pilot takes no more jobs.
    `plug_s`: a payload that fails keeps its slot until it has been there so long; 0 = it does not.
    `pools_every_s`: between two requests that carry the list of pools. `clock_error_s`: a node whose clock is
    further than this from the server's takes no jobs. `idle_ask_s`: so often asks, at least, a pilot that would hear
    of jobs through a broker.
    """

    wait_s: float = 20.0
    heartbeat_s: float = 30.0
    report_delay_s: float = 0.05
    node_report_s: float = 1.0
    node_retell_s: float = 300.0
    sample_s: float = 5.0
    merge_after_s: float = 0.1
    requests_at_once: int = 4
    grace_s: float = 10.0
    lease_margin_s: float = 10.0
    store_patience_s: float = 600.0
    goodbye_patience_s: float = 10.0
    unreachable_s: float = 1800.0
    max_idle_s: float | None = None
    failed_starts: int = 3
    plug_s: float = 0.0
    pools_every_s: float = 300.0
    clock_error_s: float = 300.0
    idle_ask_s: float = 60.0
    cpu_power: float = 1.0

    def margin_of(self, lease_s: float) -> float:
        """Return how long before its end a lease of `lease_s` is taken to be over."""
        return min(self.lease_margin_s, lease_s / 10)

    def tell_by_boot_s(self, now: Moment) -> float:
        """Return when the server is told at the latest what is news now of a job that goes on."""
        return now.boot_s + self.report_delay_s


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When the glidein ends, and how the pilot gets ready for it.

    `ends_boot_s`: on the boot clock; None = no end known. So long before it, payloads are warned (`warn_before_s`)
    and then evicted (`stop_margin_s`); with less than `least_useful_s` up to the eviction no more jobs are asked for.
    """

    ends_boot_s: float | None = None
    warn_before_s: float = 300.0
    stop_margin_s: float = 60.0
    least_useful_s: float = 60.0

    def time_left_s(self, now: Moment) -> float | None:
        """Return how long a job may still run; None = no end is known."""
        return None if self.ends_boot_s is None else max(0.0, self.evict_boot_s() - now.boot_s)

    def is_too_short(self, now: Moment) -> bool:
        """Whether it is not worth asking for a job any more."""
        left = self.time_left_s(now)
        return left is not None and left < self.least_useful_s

    def evict_boot_s(self) -> float:
        """Return when what still runs is evicted; infinity = never."""
        return float("inf") if self.ends_boot_s is None else self.ends_boot_s - self.stop_margin_s

    def warn_boot_s(self) -> float:
        """Return when payloads are warned; infinity = never."""
        return float("inf") if self.ends_boot_s is None else self.ends_boot_s - self.warn_before_s

    def close_boot_s(self) -> float:
        """Return from when on no jobs are asked for; infinity = never."""
        return self.evict_boot_s() - self.least_useful_s
