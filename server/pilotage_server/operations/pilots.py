"""Pilots: registered for a queue, followed by what their batch system says, listed, drained."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from pilotage.errors import InvalidInputError, NotFoundError, Violation
from pilotage.resource_tree import QueueId
from pilotage_server.core.identity import Identity, PilotCredential
from pilotage_server.core.jobs import JobCause
from pilotage_server.core.pilots import (
    ALIVE,
    OVER,
    GlideinReport,
    PilotRecord,
    PilotState,
    is_gone_unasked,
)
from pilotage_server.operations.lost_attempts import Loss, lose
from pilotage_server.operations.report_state import end_pilot
from pilotage_server.operations.world import World
from pilotage_server.storage import pilots as stored
from pilotage_server.storage.attempts import count_live, load_unreported
from pilotage_server.storage.claims import lock_jobs
from pilotage_server.storage.empty_pilots import has_run_any
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import load_jobs

MOST_AT_ONCE = 1000

LOST_IS_NEWS = timedelta(hours=1)
"""So long a lost pilot is shown among those that live."""


@dataclass(frozen=True, slots=True)
class PilotInfo:
    """A pilot and how many jobs it holds."""

    pilot: PilotRecord
    jobs: int


@dataclass(frozen=True, slots=True)
class NewPilots:
    """What is asked for: so many pilots of a queue, for these VOs (none = all that the queue admits)."""

    queue: QueueId
    count: int
    vos: tuple[str, ...] = ()


def register_pilots(
    unit: Unit, world: World, identity: Identity, wanted: NewPilots, new_stamp: Callable[[], str]
) -> tuple[PilotCredential, ...]:
    """Make new pilots of a queue, and return what their tokens are to say.

    Raises
    ------
    NotFoundError
        The tree does not have the queue.
    InvalidInputError
        The count is not between 1 and 1,000.
    """
    if not 1 <= wanted.count <= MOST_AT_ONCE:
        raise InvalidInputError(Violation("count", f"is {wanted.count}; 1 to {MOST_AT_ONCE} pilots are made at once"))
    if not world.tree.knows(wanted.queue):
        raise NotFoundError("queue", str(wanted.queue))
    vos = tuple(sorted(set(wanted.vos)))
    new = [stored.NewPilot(new_stamp(), wanted.queue, vos, identity.owner) for _ in range(wanted.count)]
    stored.insert_pilots(unit.session, new, unit.now)
    return tuple(PilotCredential(pilot.stamp, pilot.queue, pilot.vos) for pilot in new)


def renewable_credentials(unit: Unit, stamps: Sequence[str]) -> tuple[PilotCredential, ...]:
    """Return what new tokens of these pilots are to say; those that are not known or have ended get none."""
    known = stored.load_pilots(unit.session, stamps)
    live = [pilot for stamp, pilot in sorted(known.items()) if pilot.state is not PilotState.ENDED]
    return tuple(PilotCredential(pilot.stamp, pilot.queue, pilot.vos) for pilot in live)


class Heard(NamedTuple):
    """Of reported glideins the stamps that nobody knows, and those of ended ones whose pilots had run a job."""

    unknown: tuple[str, ...]
    worked: tuple[str, ...]


def report_glideins(unit: Unit, world: World, identity: Identity, reports: Sequence[GlideinReport]) -> Heard:
    """Record what a batch system says of glideins.

    A glidein that is gone ends the leases of its pilot at once, and one that ran no job came back empty, unless it was
    to end; a pilot that has said good-bye itself stays as it was. The end of each is worth one look at the pilot as it
    is then.
    """
    known = stored.load_pilots(unit.session, [report.stamp for report in reports])
    there = [report for report in reports if report.state is not PilotState.ENDED and report.stamp in known]
    awaited = {report.stamp for report in there if known[report.stamp].is_awaited}
    stored.change_pilots(unit.session, awaited, {"glidein_seen": unit.now})
    for report in there:
        _note_there(unit, known[report.stamp], report)
    gone = [report for report in reports if report.state is PilotState.ENDED and report.stamp in known]
    worked = [report.stamp for report in gone if _note_gone(unit, world, identity, report)]
    return Heard(tuple(report.stamp for report in reports if report.stamp not in known), tuple(worked))


def _note_there(unit: Unit, pilot: PilotRecord, report: GlideinReport) -> None:
    _note_id(unit, pilot, report)
    if pilot.is_awaited and pilot.state is not PilotState.SUBMITTED:
        stored.put_on_its_way(unit.session, pilot, report.reason)


def _note_gone(unit: Unit, world: World, identity: Identity, report: GlideinReport) -> bool:
    """Let a pilot whose glidein is gone end, if it has not, and return whether it had run a job."""
    pilot = stored.load_pilots(unit.session, [report.stamp]).get(report.stamp)
    if pilot is None:  # it ended long ago, and has just been forgotten
        return False
    _note_id(unit, pilot, report)
    has_run = has_run_any(unit.session, pilot.stamp)
    if pilot.state is not PilotState.ENDED:
        reason = report.reason or "its glidein is gone"
        unasked = is_gone_unasked(pilot, report, queue_known=world.tree.knows(pilot.queue))
        _lose_all(unit, world, pilot, reason, actor=identity.owner)
        end_pilot(unit, world, pilot.stamp, reason, came_back_empty=unasked and not has_run)
    return has_run


def _note_id(unit: Unit, pilot: PilotRecord, report: GlideinReport) -> None:
    if report.glidein_id and report.glidein_id != pilot.glidein_id:
        stored.change_pilots(unit.session, [pilot.stamp], {"glidein_id": report.glidein_id})


def _lose_all(unit: Unit, world: World, pilot: PilotRecord, reason: str, *, actor: str) -> None:
    ids = [attempt.job_id for attempt in load_unreported(unit.session, pilot.stamp) if attempt.ended is None]
    lock_jobs(unit.session, ids, rivals=unit.again)  # whether a job has copies decides what a last loss means
    # Others may have moved jobs until they were locked: ended attempts, or given them to other pilots.
    held = [job for job in load_jobs(unit.session, ids).values() if job.is_leased and job.pilot_stamp == pilot.stamp]
    why = f"the glidein of pilot {pilot.stamp} is gone: {reason}"
    lose(unit, world, [Loss(job, JobCause.LEASE_LOST, why) for job in held], actor=actor)


def list_pilots(unit: Unit, queue: QueueId | None = None, *, ended: bool = False) -> tuple[PilotInfo, ...]:
    """Return the pilots of a queue (None = of all), the newest first; those that are over only where `ended`.

    One that was lost of late is shown in any case: it may still be there, with its jobs.
    """
    found = stored.list_pilots(unit.session, queue, ended=ended, lost_since=unit.now - LOST_IS_NEWS)
    jobs = count_live(unit.session)
    return tuple(PilotInfo(pilot, jobs.get(pilot.stamp, 0)) for pilot in found)


def drain_pilots(unit: Unit, world: World, stamps: Sequence[str], reason: str, *, evict: bool) -> tuple[str, ...]:
    """Let pilots end, once their jobs have or at once, and return the stamps that are not known or have ended.

    One that is only registered has nothing to finish: it ends here and now. One that comes, or ends, at the same moment
    is what it has become by then.

    Raises
    ------
    InvalidInputError
        No reason is given.
    """
    if not reason.strip():
        raise InvalidInputError(Violation("reason", "say why, for those who will ask"))
    live = _not_over(unit, stamps)
    stored.change_pilots(unit.session, live, {"drain_reason": reason, "drain_evicts": evict})
    live = _not_over(unit, live)  # from here on nobody else moves them
    for stamp in [each for each, pilot in live.items() if pilot.state is PilotState.REGISTERED]:
        end_pilot(unit, world, stamp, f"it was drained before it came: {reason}")
    heard = [stamp for stamp, pilot in live.items() if pilot.state in ALIVE]
    stored.change_pilots(unit.session, heard, {"state": PilotState.DRAINING.value})
    for stamp in heard:
        unit.after_commit(partial(world.call_pilot, stamp))
    return tuple(stamp for stamp in dict.fromkeys(stamps) if stamp not in live)


def _not_over(unit: Unit, stamps: Collection[str]) -> dict[str, PilotRecord]:
    """Return those of the pilots that are on their way or live, in order, as they are now."""
    known = stored.load_pilots(unit.session, stamps)
    return {each: known[each] for each in dict.fromkeys(stamps) if each in known and known[each].state not in OVER}
