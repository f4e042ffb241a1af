"""The rules that an operator may set, as frozen values.

They hold values and defaults only. The settings read them from files; the modules that use a rule explain it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from pilotage.accounts import Quota
from pilotage.job_description import NO_POLICY, JobPolicy
from pilotage.resources.tree import QueueId
from pilotage.text import fold
from pilotage.values.accounts import Account, GroupId
from pilotage.values.isolation import Isolation
from pilotage_server.core.health.black_holes import HealthRules
from pilotage_server.core.jobs.files import JobLimits, Retention
from pilotage_server.core.jobs.notifications import NotificationRules
from pilotage_server.core.submission.submit_policy import NO_SUBMIT_POLICY, SubmitPolicy


@dataclass(frozen=True, slots=True)
class Sharing:
    """The rules of fair share.

    `half_life` = the time after which a use counts half. `foresight` = a core that has just been given counts as if it
    had been used for this time, so that many slots given at once are shared too. `priority_factor` is for accounts
    that are not in `priority_factors`: twice the factor, half the share. Groups without a quota in `group_quotas` have
    a weight of 1. `group_accept_surplus` = a group may use more than the cores of its quota, after all others.
    `machine_constraint` = a ClassAd expression over slots' ads: slots that do not satisfy it do not count where quotas
    are turned into cores; "" = all count. `group_sort_expression` = a ClassAd expression over a group's use and quota:
    groups are considered in increasing order of its value; "" = by share. `discount_suspended` = suspended time is not
    charged.
    """

    half_life: timedelta = timedelta(days=1)
    foresight: timedelta = timedelta(minutes=10)
    priority_factor: float = 1.0
    priority_factors: Mapping[Account, float] = field(default_factory=dict)
    group_quotas: Mapping[GroupId, Quota] = field(default_factory=dict)
    group_accept_surplus: bool = True
    machine_constraint: str = ""
    group_sort_expression: str = ""
    discount_suspended: bool = False


@dataclass(frozen=True, slots=True)
class RunningLimit:
    """At most `at_most` jobs of one attribute value may hold leases at a site, a CE or a queue.

    `ce` None = the whole site, `queue` None = the whole CE. `attribute` is owner, group, vo, or the name of one
    of the jobs' own attributes, in any letter case; `value` compares with it case-insensitively.
    """

    site: str
    ce: str | None
    queue: str | None
    attribute: str
    value: str
    at_most: int

    def covers(self, queue: QueueId) -> bool:
        """Whether the limit applies to the queue."""
        named = zip((self.site, self.ce, self.queue), (queue.site, queue.ce, queue.queue), strict=True)
        return all(limited is None or fold(limited) == fold(name) for limited, name in named)

    def __str__(self) -> str:
        """Return the limit as text for people."""
        location = "/".join(part for part in (self.site, self.ce, self.queue) if part)
        return f"at most {self.at_most} running jobs with {self.attribute} {self.value} at {location}"


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """The rules of evaluating the policies of jobs.

    `of_operators` is a policy over every job. An evaluation of the jobs whose policies depend on time begins every
    `interval`; evaluations take at most `cpu_share` of one processor's time. A job is released at most `max_releases`
    times by policies, None = without limit; operators may always release it.
    """

    of_operators: JobPolicy = NO_POLICY
    interval: timedelta = timedelta(minutes=1)
    cpu_share: float = 0.05
    max_releases: int | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules of a server.

    `lease` = the time until a match must be renewed, for jobs that do not ask for another one. `eviction` = how long a
    pilot may call after the order to evict its jobs. `longest_token` = the longest life of any token. `attempt_limit` =
    lost attempts after which a job has failed. `heartbeat` = the interval of pilots' reports; a quarter of the lease
    where that is shorter. `pilot_silence` = a pilot without a report for this time is lost. `pilot_submission` = the
    same for a pilot that never reported and whose glidein is unknown; `pilot_arrival` = the same where its glidein is
    known, from the last time that its batch system listed it. `end_margin` = taken off the time left of a slot, beside
    what the pilot keeps back itself. `life_gap` = a time without any server counts when it is longer than this.
    `submission` = what the server derives for jobs when they are submitted. `preemption_requirements` = a ClassAd
    expression, MY the slot and TARGET the waiting job, that must be true too before a user preempts another's job; "" =
    the slots' own decide. `pool_sites_shown` = the sites of a pool are shown with its jobs if they are at most so many.
    `required_isolation` = the least isolation at which pilots get jobs of a VO, by its folded
    name.
    """

    lease: timedelta = timedelta(minutes=20)
    eviction: timedelta = timedelta(hours=1)
    longest_token: timedelta = timedelta(days=365)
    attempt_limit: int = 3
    heartbeat: timedelta = timedelta(seconds=30)
    pilot_silence: timedelta = timedelta(minutes=30)
    pilot_submission: timedelta = timedelta(minutes=10)
    pilot_arrival: timedelta = timedelta(days=7)
    end_margin: timedelta = timedelta(0)
    life_gap: timedelta = timedelta(seconds=30)
    sharing: Sharing = field(default_factory=Sharing)
    submission: SubmitPolicy = NO_SUBMIT_POLICY
    policies: PolicyRules = field(default_factory=PolicyRules)
    running_limits: tuple[RunningLimit, ...] = ()
    health: HealthRules = field(default_factory=HealthRules)
    preemption_requirements: str = ""
    pool_refresh_age: timedelta = timedelta(minutes=15)
    pool_grace: timedelta = timedelta(hours=1)
    pool_sites_shown: int = 10
    required_isolation: Mapping[str, Isolation] = field(default_factory=dict)
    jobs: JobLimits = field(default_factory=JobLimits)
    retention: Retention = field(default_factory=Retention)
    notifications: NotificationRules = field(default_factory=NotificationRules)

    def heartbeat_within(self, shortest_lease: timedelta) -> timedelta:
        """Return the time until the next heartbeat: several heartbeats fit in the shortest lease."""
        return min(self.heartbeat, shortest_lease / 4)

    def key_attributes(self) -> frozenset[str]:
        """Return the folded names of the jobs' own attributes that limits refer to: task queues differ by them."""
        names = {fold(limit.attribute) for limit in self.running_limits}
        return frozenset(names - {"owner", "group", "vo"})
