"""How much one submission, one job and one file may be, and how long finished things are kept.

Rules
-----
Values with their defaults only; who checks them says which bound was passed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Bounds of what is submitted and stored.

    `max_jobs_per_call` counts the elements of all arrays of one submission; `max_text` is the longest single
    text of a description, in characters. `max_output_bytes` is the sum over the output files of one attempt.
    `optimizers` names the steps of the optimizer chain, in order.
    """

    max_jobs_per_call: int = 1_000_000
    max_descriptions_per_call: int = 20_000
    max_files: int = 10_000
    max_text: int = 1_000_000
    shortest_lease: timedelta = timedelta(seconds=30)
    longest_lease: timedelta = timedelta(days=1)
    max_file_bytes: int = 1024 * MIB
    max_output_bytes: int = 4096 * MIB
    optimizers: tuple[str, ...] = ("sanity", "requirements", "expressions", "task queue")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what is over is kept; `batch` bounds what one transaction removes."""

    finished_jobs: timedelta = timedelta(days=30)
    uploads: timedelta = timedelta(days=1)
    requests: timedelta = timedelta(days=1)
    batch: int = 200
