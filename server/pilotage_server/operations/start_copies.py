"""StartCopies: copies of jobs that run are made, and race with them from then on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pilotage.errors import InvalidRequirementsError
from pilotage.folding import fold
from pilotage.job_description import JobDescription
from pilotage_server.core.accounting import Account
from pilotage_server.core.alike import alone
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.races import description_of_copy, why_no_copy
from pilotage_server.operations.new_jobs import AcceptedJobs, record_new_jobs
from pilotage_server.operations.placing import Placer
from pilotage_server.operations.races import present_races
from pilotage_server.operations.task_queueing import hold_places
from pilotage_server.operations.world import World
from pilotage_server.storage import races as stored
from pilotage_server.storage.attempts import sites_of
from pilotage_server.storage.claims import lock_jobs
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.templates import load_descriptions


class NewRival(NamedTuple):
    """A copy of a job that is to be made to race with it, and why."""

    job_id: int
    reason: str


class StartedCopy(NamedTuple):
    """What came of it: the copy, 0 = none, and why there is none."""

    job_id: int
    copy_id: int = 0
    refusal: str = ""


def start_copies(unit: Unit, world: World, wanted: Sequence[NewRival]) -> tuple[StartedCopy, ...]:
    """Make copies of different jobs wherever one can be made, and return one answer for each, in the order asked."""
    hold_places(unit)
    ids = [each.job_id for each in wanted]
    lock_jobs(unit.session, ids, rivals=unit.again)
    jobs = load_jobs(unit.session, ids)
    descriptions = load_descriptions(unit.session, {job.template_id for job in jobs.values()})
    races = present_races(unit, jobs)
    copies = stored.load_rivals(unit.session, races.values())
    were = sites_of(unit.session, [*jobs, *(copy.id for same in copies.values() for copy in same)])
    placer = Placer(unit, world)

    def start(each: NewRival) -> StartedCopy:
        job = jobs.get(each.job_id)
        if job is None:
            return StartedCopy(each.job_id, refusal=f"there is no job {each.job_id}")
        theirs = copies.get(job.id, [])
        refusal = why_no_copy(job, descriptions[job.template_id], theirs)
        if refusal:
            return StartedCopy(job.id, refusal=refusal)
        used = (were.get(id_, ()) for id_ in (job.id, *(copy.id for copy in theirs)))
        copied = description_of_copy(descriptions[job.template_id], frozenset[str]().union(*used))
        return _made(unit, placer, job, copied, each.reason, goes_on=job.id in races)

    return tuple(start(each) for each in wanted)


def _made(
    unit: Unit, placer: Placer, job: JobRecord, copied: JobDescription, reason: str, *, goes_on: bool
) -> StartedCopy:
    asked = {fold(site) for site in copied.sites} - {"any"}
    if asked and asked <= {fold(site) for site in copied.banned_sites}:
        return StartedCopy(job.id, refusal=f"job {job.id} and its copies were on every site that it asks for")
    account = Account(job.vo, job.group, job.owner)
    try:
        placement = placer.place(account, copied)
    except InvalidRequirementsError as error:
        # The tree in force may declare a parameter otherwise than the one that the job was accepted under.
        return StartedCopy(job.id, refusal=str(error))
    (alike,) = alone([copied])
    (copy_id,) = record_new_jobs(unit, placer.world, account, [AcceptedJobs(alike, placement)])
    stored.enter(unit.session, job, copy_id, reason, unit.now, goes_on=goes_on)
    return StartedCopy(job.id, copy_id)
