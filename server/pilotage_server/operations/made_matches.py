"""Matches as pilots get them: what was bound, with what is to be run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pilotage.ad_text import ad_text
from pilotage.job_description import JobDescription
from pilotage_server.core.job_ads import full_job_ad
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.slots import SlotOffer
from pilotage_server.operations.bind_jobs import Bound
from pilotage_server.operations.match_slots import Claimed
from pilotage_server.operations.work import Match
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import load_jobs


class Made(NamedTuple):
    """What was bound to the slots of one request."""

    bound: Sequence[Bound | Claimed]
    slots: Sequence[SlotOffer]


def made_matches(unit: Unit, world: World, made: Sequence[Made]) -> list[tuple[Match, ...]]:
    """Return the matches of each request, in the order in which they were bound."""
    templates = {each.job.template_id for one in made for each in one.bound}
    descriptions = world.descriptions.of(unit, templates) if templates else {}
    ads = _ads(unit, made, descriptions)
    return [tuple(_match(world, each, descriptions, ads) for each in one.bound) for one in made]


def _ads(unit: Unit, made: Iterable[Made], descriptions: Mapping[int, JobDescription]) -> dict[int, str]:
    """Return the ads of the jobs whose slots want them, as text, by job id."""
    wanted: dict[int, int] = {}
    for one in made:
        names = {slot.name for slot in one.slots if slot.job_ad_wanted}
        wanted |= {each.job.id: each.job.template_id for each in one.bound if each.choice.slot in names}
    jobs: Mapping[int, JobRecord] = load_jobs(unit.session, wanted) if wanted else {}
    return {id_: ad_text(full_job_ad(jobs[id_], descriptions[wanted[id_]], unit.now)) for id_ in wanted}


def _match(
    world: World, made: Bound | Claimed, descriptions: Mapping[int, JobDescription], ads: Mapping[int, str]
) -> Match:
    choice, job = made.choice, made.job
    return Match(
        slot=choice.slot,
        job_id=job.id,
        attempt=made.attempt,
        lease=job.lease or world.rules.lease,
        template_id=job.template_id,
        description=descriptions[job.template_id],
        amounts=choice.amounts,
        task_queue_id=choice.task_queue.id,
        owner=job.owner,
        vo=job.vo,
        group=job.group,
        cluster=job.cluster,
        process=job.process,
        job_ad=ads.get(job.id, ""),
    )
