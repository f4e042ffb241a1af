"""Pages of the ads of jobs: by id, state and owner, by a ClassAd constraint, and with chosen attributes.

A page looks at a bounded number of jobs and makes a bounded text, whatever is wanted. Its token continues behind the
last job that it has looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from pilotage.classads.evaluation import compile_bounded
from pilotage.classads.library import AdValue, InvalidClassAdError
from pilotage.classads.text import ad_text
from pilotage.errors import InvalidInputError, NotFoundError, Violation
from pilotage.text import fold, folded_set
from pilotage.values.selections import JobSelection
from pilotage_server.core.classads.evaluation import AdEvaluator, FoldedAd
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.attributes import has_macro
from pilotage_server.core.jobs.changes import may_change
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.paging import position_of, token_of
from pilotage_server.core.queueing.job_ads import described_ad, full_job_ad, present_ad, reported_ad
from pilotage_server.operations.jobs.clusters import extent_of
from pilotage_server.operations.jobs.queries import JobFilter, job_query, token_key
from pilotage_server.storage.attempts import load_usages
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import JobQuery, load_jobs, next_jobs
from pilotage_server.storage.submission.templates import load_descriptions

MOST_JOBS = 1000
"""Jobs that a page looks at: with a costly constraint they take about a second."""

MOST_CHARACTERS = 4 * 1024 * 1024
"""A page ends once its ads have so many characters."""


@dataclass(frozen=True, slots=True)
class AdFilter:
    """Which ads are wanted: of the `selections` (none = of all jobs), by `jobs`, and by `constraint` ("" = any).

    `attributes` = the names that the ads have, none = all.
    """

    selections: tuple[JobSelection, ...]
    jobs: JobFilter
    constraint: str = ""
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdPage:
    """Texts of ads; `next_page_token` "" = there are no more."""

    ads: tuple[str, ...]
    next_page_token: str


def list_ads(
    transaction: Transaction, identity: Identity, wanted: AdFilter, page_size: int = MOST_JOBS, page_token: str = ""
) -> AdPage:
    """Return the next page: the wanted ads among the next `page_size` jobs.

    Raises
    ------
    InvalidInputError
        The constraint is invalid, or the token belongs to another query.
    """
    try:
        compile_bounded(wanted.constraint or "true")
    except InvalidClassAdError as error:
        raise InvalidInputError(*(Violation("constraint", each.why) for each in error.violations)) from error
    query = job_query(identity, wanted.jobs)
    key = (*token_key(query), wanted.constraint, *wanted.attributes, "", *map(str, wanted.selections))
    after = position_of(page_token, key) if page_token else 0
    if wanted.selections:
        found, last = _selected(transaction, identity, wanted.selections, after, page_size)
    else:
        found = next_jobs(transaction.session, query, after, page_size)
        last = found[-1].id if len(found) == page_size else 0
    ads: list[str] = []
    characters = 0
    for job, ad in _ads(transaction, [job for job in found if _is_wanted(job, query, identity)], wanted.constraint):
        ads.append(ad_text(_projected(ad, wanted.attributes)))
        characters += len(ads[-1])
        if characters >= MOST_CHARACTERS:
            last = job.id if job is not found[-1] else last
            break
    return AdPage(tuple(ads), token_of(last, key) if last else "")


def _selected(
    transaction: Transaction, identity: Identity, selections: Sequence[JobSelection], after: int, most: int
) -> tuple[tuple[JobRecord, ...], int]:
    """Return the next selected jobs, and the last id that was looked at; 0 = there are no more."""
    ranges = sorted(_ranges(transaction, identity, selections), key=lambda pair: pair[0].start)
    wanted: dict[int, set[int]] = {}
    for ids, cluster in ranges:
        for job_id in islice(ids[max(0, after + 1 - ids.start) :], most):
            wanted.setdefault(job_id, set()).add(cluster)
    chosen = sorted(wanted)[:most]
    found = load_jobs(transaction.session, chosen)
    jobs = tuple(job for job in found.values() if wanted[job.id] & {0, job.cluster})
    return jobs, chosen[-1] if any(ids.stop - 1 > chosen[-1] for ids, _ in ranges if chosen) else 0


def _ranges(
    transaction: Transaction, identity: Identity, selections: Sequence[JobSelection]
) -> Iterator[tuple[range, int]]:
    """Yield the ids of each selection, and the cluster that they must have; 0 = any."""
    for each in selections:
        if each.processes is not None:
            first, last = each.processes
            yield range(each.id + first, each.id + last + 1), each.id
            continue
        try:
            yield extent_of(transaction, identity, each), 0
        except NotFoundError:
            continue  # as condor_q, which lists what there is


def _is_wanted(job: JobRecord, query: JobQuery, identity: Identity) -> bool:
    return (
        may_change(identity, job.owner, job.vo)
        and (not query.states or job.state in query.states)
        and query.owner in (None, job.owner)
        and query.vo in (None, job.vo)
        and query.pool in ("", job.pool_id)
        and (query.copies or not job.is_race_copy)
    )


def _ads(
    transaction: Transaction, jobs: Collection[JobRecord], constraint: str
) -> Iterator[tuple[JobRecord, Mapping[str, AdValue]]]:
    """Yield the jobs that satisfy the constraint, with their ads."""
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
        if not constraint or evaluator.value(constraint, FoldedAd(ad)) is True:
            yield job, ad


def _projected(ad: Mapping[str, AdValue], names: Sequence[str]) -> Mapping[str, AdValue]:
    wanted = folded_set(names)
    return {name: value for name, value in ad.items() if fold(name) in wanted} if names else ad
