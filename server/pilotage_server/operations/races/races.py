"""Races: the listing with participants and costs, and StartCopies, which makes copies of running jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pilotage.errors import InvalidInputError, InvalidRequirementsError, Violation
from pilotage.job_description import JobDescription
from pilotage.telemetry import new_trace, read_trace, trace_bound
from pilotage.text import fold
from pilotage.values.accounts import Account
from pilotage.values.jobs import ALL_OWNERS
from pilotage.values.races import NewRaceCopy, StartedRaceCopy
from pilotage_server.core.identity import UNBOUND, AgentBounds, Identity
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.paging import position_of, token_of
from pilotage_server.core.races.races import (
    RESTART_CAUSES,
    Race,
    copy_description,
    copy_refusal,
    cost_so_far,
    is_current,
)
from pilotage_server.operations.jobs.new_jobs import AcceptedJobs, record_new_jobs
from pilotage_server.operations.jobs.queries import DEFAULT_PAGE, LARGEST_PAGE
from pilotage_server.operations.queueing.placement import Placer, lock_placement
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import races as stored
from pilotage_server.storage.attempts import load_attempts_of, sites_of
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.events import last_attempts_at
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.leases import lock_jobs
from pilotage_server.storage.races import RaceCost, RaceQuery
from pilotage_server.storage.submission.templates import load_descriptions, load_traceparent


@dataclass(frozen=True, slots=True)
class RaceFilter:
    """A filter of races: `owner` "" = the caller's own, `open_only` = no ended ones, no `job_ids` = all originals."""

    owner: str = ""
    open_only: bool = False
    job_ids: tuple[int, ...] = ()


class RaceView(NamedTuple):
    """A race with its original, its copies, and its cost so far in core seconds."""

    race: Race
    original: JobRecord
    copies: tuple[JobRecord, ...]
    lost_core_s: float


@dataclass(frozen=True, slots=True)
class RacePage:
    """A page of races, that of the newest original first; `next_page_token` "" = the last page.

    `costs` of ended races, by account, are in the first page only.
    """

    races: tuple[RaceView, ...]
    next_page_token: str = ""
    costs: tuple[RaceCost, ...] = ()


def present_races(transaction: Transaction, job_ids: Iterable[int]) -> dict[int, Race]:
    """Return the last race of each job, by job id, if it began after the job's last restart."""
    last = stored.load_last(transaction.session, job_ids)
    restarts = last_attempts_at(transaction.session, last, RESTART_CAUSES)
    return {id_: race for id_, race in last.items() if is_current(race, restarts.get(id_, 0))}


def list_races(
    transaction: Transaction, identity: Identity, wanted: RaceFilter, page_size: int = 0, page_token: str = ""
) -> RacePage:
    """Return the next page; `page_size` 0 = 1,000.

    Raises
    ------
    InvalidInputError
        The page size is out of bounds, or the token belongs to another query.
    """
    if not 0 <= page_size <= LARGEST_PAGE:
        raise InvalidInputError(Violation("page_size", f"{page_size} is not between 0 and {LARGEST_PAGE}"))
    query = _query(identity, wanted)
    if query is None:
        return RacePage(())
    asked = (repr(query),)
    before = position_of(page_token, asked) if page_token else 0
    size = page_size or DEFAULT_PAGE
    races = stored.find_races(transaction.session, query, before, size + 1)
    more = token_of(races[size - 1].job_id, asked) if len(races) > size else ""
    costs = () if before else stored.sum_costs(transaction.session, query)
    return RacePage(_views(transaction, races[:size]), more, costs)


def _query(identity: Identity, wanted: RaceFilter) -> RaceQuery | None:
    """Return the query; None = no race is visible to the caller, because users see only their own."""
    owner = wanted.owner or identity.owner
    if identity.sees_everything:
        own_vo = None if wanted.owner else identity.vo
        return RaceQuery(None if owner == ALL_OWNERS else owner, own_vo, wanted.job_ids, wanted.open_only)
    if owner not in {ALL_OWNERS, identity.owner}:
        return None
    return RaceQuery(identity.owner, identity.vo, wanted.job_ids, wanted.open_only)


def _views(transaction: Transaction, races: Sequence[Race]) -> tuple[RaceView, ...]:
    copies = stored.load_rivals(transaction.session, races)
    originals = load_jobs(transaction.session, [race.job_id for race in races])
    views: list[RaceView] = []
    for race in races:
        race_copies = tuple(copies.get(race.job_id, ()))
        cost = race.lost_core_s
        if race.ended is None:
            cost += cost_so_far(
                race, load_attempts_of(transaction.session, [copy.id for copy in race_copies]), transaction.now
            )
        views.append(RaceView(race, originals[race.job_id], race_copies, cost))
    return tuple(views)


def start_copies(
    transaction: Transaction, state: ServerState, wanted: Sequence[NewRaceCopy], bounds: AgentBounds = UNBOUND
) -> tuple[StartedRaceCopy, ...]:
    """Make copies of different jobs where possible, and return one answer for each, in the order asked.

    Only jobs of VOs in the bounds are copied; the others count as missing.
    """
    lock_placement(transaction)
    ids = [each.job_id for each in wanted]
    lock_jobs(transaction.session, ids, rivals=transaction.is_retry)
    jobs = load_jobs(transaction.session, ids)
    descriptions = load_descriptions(transaction.session, {job.template_id for job in jobs.values()})
    races = present_races(transaction, jobs)
    copies = stored.load_rivals(transaction.session, races.values())
    sites = sites_of(transaction.session, [*jobs, *(copy.id for same in copies.values() for copy in same)])
    placer = Placer(transaction, state)

    def start(each: NewRaceCopy) -> StartedRaceCopy:
        job = jobs.get(each.job_id)
        if job is None or not bounds.has_vo(job.vo):
            return StartedRaceCopy(each.job_id, refusal=f"there is no job {each.job_id}")
        job_copies = copies.get(job.id, [])
        refusal = copy_refusal(job, descriptions[job.template_id], job_copies)
        if refusal:
            return StartedRaceCopy(job.id, refusal=refusal)
        used = (sites.get(id_, ()) for id_ in (job.id, *(copy.id for copy in job_copies)))
        copied = copy_description(descriptions[job.template_id], frozenset[str]().union(*used))
        return _start_copy(transaction, placer, job, copied, each.reason, goes_on=job.id in races)

    return tuple(start(each) for each in wanted)


def _start_copy(
    transaction: Transaction, placer: Placer, job: JobRecord, copied: JobDescription, reason: str, *, goes_on: bool
) -> StartedRaceCopy:
    asked = {fold(site) for site in copied.sites} - {"any"}
    if asked and asked <= {fold(site) for site in copied.banned_sites}:
        return StartedRaceCopy(job.id, refusal=f"job {job.id} and its copies have used every site that it asks for")
    account = Account(job.vo, job.group, job.owner)
    try:
        placement = placer.place(account, copied)
    except InvalidRequirementsError as error:
        # The active tree may declare a parameter differently from the tree under which the job was accepted.
        return StartedRaceCopy(job.id, refusal=str(error))
    (alike,) = single_groups([copied])
    trace = read_trace(load_traceparent(transaction.session, job.template_id))
    with trace_bound(trace or new_trace()):
        (copy_id,) = record_new_jobs(transaction, placer.state, account, [AcceptedJobs(alike, placement)])
    stored.enter(transaction.session, job, copy_id, reason, transaction.now, goes_on=goes_on)
    return StartedRaceCopy(job.id, copy_id)
