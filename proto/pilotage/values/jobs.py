"""Answers of the server to submissions and changes of jobs."""

from __future__ import annotations

from dataclasses import dataclass


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
