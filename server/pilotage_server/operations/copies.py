"""Copies that job routers have made: what they say of them, which are wanted no more, and how they are given up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilotage.errors import NotFoundError, StateConflictError
from pilotage_server.core.holds import HoldCode
from pilotage_server.core.identity import Identity
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobCause, JobState
from pilotage_server.core.leases import AttemptRecord, gone_reason
from pilotage_server.core.routes import CopyRecord, CopyReport, stamp_of
from pilotage_server.core.turns import Turn
from pilotage_server.operations.common_reports import Told
from pilotage_server.operations.job_steps import Move, steps
from pilotage_server.operations.lingering import attempts_over
from pilotage_server.operations.reports import ReportResult, record_told
from pilotage_server.operations.turns import hold_turn
from pilotage_server.operations.world import World
from pilotage_server.storage import turns as stored_turns
from pilotage_server.storage.attempts import AttemptKey, next_taken, next_unreported
from pilotage_server.storage.claims import lock_jobs
from pilotage_server.storage.copies import copies_that_bind, load_copies, set_attributes, set_nodes, set_references
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.routers import forget_router, is_known

MOST_GIVEN_UP = 1000
"""So many copies are given up in one transaction."""

MOST_UNWANTED = 1000
"""Of so many copies a router hears at a time that they are wanted no more."""

MOST_LISTED = 10_000
"""So many copies are listed at a time."""

LONGEST_WHY = 200
"""Characters of the reason why a copy is wanted no more."""

FIRST: AttemptKey = (0, 0)
"""What comes before all copies."""


@dataclass(frozen=True, slots=True)
class UnwantedCopy:
    """A copy that is to be stopped, and why."""

    job_id: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class UnwantedCopies:
    """Copies that are to be stopped, in order; `more` = there are others after them."""

    copies: tuple[UnwantedCopy, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class OpenCopy:
    """A copy that its router has still to bring to an end; `unwanted` "" = it is wanted."""

    copy: CopyRecord
    state: JobState
    unwanted: str


@dataclass(frozen=True, slots=True)
class OpenCopies:
    """Copies that are to be brought to an end, in order; `more` = there are others after them."""

    copies: tuple[OpenCopy, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The copies that were given up, with their jobs as they are now; `more` = the router has others."""

    copies: tuple[OpenCopy, ...]
    more: bool


def report_copies(
    unit: Unit, world: World, identity: Identity, turn: Turn, reports: Sequence[CopyReport]
) -> tuple[ReportResult, ...]:
    """Record what a router says of its copies, and return what became of the reports; raises TurnLostError."""
    hold_turn(unit, turn)
    lock_jobs(unit.session, (report.job_id for report in reports), rivals=unit.again)
    copies = load_copies(unit.session, (report.key for report in reports))
    mine = {key for key, copy in copies.items() if copy.router == turn.agent}
    _note_whereabouts(unit, copies, [report for report in reports if report.key in mine])
    stamp = stamp_of(turn.agent)
    _hold(unit, world, stamp, {report.key: report.held for report in reports if report.held and report.key in mine})
    told = [
        Told(identity, stamp, stamp, report.report, report.key)
        for report in reports
        if report.report is not None and report.key in mine
    ]
    recorded = iter(record_told(unit, world, told))
    return tuple(
        next(recorded) if report.key in mine else ReportResult(*report.key, _not_mine(report))
        for report in reports
        if report.report is not None
    )


def _not_mine(report: CopyReport) -> str:
    return f"attempt {report.attempt} of job {report.job_id} is no copy of this router's"


def _note_whereabouts(unit: Unit, copies: dict[tuple[int, int], CopyRecord], reports: Sequence[CopyReport]) -> None:
    """Keep what finds the copies again, their nodes, and what hooks say, before their fates have consequences."""
    references = {each.key: each.reference for each in reports if each.reference}
    new = [(key, reference) for key, reference in references.items() if copies[key].reference != reference]
    if new:
        set_references(unit.session, new)
    attributes = {each.key: each.attributes for each in reports if each.attributes}
    if attributes:
        set_attributes(unit.session, list(attributes.items()))
    nodes = {each.key: each.node for each in reports if each.node}
    if nodes:
        set_nodes(unit.session, list(nodes.items()))


def _hold(unit: Unit, world: World, stamp: str, reasons: Mapping[AttemptKey, str]) -> None:
    """Hold the jobs whose copies their targets hold, where these are still their jobs' attempts.

    So the router is not to stop a copy before it is kept here why, and the next attempt waits for the end of this one.
    """
    jobs = load_jobs(unit.session, (job_id for job_id, _ in reasons)).values() if reasons else ()
    held = [job for job in jobs if job.is_leased and (job.id, job.attempt) in reasons]
    code = {"hold_code": int(HoldCode.STARTD_HELD_JOB)}
    steps(unit, world, [Move(job, JobCause.HELD, stamp, reasons[job.id, job.attempt], code) for job in held])


def unwanted_copies(unit: Unit, router: str, after: AttemptKey = FIRST) -> UnwantedCopies:
    """Return the next copies of a router whose attempts were ended by others, and whose end it has not told."""
    found = next_taken(unit.session, stamp_of(router), after, MOST_UNWANTED + 1)
    taken = found[:MOST_UNWANTED]
    unwanted = tuple(UnwantedCopy(*attempt.key, _why_unwanted(attempt)) for attempt in taken)
    return UnwantedCopies(unwanted, len(found) > len(taken))


def _why_unwanted(attempt: AttemptRecord) -> str:
    return gone_reason(attempt)[:LONGEST_WHY]


def list_copies(unit: Unit, router: str, after: AttemptKey = FIRST) -> OpenCopies:
    """Return the next copies that a router has still to bring to an end."""
    found = next_unreported(unit.session, stamp_of(router), after, MOST_LISTED + 1)
    attempts = {attempt.key: attempt for attempt in found[:MOST_LISTED]}
    copies = load_copies(unit.session, attempts)
    jobs = load_jobs(unit.session, (job_id for job_id, _ in copies))
    # A job that ended long ago, and whose router was given up, may be removed at this moment.
    listed = tuple(_open(copies[key], attempts[key], jobs[key[0]]) for key in sorted(copies) if key[0] in jobs)
    return OpenCopies(listed, len(found) > len(attempts))


def _open(copy: CopyRecord, attempt: AttemptRecord, job: JobRecord) -> OpenCopy:
    return OpenCopy(copy, job.state, _why_unwanted(attempt) if attempt.ended is not None else "")


def give_up_copies(unit: Unit, world: World, identity: Identity, router: str) -> GivenUp:
    """Let jobs be free of a router that will never answer: at most 1,000 of them; what it has made may still run.

    Jobs that it holds wait again, and nothing is spent; those of which an attempt lingers there linger no more.
    Should the router come back after all, it hears that its copies are wanted no more.

    Raises
    ------
    NotFoundError
        Nobody knows such a router.
    StateConflictError
        It is there: some copy of it has its turn.
    """
    had = stored_turns.hold(unit.session, router)
    if had is not None and had.left(unit.now):
        raise StateConflictError(f"job router {router} is there, at {had.place}; only one that is gone is given up")
    stamp = stamp_of(router)
    found = copies_that_bind(unit.session, stamp, MOST_GIVEN_UP + 1)
    if not found and not _has_left_traces(unit, router):
        raise NotFoundError("job router", router)
    lock_jobs(unit.session, (job_id for job_id, _ in found[:MOST_GIVEN_UP]))
    still = set(copies_that_bind(unit.session, stamp, len(found)))  # others may have moved jobs until they were locked
    keys = [key for key in found[:MOST_GIVEN_UP] if key in still]
    jobs = load_jobs(unit.session, (job_id for job_id, _ in keys)).values()
    reason = f"job router {router} was given up; the copy that it made may still run"
    steps(unit, world, [Move(job, JobCause.EVICTED, identity.owner, reason) for job in jobs if job.is_leased])
    attempts_over(unit, world, [job.id for job in jobs if job.lingers])
    more = len(found) > MOST_GIVEN_UP
    if not more:
        forget_router(unit.session, router)
    return GivenUp(_given_up(unit, keys, reason), more)


def _has_left_traces(unit: Unit, router: str) -> bool:
    return is_known(unit.session, router) or bool(next_unreported(unit.session, stamp_of(router), FIRST, 1))


def _given_up(unit: Unit, keys: Sequence[AttemptKey], reason: str) -> tuple[OpenCopy, ...]:
    copies = load_copies(unit.session, keys)
    jobs = load_jobs(unit.session, (job_id for job_id, _ in copies))
    return tuple(OpenCopy(copies[key], jobs[key[0]].state, reason) for key in sorted(copies))
