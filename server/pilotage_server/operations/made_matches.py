"""Matches as pilots get them: what was bound, with what is to be run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from pilotage.job_description import JobDescription
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.slots import SlotOffer
from pilotage_server.operations.bind_jobs import Bound
from pilotage_server.operations.match_slots import Claimed
from pilotage_server.operations.work import Match, MatchKind
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
    kinds = _Kinds(world.rules.lease, descriptions)
    ads = _ads(unit, world, made, descriptions)
    return [tuple([_match(each, kinds, ads) for each in one.bound]) for one in made]


def _ads(unit: Unit, world: World, made: Iterable[Made], descriptions: Mapping[int, JobDescription]) -> dict[int, str]:
    """Return the ads of the jobs whose slots want them, as text, by job id."""
    wanted: dict[int, int] = {}
    for one in made:
        names = {slot.name for slot in one.slots if slot.job_ad_wanted}
        if names:
            wanted |= {each.job.id: each.job.template_id for each in one.bound if each.choice.slot in names}
    jobs: Mapping[int, JobRecord] = load_jobs(unit.session, wanted) if wanted else {}
    text = world.ad_texts.text
    return {id_: text(jobs[id_], descriptions[template_id], unit.now) for id_, template_id in wanted.items()}


class _Kinds:
    """The kinds of matches that were made, each once."""

    def __init__(self, lease: timedelta, descriptions: Mapping[int, JobDescription]) -> None:
        self._lease = lease
        self._descriptions = descriptions
        self._known: dict[tuple[object, ...], MatchKind] = {}

    def of(self, made: Bound | Claimed) -> MatchKind:
        """Return the kind of a match."""
        choice, job = made.choice, made.job
        key = (job.template_id, job.lease, choice.task_queue.id, choice.amounts)
        kind = self._known.get(key)
        if kind is None:
            task_queue = choice.task_queue
            kind = self._known[key] = MatchKind(
                job.lease or self._lease,
                job.template_id,
                self._descriptions[job.template_id],
                choice.amounts,
                task_queue.id,
                task_queue.traits.account,
            )
        return kind


def _match(made: Bound | Claimed, kinds: _Kinds, ads: Mapping[int, str]) -> Match:
    job = made.job
    kind, ad = kinds.of(made), ads.get(job.id, "")
    return Match(made.choice.slot, job.id, made.attempt, job.cluster, job.process, kind, ad)
