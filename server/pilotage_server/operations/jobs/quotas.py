"""Quotas of owners and VOs: jobs that are not final, and bytes of uploads.

Jobs are counted in the database at intervals, and the submissions to this server in between are added. So a quota of
jobs may be exceeded for a short time by submissions to other servers, and no submission pays for counting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from pilotage.errors import QuotaExceededError
from pilotage_server.core.identity import Holder, Identity, holder_of
from pilotage_server.core.jobs.files import MIB, JobLimits
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import count_live_jobs
from pilotage_server.storage.submission.parts import jobs_in_parts
from pilotage_server.storage.submission.templates import stored_bytes

COUNT_EVERY_S = 30.0
"""Interval at which the jobs of a VO are counted."""

COUNT_AGAIN_S = 2.0
"""Interval at which they are counted when a quota is exceeded: jobs may have ended."""


class JobQuota(NamedTuple):
    """A limit of jobs that have not ended: whose it is, how many there are, and how many there may be."""

    holder: str
    jobs: int
    most: int


class JobQuotas:
    """The number of jobs that are not final, by VO and owner."""

    def __init__(self, limits: JobLimits) -> None:
        self._limits = limits
        self._counts: dict[str, Counter[str]] = {}
        self._counted_s: dict[str, float] = {}

    def is_stale(self, identity: Identity, jobs: int, now_s: float) -> bool:
        """Return whether the VO's jobs are to be counted before `jobs` more are checked; `now_s` = boot clock."""
        age_s = now_s - self._counted_s.get(identity.vo, float("-inf"))
        return age_s >= (COUNT_AGAIN_S if self._fault(identity, jobs) else COUNT_EVERY_S)

    def count(self, transaction: Transaction, vo: str, now_s: float) -> None:
        """Count the jobs of a VO."""
        self._counts[vo] = Counter(count_live_jobs(transaction.session, vo))
        self._counts[vo].update(jobs_in_parts(transaction.session, vo))
        self._counted_s[vo] = now_s

    def check(self, identity: Identity, jobs: int) -> None:
        """Raise QuotaExceededError if `jobs` more are too many."""
        fault = self._fault(identity, jobs)
        if fault:
            raise QuotaExceededError(fault)

    def add(self, identity: Identity, jobs: int) -> None:
        """Add jobs that have been stored."""
        self._counts.setdefault(identity.vo, Counter())[identity.owner] += jobs

    def of(self, identity: Identity) -> Iterator[JobQuota]:
        """Yield the quotas that a submission of the caller counts towards."""
        counts = self._counts.get(identity.vo, Counter[str]())
        owner = f"{identity.owner} of the VO {identity.vo}"
        yield JobQuota(owner, counts[identity.owner], self._limits.max_live_jobs_of_owner)
        yield JobQuota(f"the VO {identity.vo}", counts.total(), self._limits.max_live_jobs_of_vo)

    def _fault(self, identity: Identity, jobs: int) -> str:
        for quota in self.of(identity):
            if quota.jobs + jobs > quota.most:
                return (
                    f"{jobs} more jobs are too many: {quota.holder} has {quota.jobs} jobs that have not ended, and may "
                    f"have {quota.most}; wait until some have ended, or remove some"
                )
        return ""


def check_upload(transaction: Transaction, identity: Identity, size: int, limits: JobLimits) -> None:
    """Raise QuotaExceededError if `size` more bytes of uploads are too many for the caller or its VO."""
    holder = holder_of(identity)
    quotas = [(f"{holder.owner} of the VO {holder.vo}", holder, limits.max_stored_bytes_of_owner)]
    if identity.pilot is None:  # pilots have no VO
        quotas.append((f"the VO {holder.vo}", Holder(holder.vo, ""), limits.max_stored_bytes_of_vo))
    for who, whose, most in quotas:
        present = stored_bytes(transaction.session, whose)
        if present + size > most:
            raise QuotaExceededError(
                f"{size} more bytes are too many: {who} has {present // MIB} MiB of uploads here, and may have "
                f"{most // MIB} MiB; uploads are removed when no job uses them any more"
            )
