"""The content of RequestJobs: requests, matches, answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple

from pilotage.job_description import JobDescription
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import ReportResult, TailStream
from pilotage.values.isolation import Isolation
from pilotage.values.offers import AdPart, SlotOffer, VacateOrder
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.jobs.descriptions import render
from pilotage_server.core.pilots.nodes import NodeSettings
from pilotage_server.operations.attempts.pilot_calls import PilotCommand


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """A pilot's request: slots in the order of service, reports, and the pools that it knows.

    `ad_parts` are parts of the slots' ads that the server may lack. `node_settings_version` is the pilot's version of
    what operators have set on its node.
    """

    slots: tuple[SlotOffer, ...] = ()
    reports: tuple[JobReport, ...] = ()
    pool_ids: tuple[str, ...] = ()
    ad_parts: tuple[AdPart, ...] = ()
    node_settings_version: int = 0

    @property
    def has_policy(self) -> bool:
        """Whether the slots follow a policy, in which operators may have set something."""
        return any(slot.job_ad_wanted for slot in self.slots)

    @property
    def isolation(self) -> Isolation:
        """How the pilot isolates payloads: all its slots have the same."""
        return self.slots[0].isolation if self.slots else Isolation.NONE

    def after(self, waited: timedelta) -> WorkRequest:
        """Return the request after a wait: the slots have less time left, and the reports are recorded."""
        return replace(self, slots=tuple(slot.after(waited) for slot in self.slots), reports=())


@dataclass(frozen=True, slots=True, eq=False)
class MatchTerms:
    """What many matches have in common: `description` is what to run, macros not filled in, `amounts` its limits.

    `account` is that of the jobs' owner. `traceparent` = the trace context of their submission, "" = unknown.
    """

    lease: timedelta
    template_id: int
    description: JobDescription
    amounts: Amounts
    task_queue_id: int
    account: Account
    traceparent: str = ""


class Match(NamedTuple):
    """A job with a lease for a slot; `job_ad` is the job's ad as text, "" = the slot did not want it."""

    slot: str
    job_id: int
    attempt: int
    cluster: int
    process: int
    terms: MatchTerms
    job_ad: str = ""

    @property
    def id(self) -> int:
        """The job's id."""
        return self.job_id

    @property
    def lease(self) -> timedelta:
        """How long the lease lasts, from the match on."""
        return self.terms.lease

    @property
    def task_queue_id(self) -> int:
        """The task queue where the job waited."""
        return self.terms.task_queue_id

    @property
    def owner(self) -> str:
        """The job's owner."""
        return self.terms.account.owner

    @property
    def vo(self) -> str:
        """The owner's VO."""
        return self.terms.account.vo

    @property
    def group(self) -> str:
        """The owner's group."""
        return self.terms.account.group

    def rendered(self) -> JobDescription:
        """Return the description of this one job: macros filled in, its numbers in the environment."""
        return render(self.terms.description, self)


@dataclass(frozen=True, slots=True)
class WorkAnswer:
    """The answer to a request: matches in the order of slots, and the results of its reports, in order.

    Slots that lack `ad_parts_wanted`, or whose policies cannot be used (`faults`: why, by slot), get no jobs. No slot
    does while policies refer to `unreferred` job attributes: the caller makes these significant in a transaction of its
    own, and repeats the request. Nor does one before the pilot has the settings of its node (`node_settings`, None = it
    has). `tails` are streams of its attempts that somebody has begun to follow.
    """

    matches: tuple[Match, ...] = ()
    results: tuple[ReportResult, ...] = ()
    pools_changed: bool = False
    commands: tuple[PilotCommand, ...] = ()
    vacates: tuple[VacateOrder, ...] = ()
    ad_parts_wanted: tuple[str, ...] = ()
    unreferred: frozenset[str] = frozenset()
    faults: Mapping[str, str] = field(default_factory=dict)
    node_settings: NodeSettings | None = None
    tails: tuple[TailStream, ...] = ()

    @property
    def is_all_matches(self) -> bool:
        """Whether the answer contains only matches, as most do."""
        more = self.results or self.commands or self.vacates or self.ad_parts_wanted or self.faults or self.tails
        return not (more or self.pools_changed or self.node_settings is not None)
