"""Queries: jobs by id and page by page, descriptions and ads, the events of a job, and the feed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pilotage.classads.library import AdValue
from pilotage.errors import InvalidInputError, NotFoundError, Violation
from pilotage.job_description import JobDescription
from pilotage.values.jobs import JobCondition
from pilotage_server.core.attempts.leases import AttemptFacts
from pilotage_server.core.identity import Holder, Identity, Role
from pilotage_server.core.incarnation import check_position, page_end
from pilotage_server.core.jobs.changes import may_change
from pilotage_server.core.jobs.record import FeedEvent, FeedPage, JobRecord, router_of
from pilotage_server.core.jobs.states import FINAL, JobState
from pilotage_server.core.jobs.usage import AttemptUsage
from pilotage_server.core.paging import position_of, token_of
from pilotage_server.core.queueing.job_ads import full_job_ad, reported_ad, with_mirrored
from pilotage_server.operations.jobs.conditions import JobReader, query_of
from pilotage_server.operations.jobs.dependencies import with_reasons
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.attempts import load_last_facts, load_usages
from pilotage_server.storage.database.installation import counters, load_incarnations
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.events import (
    FeedQuery,
    ended_between,
    events_between,
    events_of,
    feed_bounds,
    first_after,
    owners_between,
)
from pilotage_server.storage.jobs import load_job, load_jobs
from pilotage_server.storage.routing import load_attributes, load_routed_jobs
from pilotage_server.storage.submission.dependencies import lasting_futile_blocks
from pilotage_server.storage.submission.templates import load_description, load_ignored

DEFAULT_PAGE = 1000
LARGEST_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class JobPage:
    """Jobs in the requested order; `next_page_token` "" = there are no more."""

    jobs: tuple[JobRecord, ...]
    next_page_token: str


def visible_job(transaction: Transaction, identity: Identity, job_id: int) -> JobRecord:
    """Return a job that the caller may see and change; raises NotFoundError."""
    job = load_job(transaction.session, job_id)
    if not may_change(identity, job.owner, job.vo):
        raise NotFoundError("job", str(job_id))
    return job


def get_jobs(transaction: Transaction, identity: Identity, job_ids: Sequence[int]) -> tuple[JobRecord, ...]:
    """Return the jobs in the requested order; raises NotFoundError for the first that the caller cannot see."""
    found = load_jobs(transaction.session, job_ids)
    for job_id in job_ids:
        job = found.get(job_id)
        if job is None or not may_change(identity, job.owner, job.vo):
            raise NotFoundError("job", str(job_id))
    return with_reasons(transaction, (found[job_id] for job_id in job_ids))


class JobDetails(NamedTuple):
    """What is shown of jobs beside their rows; what a job does not have is left out.

    `ignored` are the ignored statements of job files by template, `usages` what the last attempts have used by job,
    `futile` the blocks whose jobs cannot run as things stand. `pool_sites` are the sites of pools that have few, by
    pool.
    """

    ignored: Mapping[int, Sequence[str]]
    usages: Mapping[int, AttemptUsage]
    futile: Collection[int]
    pool_sites: Mapping[str, Sequence[str]]


def details_of(transaction: Transaction, state: ServerState, jobs: Sequence[JobRecord]) -> JobDetails:
    """Return the details of jobs."""
    ignored = load_ignored(transaction.session, {job.template_id for job in jobs})
    usages = load_usages(transaction.session, jobs, transaction.now)
    blocks = {job.blocked_by for job in jobs if job.state is JobState.BLOCKED}
    futile = lasting_futile_blocks(transaction.session, blocks)
    pools = {job.pool_id for job in jobs if job.pool_id and job.state not in FINAL}
    return JobDetails(ignored, usages, futile, {pool: few_sites(state, pool) for pool in pools})


def few_sites(state: ServerState, pool_id: str) -> tuple[str, ...]:
    """Return the sites that a pool is mapped to, if the rules let so many be shown."""
    return state.mappings.few_sites(pool_id, state.rules.pool_sites_shown)


ATTEMPT_JOBS, ATTEMPTS_OF_A_JOB = 100, 100
"""The most jobs of one call for attempts, and the attempts of each that it returns."""


def list_attempts(transaction: Transaction, identity: Identity, job_ids: Sequence[int]) -> list[AttemptFacts]:
    """Return the last attempts of these jobs, by job and number.

    Raises
    ------
    InvalidInputError
        There are too many jobs.
    NotFoundError
        The caller cannot see one of them.
    """
    if len(job_ids) > ATTEMPT_JOBS:
        why = f"names {len(job_ids)}, and one call may name {ATTEMPT_JOBS}"
        raise InvalidInputError(Violation("job_ids", why))
    jobs = get_jobs(transaction, identity, job_ids)
    return load_last_facts(transaction.session, jobs, ATTEMPTS_OF_A_JOB, transaction.now)


def list_jobs(
    transaction: Transaction,
    state: ServerState,
    identity: Identity,
    condition: JobCondition,
    page_size: int = 0,
    page_token: str = "",
    *,
    newest_first: bool = False,
    copies: bool = False,
) -> JobPage:
    """Return the next page, in the order of ids; `page_size` 0 = 1,000. It may be empty although there are more.

    `copies` = include jobs that are or were race copies.

    Raises
    ------
    InvalidInputError
        The page size is out of bounds, the condition is invalid, or the token belongs to another query.
    """
    if not 0 <= page_size <= LARGEST_PAGE:
        raise InvalidInputError(Violation("page_size", f"{page_size} is not between 0 and {LARGEST_PAGE}"))
    query = query_of(transaction, state, identity, condition, newest_first=newest_first, copies=copies)
    after = position_of(page_token, query.key) if page_token else 0
    found = JobReader(transaction, query).next(after, page_size or DEFAULT_PAGE)
    ids = [job.id for job in found.jobs]
    jobs = load_jobs(transaction.session, ids)
    more = token_of(found.position, query.key) if found.position else ""
    return JobPage(with_reasons(transaction, (jobs[job_id] for job_id in ids)), more)


def get_description(transaction: Transaction, identity: Identity, job_id: int) -> JobDescription:
    """Return the present description of the job, macros not filled in; raises NotFoundError."""
    return load_description(transaction.session, visible_job(transaction, identity, job_id).template_id)


def get_ad(transaction: Transaction, identity: Identity, job_id: int) -> Mapping[str, AdValue]:
    """Return the job's ad, with what HTCondor's tools read and attributes of its routed job; raises NotFoundError.

    Attributes that hooks have set are shown until the next attempt begins.
    """
    job = visible_job(transaction, identity, job_id)
    ad = full_job_ad(job, load_description(transaction.session, job.template_id), transaction.now)
    usage = load_usages(transaction.session, [job], transaction.now).get(job.id)
    if usage is not None:
        ad |= usage.attributes()
    ad = reported_ad(ad, job)
    if not router_of(job):
        return ad
    key = (job.id, job.attempt)
    copy = load_routed_jobs(transaction.session, [key]).get(key)
    if job.is_leased and copy is not None and copy.reference:
        ad["RoutedToJobId"] = copy.reference
    return with_mirrored(ad, load_attributes(transaction.session, key))


WINDOW = 100_000
"""Positions that one page reads at most, so that a caller with few jobs does not read the whole feed at once."""


NEWS_WINDOW = 10_000
"""Positions that one reading of news covers: new jobs may have a million events at once."""


@dataclass(frozen=True, slots=True)
class FeedNews:
    """What the feed has up to a position: owners of jobs with events, and the jobs that have ended by them."""

    position: int
    at_end: bool
    owners: frozenset[Holder] = frozenset()
    ended: frozenset[int] = frozenset()


def feed_owner(identity: Identity) -> Holder | None:
    """Return whose events the caller may see; None = those of all jobs."""
    sees_all = identity.sees_everything or Role.ROUTER in identity.roles
    return None if sees_all else Holder(identity.vo, identity.owner)


def read_news(transaction: Transaction, after: int | None) -> FeedNews:
    """Return whose events the feed has after a position; None = only the position of the newest event."""
    _, newest = feed_bounds(transaction.session)
    first = None if after is None else first_after(transaction.session, after)
    if first is None:
        return FeedNews(newest, at_end=True)
    after = first - 1
    up_to = min(newest, after + NEWS_WINDOW)
    owners = frozenset(Holder(vo, owner) for vo, owner in owners_between(transaction.session, after, up_to))
    ended = frozenset(ended_between(transaction.session, after, up_to))
    return FeedNews(up_to, up_to == newest, owners, ended)


def get_events(transaction: Transaction, identity: Identity, job_id: int) -> tuple[FeedEvent, ...]:
    """Return the events of one job, oldest first; raises NotFoundError."""
    visible_job(transaction, identity, job_id)
    return events_of(transaction.session, job_id)


def read_feed(
    transaction: Transaction,
    identity: Identity,
    after_position: int,
    job_ids: Sequence[int] = (),
    *,
    runs: Sequence[range] = (),
    limit: int = 1000,
) -> FeedPage:
    """Return the next events that the caller may see, oldest first; continue after the page's position.

    No `job_ids` and no `runs` of ids = all jobs. Positions that retention has removed are skipped. A page may be empty
    although the feed continues (`at_end`).

    Raises
    ------
    FeedPositionLostError
        The database has never given out this position.
    """
    _, newest = feed_bounds(transaction.session)
    incarnations = load_incarnations(transaction.session)
    if after_position:
        given_out = newest if after_position <= newest else counters(transaction.session).position
        check_position(after_position, given_out, incarnations)
    first = first_after(transaction.session, after_position)
    if first is None:
        return FeedPage((), after_position, at_end=True)
    after = first - 1
    up_to = page_end(min(newest, after + WINDOW), incarnations)
    wanted = FeedQuery(feed_owner(identity), tuple(job_ids), tuple(runs), identity.bounds.vos)
    events = events_between(transaction.session, after, up_to, wanted, limit)
    if len(events) == limit:
        return FeedPage(events, events[-1].position, at_end=False)
    return FeedPage(events, up_to, at_end=up_to == newest)
