"""The rules that an operator may set, as one frozen value that decisions read.

Rules
-----
Values and their defaults only; reading them from files is the settings' business, what they mean is told where
they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from pilotage.folding import fold
from pilotage.job_description import NO_POLICY, JobPolicy
from pilotage.quotas import Quota
from pilotage.resource_tree import QueueId
from pilotage_server.core.accounting import Account, GroupId
from pilotage_server.core.health import HealthRules
from pilotage_server.core.job_limits import JobLimits, Retention
from pilotage_server.core.submit_policy import NO_SUBMIT_POLICY, SubmitPolicy


@dataclass(frozen=True, slots=True)
class Sharing:
    """How use is shared out.

    `half_life` = after so long a use counts half. `foresight` = a core that has just been given counts as if it
    had been used so long already, so that many slots given at once are shared out too. `priority_factors`, and
    `priority_factor` for who has none there: twice the factor, half the share. `group_quotas` are a weight of 1 for
    groups that have none there. `group_accept_surplus` = a group may use more than the cores of its quota, after all
    others. `machine_constraint` = a ClassAd expression over slots' ads: those of which it is not
    true do not count where quotas are turned into cores; "" = all count. `discount_suspended` = suspended time is
    not charged.
    """

    half_life: timedelta = timedelta(days=1)
    foresight: timedelta = timedelta(minutes=10)
    priority_factor: float = 1.0
    priority_factors: Mapping[Account, float] = field(default_factory=dict)
    group_quotas: Mapping[GroupId, Quota] = field(default_factory=dict)
    group_accept_surplus: bool = True
    machine_constraint: str = ""
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
        """Whether the queue lies in the place that is limited."""
        named = zip((self.site, self.ce, self.queue), (queue.site, queue.ce, queue.queue), strict=True)
        return all(limited is None or fold(limited) == fold(name) for limited, name in named)

    def __str__(self) -> str:
        """Return the limit in words, for people."""
        place = "/".join(part for part in (self.site, self.ce, self.queue) if part)
        return f"at most {self.at_most} running jobs with {self.attribute} {self.value} at {place}"


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """How the jobs' policies are looked after.

    `of_operators` is a policy over every job. A round over the jobs whose policies depend on time begins every
    `interval`; looking takes at most `cpu_share` of one processor's time. A job is released at most `max_releases`
    times, None = without limit; operators may always.
    """

    of_operators: JobPolicy = NO_POLICY
    interval: timedelta = timedelta(minutes=1)
    cpu_share: float = 0.05
    max_releases: int | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """What one server goes by.

    `lease` = a match's right to run before it must be renewed, for jobs that ask no other length.
    `attempt_limit` = lost attempts after which a job has failed. `heartbeat` = how often pilots report; shorter
    where a quarter of the lease is. `pilot_silence` = a pilot not heard for so long is lost. `pilot_submission`
    = a pilot that never reported, and of whose glidein nothing was said, is lost after so long; `pilot_arrival` = the
    same where its glidein is known, from the last time on that its batch system said that it is there.
    `end_margin` = taken off the time left of a slot, beside what
    the pilot keeps back itself. `life_gap` = a time without any server counts when it is longer than this.
    `submission` = what the server derives for jobs when they are submitted. `preemption_requirements` = a ClassAd
    expression, MY the slot and TARGET the waiting job, that must be true too before a user drives another's job out;
    "" = the slots' own decide.
    """

    lease: timedelta = timedelta(minutes=20)
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
    jobs: JobLimits = field(default_factory=JobLimits)
    retention: Retention = field(default_factory=Retention)

    def heartbeat_within(self, shortest_lease: timedelta) -> timedelta:
        """Return when the next heartbeat is due: several times within the shortest lease that is held."""
        return min(self.heartbeat, shortest_lease / 4)

    def key_attributes(self) -> frozenset[str]:
        """Return the folded names of the jobs' own attributes that limits refer to: they tell task queues apart."""
        names = {fold(limit.attribute) for limit in self.running_limits}
        return frozenset(names - {"owner", "group", "vo"})
