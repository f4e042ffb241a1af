"""RequestJobs: a pilot brings reports and free slots, and takes jobs away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from pilotage.ad_text import ad_text
from pilotage.job_description import JobDescription
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.identity import Identity
from pilotage_server.core.job_ads import full_job_ad
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.macros import render
from pilotage_server.core.node_settings import NodeSettings
from pilotage_server.core.preemption import Vacate
from pilotage_server.core.reports import HeldLease, JobReport
from pilotage_server.core.slots import SlotOffer
from pilotage_server.operations.load_world import freshen_waiting
from pilotage_server.operations.match_slots import Asking, Claimed, Matched, match_slots
from pilotage_server.operations.node_settings import news_of_node
from pilotage_server.operations.pilot_calls import Command, commands_for, credential_of, heard, no_work_reason
from pilotage_server.operations.pool_views import get_submit_pools_for_queue
from pilotage_server.operations.reports import ReportResult, record_reports
from pilotage_server.operations.slot_offers import NO_OFFERS, AdPartText, read_offers, take_in_parts
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.templates import load_descriptions


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


@dataclass(frozen=True, slots=True)
class Match:
    """A job with a lease for a slot; `description` is what to run, `amounts` what it may use.

    `job_ad` is the job's ad as text; "" = the slot did not want it.
    """

    slot: str
    job_id: int
    attempt: int
    lease: timedelta
    description: JobDescription
    amounts: Amounts
    task_queue_id: int
    owner: str
    vo: str
    group: str
    cluster: int
    process: int
    job_ad: str = ""


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


def request_jobs(unit: Unit, world: World, identity: Identity, request: WorkRequest) -> WorkAnswer:
    """Record the reports, then bind waiting jobs to the slots.

    Of the caller only its credential is believed: stamp, queue and VOs. A pilot that drains, has ended, is not
    known, or whose queue is gone from the tree gets no work, and is told to drain.
    """
    credential = credential_of(identity)
    freshen_waiting(unit, world)
    results = record_reports(unit, world, identity, request.reports)
    pilot = heard(unit, credential)
    commands = commands_for(unit, world, credential, pilot, frozenset())
    take_in_parts(world, request.ad_parts)
    offers, matched = NO_OFFERS, Matched()
    settings = None
    if pilot is not None and request.has_policy:
        settings = news_of_node(unit, credential, pilot.node, request.node_settings_version)
    if pilot is not None and request.slots and settings is None and not no_work_reason(world, credential, pilot):
        offers = read_offers(world, credential.queue, request.slots)
        matched = match_slots(unit, world, Asking(credential, pilot.node), offers)
    (mine,) = get_submit_pools_for_queue(world, identity, [credential.queue])
    # a request without a list claims nothing: pilots send theirs only now and then
    pools_changed = bool(request.pool_ids) and frozenset(request.pool_ids) != frozenset(mine.pool_ids)
    return WorkAnswer(
        matches=_matches(unit, world, matched.claimed, request.slots),
        results=results,
        pools_changed=pools_changed,
        commands=commands,
        vacates=matched.vacates,
        ad_parts_wanted=offers.parts_wanted,
        unreferred=offers.unreferred,
        faults=offers.faults,
        node_settings=settings,
    )


def leases_left(unit: Unit, identity: Identity, matches: Sequence[HeldLease]) -> dict[HeldLease, timedelta]:
    """Return how long the leases of earlier matches still run, for an answer that is given again; 0 = it has ended."""
    stamp = credential_of(identity).stamp
    jobs = load_jobs(unit.session, [match.job_id for match in matches])
    return {match: _left(jobs.get(match.job_id), match, stamp, unit.now) for match in matches}


def _left(job: JobRecord | None, match: HeldLease, stamp: str, now: datetime) -> timedelta:
    mine = job is not None and job.is_leased and (job.attempt, job.pilot_stamp) == (match.attempt, stamp)
    if job is None or job.lease_until is None or not mine:
        return timedelta(0)
    return max(timedelta(0), job.lease_until - now)


def _matches(unit: Unit, world: World, made: Sequence[Claimed], slots: Sequence[SlotOffer]) -> tuple[Match, ...]:
    descriptions = load_descriptions(unit.session, {claimed.job.template_id for claimed in made})
    with_ad = {slot.name for slot in slots if slot.job_ad_wanted}
    return tuple(
        Match(
            slot=choice.slot,
            job_id=job.id,
            attempt=job.attempt,
            lease=job.lease or world.rules.lease,
            description=render(descriptions[job.template_id], job),
            amounts=choice.amounts,
            task_queue_id=choice.task_queue.id,
            owner=job.owner,
            vo=job.vo,
            group=job.group,
            cluster=job.cluster,
            process=job.process,
            job_ad=ad_text(full_job_ad(job, descriptions[job.template_id], unit.now)) if choice.slot in with_ad else "",
        )
        for choice, job in ((claimed.choice, claimed.job) for claimed in made)
    )
