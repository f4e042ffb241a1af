"""Questions about jobs: by id, page by page, and what was submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilotage.classads import AdValue
from pilotage.errors import InvalidInputError, NotFoundError, Violation
from pilotage.job_description import JobDescription
from pilotage_server.core.identity import Identity
from pilotage_server.core.job_ads import full_job_ad, with_mirrored
from pilotage_server.core.job_changes import may_be_shown, may_see
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobState
from pilotage_server.core.page_tokens import position_of, token_of
from pilotage_server.core.routes import router_of
from pilotage_server.storage.copies import load_attributes, load_copies
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import JobQuery, find_jobs, load_job, load_jobs
from pilotage_server.storage.templates import load_description

ALL = "*"
"""As an owner: everybody whose jobs the caller may see."""

DEFAULT_PAGE = 1000
LARGEST_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs: no `states` = in any state; `owner` "" = the caller's own; `pool` "" = of any pool.

    `copies` = also those that race or have raced as copies of others.
    """

    states: frozenset[JobState] = frozenset()
    owner: str = ""
    pool: str = ""
    newest_first: bool = False
    copies: bool = False


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs, in the order asked; `next_page_token` "" = there are no more."""

    jobs: tuple[JobRecord, ...]
    next_page_token: str


def visible_job(unit: Unit, identity: Identity, job_id: int) -> JobRecord:
    """Return a job of the caller's, or of anyone where he may see all; raises NotFoundError."""
    job = load_job(unit.session, job_id)
    if not may_see(identity, job.owner, job.vo):
        raise NotFoundError("job", str(job_id))
    return job


def get_jobs(unit: Unit, identity: Identity, job_ids: Sequence[int]) -> tuple[JobRecord, ...]:
    """Return the jobs in the order asked; raises NotFoundError for the first that the caller cannot see."""
    found = load_jobs(unit.session, job_ids)
    for job_id in job_ids:
        job = found.get(job_id)
        if job is None or not may_be_shown(identity, job.owner, job.vo):
            raise NotFoundError("job", str(job_id))
    return tuple(found[job_id] for job_id in job_ids)


def list_jobs(unit: Unit, identity: Identity, wanted: JobFilter, page_size: int = 0, page_token: str = "") -> JobPage:
    """Return the next page, in the order of ids; `page_size` 0 = 1,000.

    Raises
    ------
    InvalidInputError
        The page size is out of bounds, or the token is not one of this question's.
    """
    if not 0 <= page_size <= LARGEST_PAGE:
        raise InvalidInputError(Violation("page_size", f"{page_size} is not between 0 and {LARGEST_PAGE}"))
    query = _query(identity, wanted)
    after = position_of(page_token, _asked(query)) if page_token else 0
    size = page_size or DEFAULT_PAGE
    jobs = find_jobs(unit.session, query, after, size + 1)
    more = token_of(jobs[size - 1].id, _asked(query)) if len(jobs) > size else ""
    return JobPage(jobs[:size], more)


def get_description(unit: Unit, identity: Identity, job_id: int) -> JobDescription:
    """Return what the job's owner wrote, as it stands now, macros not filled in; raises NotFoundError."""
    return load_description(unit.session, visible_job(unit, identity, job_id).template_id)


def get_ad(unit: Unit, identity: Identity, job_id: int) -> Mapping[str, AdValue]:
    """Return a job as a ClassAd, as its policies look at it, and with what only people see of its copy.

    What hooks have said of a copy is shown until another attempt begins. Raises NotFoundError.
    """
    job = visible_job(unit, identity, job_id)
    ad = full_job_ad(job, load_description(unit.session, job.template_id), unit.now)
    if not router_of(job):
        return ad
    key = (job.id, job.attempt)
    copy = load_copies(unit.session, [key]).get(key)
    if job.is_leased and copy is not None and copy.reference:
        ad["RoutedToJobId"] = copy.reference
    return with_mirrored(ad, load_attributes(unit.session, key))


def _query(identity: Identity, wanted: JobFilter) -> JobQuery:
    owner = wanted.owner or identity.owner
    more = {"newest_first": wanted.newest_first, "copies": wanted.copies}
    if identity.sees_everything:
        own_vo = None if wanted.owner else identity.vo
        anyone = None if owner == ALL else owner
        return JobQuery(wanted.states, anyone, own_vo, wanted.pool, **more)
    # To others the jobs of an owner are as if they were not there, so they are not even looked for.
    nobody = owner not in {ALL, identity.owner}
    return JobQuery(wanted.states, identity.owner, identity.vo, wanted.pool, nothing=nobody, **more)


def _asked(query: JobQuery) -> tuple[str, ...]:
    return (
        ",".join(sorted(query.states)),
        repr(query.owner),
        repr(query.vo),
        query.pool,
        str(query.newest_first),
        str(query.copies),
    )
