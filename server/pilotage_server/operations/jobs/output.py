"""Following the output of a job: the tail of a running attempt, then what the attempt left, then the next attempt."""

from __future__ import annotations

from dataclasses import dataclass

from pilotage.errors import StateConflictError
from pilotage.job_description import render_text
from pilotage.jobs.files import NULL, stream_files
from pilotage.values.attempts import Outcome, TailStream
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.files import OutputFile
from pilotage_server.core.jobs.record import JobRecord, router_of
from pilotage_server.core.jobs.states import FINAL, JobState
from pilotage_server.operations.attempts.tails import RENEWED_WITHIN
from pilotage_server.operations.jobs.queries import visible_job
from pilotage_server.storage import tails
from pilotage_server.storage.attempts import load_attempts
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.submission.templates import last_ended_attempt, load_description, outputs_of

_STARTED = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING})


@dataclass(frozen=True, slots=True)
class OutputPosition:
    """How far a follower has read: `offset` bytes of `attempt`, and all of the attempts up to `after`.

    `attempt` 0 = none has been chosen yet.
    """

    attempt: int = 0
    offset: int = 0
    after: int = 0

    def past(self, attempt: int) -> OutputPosition:
        """Return the position after the end of an attempt."""
        return OutputPosition(after=attempt)


@dataclass(frozen=True, slots=True)
class OutputView:
    """What there is after a position: `content` at `position`.

    `file` = the stored stream of an ended attempt, to be read from `position`; None = there is none. `is_ended` = the
    attempt has ended, `partial` = how it was stopped, "" = it was not. `wanted` = its pilot has to be asked for the
    stream. `is_over` = nothing more comes.
    """

    position: OutputPosition
    content: bytes = b""
    file: OutputFile | None = None
    is_ended: bool = False
    partial: str = ""
    wanted: TailStream | None = None
    stamp: str = ""
    is_over: bool = False


def view_output(
    transaction: Transaction, identity: Identity, job_id: int, position: OutputPosition, *, is_error: bool, follow: bool
) -> OutputView:
    """Return the next part of a stream of a job; `follow` = what comes later counts too.

    Raises
    ------
    NotFoundError
        The caller may not see such a job.
    StateConflictError
        The stream is not kept, or it has nothing yet and is not followed.
    """
    job = visible_job(transaction, identity, job_id)
    name = _stream_name(transaction, job, is_error)
    attempt = position.attempt or _next_attempt(transaction, job, position.after)
    if not attempt:
        if not follow:
            raise StateConflictError(f"job {job_id} is {job.state}, and no attempt of it has run yet")
        return OutputView(position, is_over=job.state in FINAL)
    if attempt != position.attempt:
        position = OutputPosition(attempt, 0, position.after)
    if job.is_leased and job.attempt == attempt:
        return _live_view(transaction, job, position, is_error=is_error, follow=follow)
    return _ended_view(transaction, job, position, name, is_error=is_error, follow=follow)


def _stream_name(transaction: Transaction, job: JobRecord, is_error: bool) -> str:
    names = stream_files(load_description(transaction.session, job.template_id))
    name = render_text(names[is_error], job.cluster, job.process)
    if name == NULL:
        stream = "error" if is_error else "output"
        raise StateConflictError(f"the standard {stream} of job {job.id} goes to {NULL}, by its description")
    return name


def _next_attempt(transaction: Transaction, job: JobRecord, after: int) -> int:
    """Return the attempt to show: the running one, else the last that has ended; 0 = there is none after `after`."""
    if job.state in _STARTED and job.attempt > after:
        return job.attempt
    ended = last_ended_attempt(transaction.session, job.id)
    return ended if ended > after else 0


def _live_view(
    transaction: Transaction, job: JobRecord, position: OutputPosition, *, is_error: bool, follow: bool
) -> OutputView:
    router = router_of(job)
    if router:
        if not follow:
            why = f"the job router {router} runs it elsewhere, and its output comes at its end"
            raise StateConflictError(f"job {job.id} cannot be looked into: {why}")
        return OutputView(position)
    stream = TailStream(job.id, position.attempt, is_error)
    tail = tails.load_tail(transaction.session, stream)
    if tail is None or tail.wanted.until < transaction.now:
        return OutputView(position, wanted=stream, stamp=job.pilot_stamp)
    content = b""
    if tail.end > position.offset:
        kept = tails.load_content(transaction.session, stream)
        begin = max(position.offset, kept.start)
        position, content = OutputPosition(position.attempt, begin, position.after), kept.content[begin - kept.start :]
    is_renewed = tail.wanted.until >= transaction.now + RENEWED_WITHIN
    is_over = tail.is_posted and not follow
    return OutputView(
        position,
        content,
        wanted=None if is_renewed or is_over else stream,
        stamp=job.pilot_stamp,
        is_over=is_over,
    )


def _ended_view(
    transaction: Transaction, job: JobRecord, position: OutputPosition, name: str, *, is_error: bool, follow: bool
) -> OutputView:
    found = [file for file in outputs_of(transaction.session, job.id, position.attempt) if file.name == name]
    content = b""
    if not found:  # the pilot may have sent more than the follower has read
        stream = TailStream(job.id, position.attempt, is_error)
        tail = tails.load_tail(transaction.session, stream)
        if tail is not None and tail.end > position.offset:
            kept = tails.load_content(transaction.session, stream)
            begin = max(position.offset, kept.start)
            position = OutputPosition(position.attempt, begin, position.after)
            content = kept.content[begin - kept.start :]
    return OutputView(
        position,
        content,
        found[0] if found else None,
        is_ended=True,
        partial=stop_of(transaction, job.id, position.attempt),
        is_over=not follow or (job.state in FINAL and job.attempt == position.attempt),
    )


def stop_of(transaction: Transaction, job_id: int, attempt: int) -> str:
    """Return how an ended attempt was stopped, so that its output is partial; "" = its payload ended by itself."""
    ended = load_attempts(transaction.session, [(job_id, attempt)]).get((job_id, attempt))
    if ended is None or ended.ended is None or ended.outcome in _WHOLE:
        return ""
    reason = ended.reason.removeprefix(f"{ended.outcome}: ")
    return f"{ended.outcome}: {reason}" if reason not in ("", ended.outcome) else ended.outcome


_WHOLE = frozenset({"", Outcome.EXITED.value})
