"""Jobs as job routers look at them: state, ad, and what a copy is to run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from pilotage.ad_text import ad_text
from pilotage.job_description import JobDescription
from pilotage_server.core.job_ads import full_job_ad
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.job_steps import waits
from pilotage_server.core.macros import render
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import load_jobs


@dataclass(frozen=True, slots=True)
class RoutableJob:
    """A job with its ad as text, and its description with the macros filled in as for its next attempt."""

    job: JobRecord
    ad: str
    description: JobDescription


def look_at_jobs(unit: Unit, world: World, job_ids: Sequence[int]) -> Iterator[RoutableJob]:
    """Yield those of the jobs that there are, in the order asked; they may be large."""
    jobs = load_jobs(unit.session, job_ids)
    descriptions = world.descriptions.of(unit, {job.template_id for job in jobs.values()})
    there = (jobs[id_] for id_ in job_ids if id_ in jobs)
    return (_routable(job, descriptions[job.template_id], unit.now) for job in there)


def _routable(job: JobRecord, description: JobDescription, now: datetime) -> RoutableJob:
    numbered = job._replace(attempt=job.attempt + 1) if waits(job) else job
    return RoutableJob(job, ad_text(full_job_ad(job, description, now)), render(description, numbered))
