"""New jobs: templates, rows and first events of a whole submission in a few statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain

from pilotage.job_description import InputFile
from pilotage_server.core.accounting import Account
from pilotage_server.core.alike import Alike
from pilotage_server.core.description_json import texts_of
from pilotage_server.core.holds import HoldCode
from pilotage_server.core.job_events import JobEvent
from pilotage_server.core.jobs import JobCause, JobState, next_state
from pilotage_server.core.races import URGENT, RaceSet, is_flagged
from pilotage_server.core.waiting import Head
from pilotage_server.operations.arrivals import arrive_together
from pilotage_server.operations.event_outbox import tell_of_many
from pilotage_server.operations.job_policies import look_at_new
from pilotage_server.operations.placing import Placement
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.new_jobs import NewJobs, insert_jobs, take_ids
from pilotage_server.storage.race_sets import insert_set
from pilotage_server.storage.templates import NewTemplate, insert_templates


@dataclass(frozen=True, slots=True)
class AcceptedJobs:
    """Alike descriptions that have been accepted, each for one job or for an array, and where they are to wait.

    `hold_reason` "" = they wait; else they are held. `repeatable` = they may be repeated, so that copies of them may
    race.
    """

    alike: Alike
    placement: Placement
    hold_reason: str = ""
    repeatable: bool = False

    @property
    def is_urgent(self) -> bool:
        """Whether the jobs say that they are urgent."""
        return is_flagged(self.alike.model, URGENT)

    @property
    def cause(self) -> JobCause:
        """Return what brings the jobs out of RECEIVED."""
        return JobCause.HELD if self.hold_reason else JobCause.ENQUEUED


def record_new_jobs(unit: Unit, world: World, account: Account, accepted: Sequence[AcceptedJobs]) -> tuple[int, ...]:
    """Store the jobs of a submission and return their ids, descriptions in order, the jobs of an array in order."""
    ids = take_ids(unit.session, sum(each.alike.jobs for each in accepted))
    ids_by_place = _parts(ids, accepted)
    templates = _templates(unit, account, accepted)
    sets = _race_sets(unit, account, accepted, ids_by_place)
    new = [_new_jobs(world, *each, ids_by_place) for each in zip(accepted, templates, sets, strict=True)]
    insert_jobs(unit.session, account, new, unit.now)
    watched: list[int] = []
    for each, stored in zip(accepted, new, strict=True):
        theirs = list(chain.from_iterable(stored.ids))
        _tell(unit, world, _first_event(unit, account, each, stored), stored, theirs)
        watched += theirs if stored.watch else ()
    if watched:
        look_at_new(unit, world, watched)
    return tuple(ids)


def _parts(ids: Sequence[int], accepted: Sequence[AcceptedJobs]) -> dict[int, Sequence[int]]:
    """Return which of the ids the jobs of each description get, by its place in the submission."""
    counts = sorted((own.place, each.alike.model.count or 1) for each in accepted for own in each.alike.own)
    ends = accumulate(count for _, count in counts)
    return {place: ids[end - count : end] for (place, count), end in zip(counts, ends, strict=True)}


def _templates(unit: Unit, account: Account, accepted: Sequence[AcceptedJobs]) -> list[list[int]]:
    """Store what was submitted and return the templates of each; descriptions that are the same have one."""
    texts = [list(texts_of(each.alike)) for each in accepted]
    jobs: Counter[str] = Counter()
    files: dict[str, Sequence[InputFile]] = {}
    for each, same in zip(accepted, texts, strict=True):
        for text in same:
            jobs[text] += each.alike.model.count or 1
            files[text] = each.alike.model.input_files
    new = [NewTemplate(text, files[text], count) for text, count in jobs.items()]
    ids = dict(zip(jobs, insert_templates(unit.session, account, new), strict=True))
    return [[ids[text] for text in same] for same in texts]


def _race_sets(
    unit: Unit, account: Account, accepted: Sequence[AcceptedJobs], ids_by_place: Mapping[int, Sequence[int]]
) -> list[int]:
    """Return to which set of jobs that may be repeated each belongs, 0 = to none, and keep these sets.

    They are those of one submission, urgent ones apart. One alone that is not urgent is never at the tail of its set.
    """
    sets: list[int] = [0] * len(accepted)
    for urgent in (False, True):
        places = [place for place, each in enumerate(accepted) if each.repeatable and each.is_urgent is urgent]
        arrays = [ids_by_place[own.place] for place in places for own in accepted[place].alike.own]
        jobs = sum(map(len, arrays))
        if jobs > 1 or (jobs and urgent):
            first, last = min(ids[0] for ids in arrays), max(ids[-1] for ids in arrays)
            insert_set(unit.session, account, RaceSet(first, last, jobs, urgent), unit.now)
            sets = [first if place in places else id_ for place, id_ in enumerate(sets)]
    return sets


def _new_jobs(
    world: World,
    each: AcceptedJobs,
    template_ids: Sequence[int],
    race_set: int,
    ids_by_place: Mapping[int, Sequence[int]],
) -> NewJobs:
    description = each.alike.model
    return NewJobs(
        ids=[ids_by_place[own.place] for own in each.alike.own],
        template_ids=template_ids,
        names=[own.name for own in each.alike.own],
        state=next_state(JobState.RECEIVED, each.cause),
        reason=each.hold_reason,
        priority=description.priority,
        task_queue_id=each.placement.task_queue_id,
        pool_id=each.placement.pool_id,
        lease=description.lease,
        watch=world.policy_judge.watch(description),
        hold_code=HoldCode.SUBMITTED_ON_HOLD.value if each.hold_reason else None,
        race_set=race_set,
    )


def _first_event(unit: Unit, account: Account, each: AcceptedJobs, stored: NewJobs) -> JobEvent:
    """Return the event by which the first of the jobs came; those of the others are like it."""
    return JobEvent(
        position=0,
        job_id=stored.ids[0][0],
        time=unit.now,
        from_state=JobState.RECEIVED,
        to_state=stored.state,
        cause=each.cause,
        reason=each.hold_reason,
        attempt=0,
        actor=account.owner,
    )


def _tell(unit: Unit, world: World, first: JobEvent, stored: NewJobs, ids: Sequence[int]) -> None:
    """Let the feed, the policies and those who match hear of jobs."""
    tell_of_many(unit, world, first, ids)
    if stored.watch:
        unit.after_commit(partial(world.look_at, ids))
    if stored.state is JobState.WAITING:
        arrive_together(unit, world, stored.task_queue_id, Head(stored.priority, ids[0]), len(ids))
