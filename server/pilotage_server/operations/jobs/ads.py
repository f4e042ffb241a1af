"""Pages of the ads of jobs that meet a condition, with chosen attributes.

A page reads a bounded number of jobs and makes a bounded text, whatever is wanted. Its token continues behind the last
job that it has read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilotage.classads.library import AdValue
from pilotage.classads.text import ad_text
from pilotage.text import fold, folded_set
from pilotage.values.jobs import JobCondition
from pilotage_server.core.identity import Identity
from pilotage_server.core.paging import position_of, token_of
from pilotage_server.operations.jobs.conditions import MOST_EVALUATED, ads_of, query_of
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.selection import JobFinder

MOST_CHARACTERS = 4 * 1024 * 1024
"""A page ends once its ads have so many characters."""


@dataclass(frozen=True, slots=True)
class AdFilter:
    """Which ads are wanted: `jobs` in which order, and the names of `attributes` that the ads have, none = all."""

    jobs: JobCondition
    newest_first: bool = False
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdPage:
    """Texts of ads; `next_page_token` "" = there are no more."""

    ads: tuple[str, ...]
    next_page_token: str


def list_ads(
    transaction: Transaction,
    state: ServerState,
    identity: Identity,
    wanted: AdFilter,
    page_size: int = MOST_EVALUATED,
    page_token: str = "",
) -> AdPage:
    """Return the next page: the wanted ads among the next `page_size` jobs that meet all of the condition but `where`.

    Jobs that are selected by name may be race copies.

    Raises
    ------
    InvalidInputError
        The condition is invalid, or the token belongs to another query.
    """
    copies = bool(wanted.jobs.selections)
    query = query_of(transaction, state, identity, wanted.jobs, newest_first=wanted.newest_first, copies=copies)
    key = (*query.key, *wanted.attributes)
    after = position_of(page_token, key) if page_token else 0
    found = JobFinder(transaction.session, query).next(after, page_size)
    ids = [job.id for job in found.jobs]
    jobs = load_jobs(transaction.session, ids)
    position = found.position
    ads: list[str] = []
    characters = 0
    for job, ad in ads_of(transaction, (jobs[job_id] for job_id in ids), query.where):
        ads.append(ad_text(_projected(ad, wanted.attributes)))
        characters += len(ads[-1])
        if characters >= MOST_CHARACTERS and job.id != ids[-1]:
            position = job.id
            break
    return AdPage(tuple(ads), token_of(position, key) if position else "")


def _projected(ad: Mapping[str, AdValue], names: Sequence[str]) -> Mapping[str, AdValue]:
    wanted = folded_set(names)
    return {name: value for name, value in ad.items() if fold(name) in wanted} if names else ad
