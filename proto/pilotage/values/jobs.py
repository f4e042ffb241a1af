"""Answers of the server to submissions and changes of jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pilotage.values.selections import JobSelection


@dataclass(frozen=True, slots=True)
class SubmittedJobs:
    """The ids of new jobs in the order of their descriptions, and warnings for their owner; no ids = a dry run.

    `workflow` = the id of the workflow that they are, 0 = they are none.
    """

    job_ids: tuple[int, ...]
    warnings: tuple[str, ...]
    workflow: int = 0


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The result of a change of one job: its state in the protocol's words, "" = there is no such job.

    `refusal` "" = the change was made.
    """

    job_id: int
    state: str
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class JobCondition:
    """What jobs have in common: all that is set must hold.

    `states` = one of these, empty = any. Place = where a job runs, or ran last; jobs that wait or are blocked are at
    none. `owner` "" = the caller, "*" = all that the caller may see. `vo` "" = the caller's, and all if the owner is
    "*"; "*" = all that the caller may see. `since` (included) and `until` (not included) = when its state began. `name`
    = a pattern of the whole name with *, ? and [...]. `where` = a ClassAd expression that is true of the job's ad.
    `selections` and `runs` of ids = only these jobs; empty = any.
    """

    states: frozenset[str] = frozenset()
    site: str = ""
    ce: str = ""
    queue: str = ""
    node: str = ""
    owner: str = ""
    since: datetime | None = None
    until: datetime | None = None
    vo: str = ""
    group: str = ""
    name: str = ""
    pool: str = ""
    where: str = ""
    selections: tuple[JobSelection, ...] = ()
    runs: tuple[range, ...] = ()

    @property
    def has_place(self) -> bool:
        """Whether the condition is about the place of jobs."""
        return bool(self.site or self.ce or self.queue or self.node)


ALL_OWNERS = "*"
"""As the owner or the VO of a condition: all that the caller may see."""
