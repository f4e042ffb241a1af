"""Race copies of jobs."""

from __future__ import annotations

from typing import NamedTuple


class NewRaceCopy(NamedTuple):
    """A race copy to start, and why."""

    job_id: int
    reason: str


class StartedRaceCopy(NamedTuple):
    """The result of a requested race copy: its id, 0 = there is none, and why not."""

    job_id: int
    copy_id: int = 0
    refusal: str = ""
