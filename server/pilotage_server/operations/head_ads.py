"""The first waiting jobs of a task queue with their whole ads, for what its traits do not tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pilotage.classads import AdValue
from pilotage_server.core.job_ads import full_job_ad
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.task_queues import load_first_waiting
from pilotage_server.storage.templates import load_descriptions


@dataclass(frozen=True, slots=True)
class HeadAd:
    """A waiting job and its ad."""

    job_id: int
    priority: int
    ad: Mapping[str, AdValue]


def head_ads(unit: Unit, task_queue_id: int, limit: int) -> list[HeadAd]:
    """Return at most `limit` jobs of the task queue that a match may take, the first to go first."""
    jobs = load_first_waiting(unit.session, task_queue_id, limit)
    descriptions = load_descriptions(unit.session, {job.template_id for job in jobs})
    return [HeadAd(job.id, job.priority, full_job_ad(job, descriptions[job.template_id], unit.now)) for job in jobs]
