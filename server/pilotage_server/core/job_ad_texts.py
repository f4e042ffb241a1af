"""Whole ads of jobs as text, for many jobs: what those of one description say alike is written once.

Rules
-----
What comes out is the text of `job_ads.full_job_ad`, which is the measure of it in the tests. Where a description has
macros in what its ads say, each ad is made for itself.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from pilotage.ad_text import ad_text, assignments
from pilotage.job_description import JobDescription
from pilotage_server.core.job_ads import described_ad, full_job_ad, present_ad
from pilotage_server.core.job_attributes import has_macro
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.remembered import MOST_BYTES, MOST_REMEMBERED, Remembered

_OF_A_NAME = 100
"""Bytes that it takes to keep a name beside the text."""


class _Alike(NamedTuple):
    """What the ads of the jobs of one template say alike."""

    names: frozenset[str]
    text: str


class JobAdTexts:
    """Writes ads of jobs, and remembers what those of the templates that it has seen lately say alike.

    A template is of one owner's, never changes, and its id is not given again.
    """

    def __init__(self, most: int = MOST_REMEMBERED, most_bytes: int = MOST_BYTES) -> None:
        self._alike = Remembered[int, _Alike | None](most, most_bytes)

    def text(self, job: JobRecord, description: JobDescription, now: datetime) -> str:
        """Return the whole ad of a job as it is at `now`; the description is its template's, macros not filled in."""
        alike = self._of_template(job, description)
        if alike is not None:
            present = present_ad(job, now)
            if alike.names.isdisjoint(present):
                return f"[{alike.text}; {assignments(present)}]"
        return ad_text(full_job_ad(job, description, now))

    def _of_template(self, job: JobRecord, description: JobDescription) -> _Alike | None:
        try:
            return self._alike.known[job.template_id]
        except KeyError:
            said = described_ad(job, description)
            alike = None if any(map(has_macro, said.values())) else _Alike(frozenset(said), assignments(said))
            self._alike.put(job.template_id, alike, _OF_A_NAME * len(said) + (len(alike.text) if alike else 0))
            return alike
