"""The rules that an operator sets for a pilot, and the lifetime of its glidein.

All lengths are in seconds. The values come from `settings`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pilotage.values.isolation import Isolation
from pilotage.values.pilots import STOP_MARGIN_S
from pilotage_pilot.core.model import Now

PLAIN_WAIT_S = 60.0
"""How long a request may wait if the slots have no policy: their offers do not change with time."""


@dataclass(frozen=True, slots=True)
class PilotRules:
    """The times and counts that the machine works with, in seconds unless noted.

    `wait_s`: longest wait of a request for a job. `heartbeat_s`: interval of heartbeats until the server sets another.
    `report_delay_s`: longest delay of a report on a running job, so that reports travel together; ends never wait.
    `node_report_s`: shortest interval between reports of the slots. `node_refresh_s`: longest interval between reports
    of loads. `sample_s`: interval of node samples under a policy. `merge_after_s`: time after which two waiting
    requests are replaced by one. `requests_at_once`: number of requests in flight. `grace_s`: between SIGTERM and
    kill. `lease_margin_s`: a payload is killed this long before its lease ends, but at most a tenth of the lease.
    `store_timeout_s`: how long storing output is retried. `goodbye_timeout_s`: how long the last heartbeat may take.
    `unreachable_s`: a pilot without jobs gives up this long after the server's last answer. `max_idle_s`: idle time
    after which the pilot ends; None = never. `failed_starts`: failures of the node in a row after which the pilot
    takes no more jobs. `plug_s`: least time for which a failed payload keeps its slot; 0 = none. `pools_every_s`:
    interval between requests that carry the list of pools. `clock_error_s`: largest difference to the server's clock
    at which jobs are taken. `idle_ask_s`: longest pause between requests of a pilot with a broker. `isolation`: how
    payloads are isolated; OWNER = those of one owner run at a time. `has_containers`: jobs run in container images.
    """

    wait_s: float = 20.0
    heartbeat_s: float = 30.0
    report_delay_s: float = 0.05
    node_report_s: float = 1.0
    node_refresh_s: float = 300.0
    sample_s: float = 5.0
    merge_after_s: float = 0.1
    requests_at_once: int = 4
    grace_s: float = 10.0
    lease_margin_s: float = 10.0
    store_timeout_s: float = 600.0
    goodbye_timeout_s: float = 10.0
    unreachable_s: float = 1800.0
    max_idle_s: float | None = None
    failed_starts: int = 3
    plug_s: float = 0.0
    pools_every_s: float = 300.0
    clock_error_s: float = 300.0
    idle_ask_s: float = 60.0
    cpu_power: float = 1.0
    isolation: Isolation = Isolation.NONE
    has_containers: bool = False

    @property
    def has_one_owner(self) -> bool:
        """Whether jobs of one owner run at a time."""
        return self.isolation is Isolation.OWNER

    @property
    def most_requests(self) -> int:
        """The number of requests in flight: two that name no owner could bring the jobs of two."""
        return 1 if self.has_one_owner else self.requests_at_once

    def margin_of(self, lease_s: float) -> float:
        """Return the safety margin in seconds of a lease of `lease_s`."""
        return min(self.lease_margin_s, lease_s / 10)

    def report_by_boot_s(self, now: Now) -> float:
        """Return when a change of a running job is reported at the latest."""
        return now.boot_s + self.report_delay_s


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The end of the glidein.

    `ends_boot_s`: on the boot clock; None = unknown. Payloads are warned `warn_before_s` and evicted `stop_margin_s`
    before it. No jobs are requested with less than `least_useful_s` left until the eviction.
    """

    ends_boot_s: float | None = None
    warn_before_s: float = 300.0
    stop_margin_s: float = STOP_MARGIN_S
    least_useful_s: float = 60.0

    def time_left_s(self, now: Now) -> float | None:
        """Return how long a job may still run; None = no end."""
        return None if self.ends_boot_s is None else max(0.0, self.evict_boot_s() - now.boot_s)

    def is_too_short(self, now: Now) -> bool:
        """Whether the remaining time is too short for another job."""
        left = self.time_left_s(now)
        return left is not None and left < self.least_useful_s

    def evict_boot_s(self) -> float:
        """Return when running jobs are evicted; infinity = never."""
        return float("inf") if self.ends_boot_s is None else self.ends_boot_s - self.stop_margin_s

    def warn_boot_s(self) -> float:
        """Return when payloads are warned; infinity = never."""
        return float("inf") if self.ends_boot_s is None else self.ends_boot_s - self.warn_before_s

    def close_boot_s(self) -> float:
        """Return the time from which no jobs are requested; infinity = never."""
        return self.evict_boot_s() - self.least_useful_s
