"""What policies want of jobs: looked for without disturbing anybody, then done where it is still wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pilotage.job_description import JobDescription
from pilotage_server.core.ad_evaluator import FoldedAd
from pilotage_server.core.job_ads import described_ad, full_job_ad, present_ad
from pilotage_server.core.job_attributes import has_macro
from pilotage_server.core.job_changes import JobChange
from pilotage_server.core.job_policies import UNDER_POLICY, Verdict
from pilotage_server.core.job_record import JobRecord, PolicyWatch
from pilotage_server.core.jobs import JobCause
from pilotage_server.operations.change_jobs import what_changes
from pilotage_server.operations.job_steps import Move, steps
from pilotage_server.operations.placing import Placer
from pilotage_server.operations.task_queueing import hold_places
from pilotage_server.operations.world import World
from pilotage_server.storage import watched
from pilotage_server.storage.claims import lock_jobs
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.templates import load_descriptions

ACTOR = "server"

MOST_AT_ONCE = 1000
"""Of one submission so many jobs are looked at before they can be matched; the others follow within moments."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at so many jobs found: ids of those with which something is to be done.

    `place` = how far a round has come by it, None = it is over.
    """

    jobs: int
    wanting: tuple[int, ...]
    place: watched.Place | None = None


def look_at_changed(unit: Unit, world: World, most: int) -> Seen:
    """Return with which of the next jobs that have changed their policies want something done."""
    jobs = load_jobs(unit.session, world.changed_jobs(unit.now, most)).values()
    return Seen(len(jobs), tuple(_wants(unit, world, jobs, _descriptions(unit, jobs))))


def look_on(unit: Unit, world: World, place: watched.Place, most: int) -> Seen:
    """Return the same for the next jobs of a round, at most so many."""
    jobs = watched.next_watched(unit.session, place, most)
    if not jobs:
        return Seen(0, ())
    wanting = tuple(_wants(unit, world, jobs, _descriptions(unit, jobs)))
    return Seen(len(jobs), wanting, (jobs[-1].watch.value, jobs[-1].id))


def look_at_new(unit: Unit, world: World, job_ids: Sequence[int]) -> None:
    """Do at once what the policies of jobs want that have come in this transaction, so that none starts before."""
    jobs = load_jobs(unit.session, job_ids[:MOST_AT_ONCE]).values()
    wanting = tuple(_wants(unit, world, jobs, _descriptions(unit, jobs)))
    if wanting:
        act_on(unit, world, wanting)


def act_on(unit: Unit, world: World, job_ids: Sequence[int]) -> tuple[JobRecord, ...]:
    """Do with these jobs what their policies want now; return those that have moved, as they are then."""
    hold_places(unit)
    lock_jobs(unit.session, job_ids, rivals=unit.again)
    jobs = load_jobs(unit.session, job_ids)
    descriptions = _descriptions(unit, jobs.values())
    wants = _wants(unit, world, jobs.values(), descriptions)
    placer = Placer(unit, world)
    moves = [
        Move(jobs[job_id], verdict.cause, ACTOR, verdict.reason, changes)
        for job_id, verdict in wants.items()
        if (changes := _changes(placer, jobs[job_id], verdict, descriptions)) is not None
    ]
    moved = tuple(record for record in steps(unit, world, moves) if record is not None)
    again = unit.now + world.rules.policies.interval
    unit.after_commit(lambda: world.look_again([record.id for record in moved], again))
    return moved


def watch_all(unit: Unit, world: World) -> int:
    """Put every live job under the operators' policies; return for how many these are new."""
    least = world.policy_judge.watch_of_all
    return watched.watch_all(unit.session, least) if least > PolicyWatch.NEVER else 0


def _wants(
    unit: Unit, world: World, jobs: Iterable[JobRecord], descriptions: Mapping[int, JobDescription]
) -> dict[int, Verdict]:
    wants: dict[int, Verdict] = {}
    ads = _Ads(unit.now)
    for job in jobs:
        description = descriptions.get(job.template_id)
        if description is None or job.state not in UNDER_POLICY:
            continue  # without its description it has been edited or removed this moment, and is looked at again
        verdict = world.policy_judge.verdict(job, description, ads.of(job, description), unit.now)
        if verdict is not None:
            wants[job.id] = verdict
    return wants


class _Ads:
    """The ads of the jobs of one look; what those of one description say alike is put together once."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._alike: dict[int, FoldedAd | None] = {}

    def of(self, job: JobRecord, description: JobDescription) -> FoldedAd:
        """Return the whole ad of a job."""
        if job.template_id not in self._alike:
            said = described_ad(job, description)
            self._alike[job.template_id] = None if any(map(has_macro, said.values())) else FoldedAd(said)
        alike = self._alike[job.template_id]
        if alike is None:
            return FoldedAd(full_job_ad(job, description, self._now))
        return FoldedAd(present_ad(job, self._now), alike)


def _descriptions(unit: Unit, jobs: Iterable[JobRecord]) -> dict[int, JobDescription]:
    return load_descriptions(unit.session, {job.template_id for job in jobs})


def _changes(
    placer: Placer, job: JobRecord, verdict: Verdict, descriptions: Mapping[int, JobDescription]
) -> Mapping[str, Any] | None:
    """Return what changes in the job's record beside its state; None = it cannot be done."""
    match verdict.cause:
        case JobCause.HELD:
            return {"hold_code": int(verdict.code), "hold_subcode": verdict.subcode}
        case JobCause.RELEASED:
            placed = what_changes(placer, job, JobChange.RELEASE, descriptions[job.template_id])
            return None if isinstance(placed, str) else placed
        case _:
            return {}
