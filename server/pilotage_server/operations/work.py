"""What pilots ask for and get: requests for jobs, matches, answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple

from pilotage.job_description import JobDescription
from pilotage_server.core.accounting import Account
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.macros import render
from pilotage_server.core.node_settings import NodeSettings
from pilotage_server.core.preemption import Vacate
from pilotage_server.core.reports import JobReport
from pilotage_server.core.slots import SlotOffer
from pilotage_server.operations.pilot_calls import Command
from pilotage_server.operations.reports import ReportResult
from pilotage_server.operations.slot_offers import AdPartText


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """What a pilot asks: slots in the order to be served, reports, and the pools that it was given.

    `ad_parts` are parts of the slots' ads that the server may not have. `node_settings_version`
    is that of what operators have set on its node, as far as it has heard.
    """

    slots: tuple[SlotOffer, ...] = ()
    reports: tuple[JobReport, ...] = ()
    pool_ids: tuple[str, ...] = ()
    ad_parts: tuple[AdPartText, ...] = ()
    node_settings_version: int = 0

    @property
    def has_policy(self) -> bool:
        """Whether the slots follow a policy, in which operators may have set something."""
        return any(slot.job_ad_wanted for slot in self.slots)

    def after(self, waited: timedelta) -> WorkRequest:
        """Return what is asked after a wait: the slots have less time left, and the reports have been told."""
        return replace(self, slots=tuple(slot.after(waited) for slot in self.slots), reports=())


@dataclass(frozen=True, slots=True, eq=False)
class MatchKind:
    """What many matches have in common: `description` is what to run, macros not filled in, `amounts` what it may use.

    `account` is that of the jobs' owner.
    """

    lease: timedelta
    template_id: int
    description: JobDescription
    amounts: Amounts
    task_queue_id: int
    account: Account


class Match(NamedTuple):
    """A job with a lease for a slot; `job_ad` is the job's ad as text, "" = the slot did not want it."""

    slot: str
    job_id: int
    attempt: int
    cluster: int
    process: int
    kind: MatchKind
    job_ad: str = ""

    @property
    def id(self) -> int:
        """The job's id."""
        return self.job_id

    @property
    def lease(self) -> timedelta:
        """How long the pilot may have the job, from the match on."""
        return self.kind.lease

    @property
    def task_queue_id(self) -> int:
        """The task queue where the job waited."""
        return self.kind.task_queue_id

    @property
    def owner(self) -> str:
        """The job's owner."""
        return self.kind.account.owner

    @property
    def vo(self) -> str:
        """The owner's VO."""
        return self.kind.account.vo

    @property
    def group(self) -> str:
        """The owner's group."""
        return self.kind.account.group

    def rendered(self) -> JobDescription:
        """Return the description of this one job: macros filled in, its numbers in the environment."""
        return render(self.kind.description, self)


@dataclass(frozen=True, slots=True)
class WorkAnswer:
    """What a pilot gets: matches with slots in order, and what became of its reports, in order.

    Nothing was given to slots that lack `ad_parts_wanted`, or whose policies cannot be used (`faults`: why, by slot),
    and nothing at all where policies look for attributes of jobs that must tell task queues apart first: who asked
    has these `unreferred` ones referred to, in a transaction of its own, and asks again. Nor is anything given before
    the pilot has heard what operators have set on its node (`node_settings`, None = it has).
    """

    matches: tuple[Match, ...] = ()
    results: tuple[ReportResult, ...] = ()
    pools_changed: bool = False
    commands: tuple[Command, ...] = ()
    vacates: tuple[Vacate, ...] = ()
    ad_parts_wanted: tuple[str, ...] = ()
    unreferred: frozenset[str] = frozenset()
    faults: Mapping[str, str] = field(default_factory=dict)
    node_settings: NodeSettings | None = None

    @property
    def is_all_matches(self) -> bool:
        """Whether the answer brings nothing but matches, as most do."""
        more = self.results or self.commands or self.vacates or self.ad_parts_wanted
        return not (more or self.pools_changed or self.node_settings is not None)
