"""Selection of jobs by a condition: what lists, counts and changes of many jobs have in common.

A condition becomes a query of what the caller may see. The database answers all of it but `where`, of which it only
gets what follows from simple comparisons; the ads of the jobs that it finds are then evaluated, a bounded number of
them in one call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pilotage.classads.evaluation import compile_bounded
from pilotage.classads.library import AdValue, InvalidClassAdError
from pilotage.errors import InvalidInputError, Violation
from pilotage.values.jobs import ALL_OWNERS, JobCondition
from pilotage.values.selections import JobSelection
from pilotage_server.core.classads.evaluation import AdEvaluator, FoldedAd
from pilotage_server.core.identity import Holder, Identity
from pilotage_server.core.jobs.attributes import has_macro
from pilotage_server.core.jobs.conditions import PLACELESS, JobQuery, condition_faults, meets, narrowing
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.paging import position_of, token_of
from pilotage_server.core.queueing.job_ads import described_ad, full_job_ad, present_ad, reported_ad
from pilotage_server.core.resources.bans import TreeNode, find_node
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.attempts import load_usages
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.selection import FoundPage, JobFinder
from pilotage_server.storage.submission.clusters import ClusterJob, load_first_job
from pilotage_server.storage.submission.templates import load_descriptions
from pilotage_server.storage.submission.workflows import load_workflow

MOST_EVALUATED = 1000
"""Jobs whose ads one call evaluates: with a costly expression they take about a second."""

_ALL_STATES = frozenset(JobState)

MOST_FOUND = 20_000
"""The most jobs of one page of a search."""


def query_of(
    transaction: Transaction,
    state: ServerState,
    identity: Identity,
    condition: JobCondition,
    *,
    newest_first: bool = False,
    copies: bool = False,
) -> JobQuery:
    """Return the query of the jobs that meet a condition and that the caller may see.

    Raises
    ------
    InvalidInputError
        The condition contradicts itself, or its expression is invalid.
    """
    faults = list(condition_faults(condition))
    try:
        compile_bounded(condition.where or "true")
    except InvalidClassAdError as error:
        faults += (Violation("where", each.why) for each in error.violations)
    if faults:
        raise InvalidInputError(*faults)
    visible = visible_jobs(identity, condition.owner, condition.vo)
    place = _place(state, condition)
    follows = narrowing(condition.where)
    states = (frozenset(map(JobState, condition.states)) or _ALL_STATES) & follows.states
    if condition.has_place:
        states -= PLACELESS
    ranges = None
    if condition.selections or condition.runs:
        ranges = _joined([*condition.runs, *_extents(transaction, condition.selections)])
    return JobQuery(
        states if states < _ALL_STATES else frozenset(),
        visible and visible.owner,
        visible and visible.vo,
        condition.group,
        condition.pool,
        *place,
        node=condition.node,
        name=condition.name,
        since=condition.since,
        until=condition.until,
        ranges=ranges,
        where=condition.where,
        bounds=follows.bounds,
        newest_first=newest_first,
        copies=copies,
        nothing=visible is None or not states,
    )


class VisibleJobs(NamedTuple):
    """The owner and the VO of jobs; None = all."""

    owner: str | None
    vo: str | None


def visible_jobs(identity: Identity, owner: str, vo: str = "") -> VisibleJobs | None:
    """Return which of an owner's jobs the caller may see; None = none of them.

    `owner` "" = the caller, "*" = all. `vo` "" = the caller's, and all if the owner is "*"; "*" = all.
    """
    any_owner = owner == ALL_OWNERS
    vo = vo or (ALL_OWNERS if any_owner else identity.vo)
    if identity.sees_everything:
        return VisibleJobs(None if any_owner else owner or identity.owner, None if vo == ALL_OWNERS else vo)
    is_own = owner in ("", ALL_OWNERS, identity.owner) and vo in (ALL_OWNERS, identity.vo)
    return VisibleJobs(identity.owner, identity.vo) if is_own else None


def _place(state: ServerState, condition: JobCondition) -> tuple[str, str, str]:
    """Return site, CE and queue in the spelling of the tree."""
    if not condition.site:
        return "", "", ""
    wanted = TreeNode(condition.site, condition.ce or None, condition.queue or None)
    try:
        found = find_node(state.tree.queues, wanted)
    except InvalidInputError:  # jobs may have run at a place that is no longer in the tree
        return condition.site, condition.ce, condition.queue
    return found.site, found.ce or "", found.queue or ""


def _extents(transaction: Transaction, selections: Iterable[JobSelection]) -> Iterator[range]:
    """Yield the ids of selections; those of unknown jobs have none."""
    first_jobs: dict[int, ClusterJob | None] = {}
    for each in selections:
        if each.workflow:
            workflow = load_workflow(transaction.session, each.id)
            if workflow is not None:
                yield workflow.ids
            continue
        if each.id not in first_jobs:
            first_jobs[each.id] = load_first_job(transaction.session, each.id)
        job = first_jobs[each.id]
        is_cluster = job is not None and job.ids.start == each.id
        if job is not None and is_cluster:
            first, last = each.processes or (0, len(job.ids) - 1)
            yield job.ids[first : last + 1]
        elif each.processes is None:
            yield range(each.id, each.id + 1)


def _joined(ranges: Iterable[range]) -> tuple[range, ...]:
    """Return the ids of ranges as ranges that are sorted and apart."""
    joined: list[range] = []
    for ids in sorted(filter(None, ranges), key=lambda each: each.start):
        if joined and ids.start <= joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, ids.stop))
        else:
            joined.append(ids)
    return tuple(joined)


class JobReader:
    """Reads the jobs of a query in one transaction; it stops at the end of a window, or of what it may evaluate."""

    def __init__(self, transaction: Transaction, query: JobQuery) -> None:
        self._transaction = transaction
        self._query = query
        self._finder = JobFinder(transaction.session, query)

    def next(self, after: int, limit: int) -> FoundPage:
        """Return at most `limit` jobs behind the one with id `after`; a page may be empty although there are more."""
        if not self._query.where:
            return self._finder.next(after, limit)
        found = self._finder.next(after, min(limit, MOST_EVALUATED))
        jobs = load_jobs(self._transaction.session, (job.id for job in found.jobs)).values()
        wanted = {job.id for job, _ in ads_of(self._transaction, jobs, self._query.where)}
        return FoundPage([job for job in found.jobs if job.id in wanted], found.position)


def ads_of(
    transaction: Transaction, jobs: Iterable[JobRecord], where: str
) -> Iterator[tuple[JobRecord, Mapping[str, AdValue]]]:
    """Yield the jobs of which an expression is true, with their ads as people read them; "" = all jobs."""
    jobs = tuple(jobs)
    descriptions = load_descriptions(transaction.session, {job.template_id for job in jobs})
    usages = load_usages(transaction.session, jobs, transaction.now)
    shared: dict[int, dict[str, AdValue] | None] = {}  # by template; None = its values have macros
    evaluator = AdEvaluator()
    for job in jobs:
        description = descriptions.get(job.template_id)
        if description is None:
            continue  # removed by retention since the job was loaded
        if job.template_id not in shared:
            values = described_ad(job, description)
            shared[job.template_id] = None if any(map(has_macro, values.values())) else values
        common = shared[job.template_id]
        now = transaction.now
        ad = full_job_ad(job, description, now) if common is None else common | present_ad(job, now)
        if job.id in usages:
            ad |= usages[job.id].attributes()
        ad = reported_ad(ad, job)
        if not where or evaluator.value(where, FoldedAd(ad)) is True:
            yield job, ad


@dataclass(frozen=True, slots=True)
class JobsFound:
    """Runs of ids, and the numbers of these jobs by owner and state; `next_page_token` "" = no more."""

    runs: tuple[range, ...]
    owners: Mapping[Holder, int]
    states: Mapping[JobState, int]
    next_page_token: str


def search_jobs(
    transaction: Transaction, state: ServerState, identity: Identity, condition: JobCondition, page_token: str = ""
) -> JobsFound:
    """Return the next page of the jobs that meet the condition and that the caller may change, newest first.

    Raises
    ------
    InvalidInputError
        The condition is invalid, or the token belongs to another query.
    """
    query = query_of(transaction, state, identity, condition, newest_first=True)
    after = position_of(page_token, query.key) if page_token else 0
    found = JobReader(transaction, query).next(after, MOST_FOUND)
    owners = Counter((job.vo, job.owner) for job in found.jobs)
    states = Counter(job.state for job in found.jobs)
    token = token_of(found.position, query.key) if found.position else ""
    return JobsFound(
        tuple(_runs(sorted(job.id for job in found.jobs))),
        {Holder(*holder): count for holder, count in owners.items()},
        {JobState(state_): count for state_, count in states.items()},
        token,
    )


def still_met(transaction: Transaction, query: JobQuery, jobs: Iterable[JobRecord]) -> set[int]:
    """Return the ids of those of these jobs that meet the query now."""
    met = [job for job in jobs if meets(job, query)]
    if not query.where:
        return {job.id for job in met}
    return {job.id for job, _ in ads_of(transaction, met, query.where)}


def _runs(ids: Sequence[int]) -> list[range]:
    runs: list[range] = []
    for job_id in ids:
        if runs and runs[-1].stop == job_id:
            runs[-1] = range(runs[-1].start, job_id + 1)
        else:
            runs.append(range(job_id, job_id + 1))
    return runs
