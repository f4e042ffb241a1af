"""Copies that job routers have made: what they say of them, which are wanted no more, and how they are given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pilotage.errors import NotFoundError, StateConflictError
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
from pilotage_server.storage.attempts import load_taken, load_unreported
from pilotage_server.storage.claims import lock_jobs
from pilotage_server.storage.copies import load_copies, set_nodes, set_references
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.lingering import lingering_of
from pilotage_server.storage.routers import forget_router, is_known
from pilotage_server.storage.turns import find as find_turn

_EVER = datetime(1970, 1, 1, tzinfo=UTC)

MOST_GIVEN_UP = 1000
"""So many copies are given up in one transaction."""


@dataclass(frozen=True, slots=True)
class UnwantedCopy:
    """A copy that is to be stopped, and why."""

    job_id: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class CopiesAnswer:
    """What became of the reports, in order, and which of all the router's copies are wanted no more."""

    results: tuple[ReportResult, ...]
    unwanted: tuple[UnwantedCopy, ...]


@dataclass(frozen=True, slots=True)
class OpenCopy:
    """A copy that its router has still to bring to an end; `unwanted` "" = it is wanted."""

    copy: CopyRecord
    state: JobState
    unwanted: str


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The copies that were given up, with their jobs as they are now; `more` = the router has others."""

    copies: tuple[OpenCopy, ...]
    more: bool


def report_copies(
    unit: Unit, world: World, identity: Identity, turn: Turn, reports: Sequence[CopyReport]
) -> CopiesAnswer:
    """Record what a router says of its copies; raises TurnLostError."""
    hold_turn(unit, turn)
    lock_jobs(unit.session, (report.job_id for report in reports), rivals=unit.again)
    copies = load_copies(unit.session, (report.key for report in reports))
    mine = {key for key, copy in copies.items() if copy.router == turn.agent}
    _note_whereabouts(unit, copies, [report for report in reports if report.key in mine])
    stamp = stamp_of(turn.agent)
    told = [
        Told(identity, stamp, stamp, report.report, report.key)
        for report in reports
        if report.report is not None and report.key in mine
    ]
    recorded = iter(record_told(unit, world, told))
    results = tuple(
        next(recorded) if report.key in mine else ReportResult(*report.key, _not_mine(report))
        for report in reports
        if report.report is not None
    )
    return CopiesAnswer(results, unwanted_copies(unit, turn.agent))


def _not_mine(report: CopyReport) -> str:
    return f"attempt {report.attempt} of job {report.job_id} is no copy of this router's"


def _note_whereabouts(unit: Unit, copies: dict[tuple[int, int], CopyRecord], reports: Sequence[CopyReport]) -> None:
    """Keep what finds the copies again, and their nodes, before anything is concluded from how they fare."""
    references = {each.key: each.reference for each in reports if each.reference}
    new = [(key, reference) for key, reference in references.items() if copies[key].reference != reference]
    if new:
        set_references(unit.session, new)
    nodes = {each.key: each.node for each in reports if each.node}
    if nodes:
        set_nodes(unit.session, list(nodes.items()))


def unwanted_copies(unit: Unit, router: str) -> tuple[UnwantedCopy, ...]:
    """Return the copies of a router whose attempts were ended by others, and whose end it has not told."""
    taken = load_taken(unit.session, [stamp_of(router)], _EVER)
    return tuple(UnwantedCopy(*attempt.key, gone_reason(attempt)) for attempt in taken)


def list_copies(unit: Unit, router: str) -> tuple[OpenCopy, ...]:
    """Return the copies that a router has still to bring to an end, the oldest first."""
    attempts = {attempt.key: attempt for attempt in load_unreported(unit.session, stamp_of(router))}
    copies = load_copies(unit.session, attempts)
    jobs = load_jobs(unit.session, (job_id for job_id, _ in copies))
    found = [_open(copy, attempts[copy.key], jobs[copy.job_id]) for copy in copies.values()]
    return tuple(sorted(found, key=lambda each: (each.copy.routed, each.copy.key)))


def _open(copy: CopyRecord, attempt: AttemptRecord, job: JobRecord) -> OpenCopy:
    return OpenCopy(copy, job.state, gone_reason(attempt) if attempt.ended is not None else "")


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
    had = find_turn(unit.session, router)
    if had is not None and had.left(unit.now):
        raise StateConflictError(f"job router {router} is there, at {had.place}; only one that is gone is given up")
    stamp = stamp_of(router)
    lock_jobs(unit.session, (attempt.job_id for attempt in load_unreported(unit.session, stamp)))
    attempts = load_unreported(unit.session, stamp)
    if not attempts and not is_known(unit.session, router):
        raise NotFoundError("job router", router)
    jobs = load_jobs(unit.session, (attempt.job_id for attempt in attempts))
    lingering = lingering_of(unit.session, [attempt.key for attempt in attempts if attempt.ended is not None])
    # these keep their jobs from waiting for another place
    bound = [attempt for attempt in attempts if attempt.ended is None or attempt.key in lingering]
    given_up = bound[:MOST_GIVEN_UP]
    held = [jobs[attempt.job_id] for attempt in given_up if attempt.ended is None]
    reason = f"job router {router} was given up; the copy that it made may still run"
    steps(unit, world, [Move(job, JobCause.EVICTED, identity.owner, reason) for job in held])
    attempts_over(unit, world, [attempt.job_id for attempt in given_up if attempt.ended is not None])
    more = len(bound) > len(given_up)
    if not more:
        forget_router(unit.session, router)
    return GivenUp(_given_up(unit, given_up, reason), more)


def _given_up(unit: Unit, attempts: Sequence[AttemptRecord], reason: str) -> tuple[OpenCopy, ...]:
    copies = load_copies(unit.session, (attempt.key for attempt in attempts))
    jobs = load_jobs(unit.session, (job_id for job_id, _ in copies))
    return tuple(OpenCopy(copies[key], jobs[key[0]].state, reason) for key in sorted(copies))
