"""Dry runs of submissions: everything is checked and explained, and nothing is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pilotage.values.dependencies import Dependency
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.descriptions import DescriptionGroup
from pilotage_server.operations.explain import Explanation, explain_new_job
from pilotage_server.operations.jobs.submission import check_jobs
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction

MOST_OUTLOOKS = 5
"""The most different descriptions that are explained: each costs as much as `why`."""


@dataclass(frozen=True, slots=True)
class SubmissionOutlook:
    """What awaits the jobs of a group of descriptions; `description` = the index of the first one."""

    description: int
    jobs: int
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class DryRun:
    """The result of a dry run: warnings for the owner, and the outlooks of the first descriptions that differ."""

    warnings: tuple[str, ...]
    outlooks: tuple[SubmissionOutlook, ...]


def try_submission(
    transaction: Transaction,
    state: ServerState,
    identity: Identity,
    descriptions: Sequence[DescriptionGroup],
    group: str = "",
    *,
    dependencies: Sequence[Dependency] = (),
) -> DryRun:
    """Return what a submission would do; input files need not be uploaded yet. Raises as `submit_jobs` does."""
    checked = check_jobs(
        transaction, state, identity, descriptions, group, dependencies=dependencies, files_follow=True
    )
    outlooks = (
        SubmissionOutlook(
            one.overrides[0].submission_index,
            max(1, one.descriptions.job_count),
            explain_new_job(transaction, state, checked.account, one.candidate.description),
        )
        for one in checked.groups[:MOST_OUTLOOKS]
    )
    return DryRun(checked.warnings, tuple(outlooks))
