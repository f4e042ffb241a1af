"""Answers of the server to submissions and changes of jobs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SubmittedJobs:
    """The ids of new jobs in the order of their descriptions, and warnings for their owner; no ids = a dry run."""

    job_ids: tuple[int, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """The result of a change of one job: its state in the protocol's words, "" = there is no such job.

    `refusal` "" = the change was made.
    """

    job_id: int
    state: str
    refusal: str = ""
