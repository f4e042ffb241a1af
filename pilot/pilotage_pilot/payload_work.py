"""The part of a pilot's shell that is about payloads: what the machine wants of them, done in the workshop.

Rules
-----
What fails for one attempt in a way that nobody has foreseen fails for that attempt alone: other jobs run in this
pilot. Nobody knows then whose fault it is, so the job goes to another place, as if the node were to blame: a job lost
for an error of ours would be the greater harm. Output is tried again, as long as there is patience for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, assert_never

import structlog

from pilotage.errors import PilotageError, WorldError
from pilotage.job_folders import JobAtFaultError
from pilotage_pilot.core import events as ev
from pilotage_pilot.core import instructions as ins
from pilotage_pilot.core.jobs import AttemptKey, Outcome
from pilotage_pilot.link.failures import failure_of
from pilotage_pilot.supervise.base import NodeAtFaultError, Workshop

log = structlog.get_logger()

TIDY_AFTER_S = 0.02
"""So long after its end the folder of an attempt is removed: first the server hears of it and the next job starts."""

_LONGEST_REASON = 300

Start = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
"""Starts work that ends with the pilot at the latest."""


class PayloadWork:
    """Does what the machine wants of payloads, and lets it hear what comes of that."""

    def __init__(self, workshop: Workshop, start: Start, feed: Callable[[ev.Event], None]) -> None:
        self._workshop = workshop
        self._start = start
        self._feed = feed
        self._work: dict[AttemptKey, asyncio.Task[None]] = {}

    def do(self, instruction: ins.PayloadInstruction) -> None:
        """Do, or begin, what is wanted."""
        match instruction:
            case ins.PrepareJob():
                self._prepare(instruction)
            case ins.StartPayload(key):
                self._start_payload(key)
            case ins.KillPayload(key):
                self._kill(key)
            case ins.StoreOutput(key):
                self._work_on(key, self._store(key))
            case ins.ForgetAttempt(key):
                self._leave_off(key)
                asyncio.get_running_loop().call_later(TIDY_AFTER_S, self._workshop.forget, key)
            case _:
                self._signal(instruction)

    def _signal(self, instruction: ins.SignalInstruction) -> None:
        match instruction:
            case ins.StopPayload(key):
                self._workshop.stop(key)
            case ins.SuspendPayload(key):
                self._workshop.suspend(key)
            case ins.ContinuePayload(key):
                self._workshop.resume(key)
            case ins.WarnPayload(key, left_s):
                self._workshop.warn(key, left_s)
            case _:
                assert_never(instruction)

    def _work_on(self, key: AttemptKey, work: Coroutine[Any, Any, None]) -> None:
        task = self._start(work)
        self._work[key] = task
        task.add_done_callback(lambda done: self._forget_task(key, done))

    def _forget_task(self, key: AttemptKey, task: asyncio.Task[None]) -> None:
        if self._work.get(key) is task:
            del self._work[key]

    def _leave_off(self, key: AttemptKey) -> bool:
        task = self._work.pop(key, None)
        return task is not None and task.cancel()

    def _prepare(self, instruction: ins.PrepareJob) -> None:
        key = instruction.job.key
        try:
            self._workshop.prepare(instruction)
        except Exception as error:
            self._feed(_start_failed(key, error))
            return
        if instruction.job.description.input_files:
            self._work_on(key, self._fetch(key))
        else:
            self._feed(ev.JobPrepared(key))

    async def _fetch(self, key: AttemptKey) -> None:
        try:
            await self._workshop.fetch(key)
        except Exception as error:
            self._feed(_start_failed(key, error))
        else:
            self._feed(ev.JobPrepared(key))

    def _start_payload(self, key: AttemptKey) -> None:
        try:
            self._workshop.start(key)
        except Exception as error:
            self._feed(_start_failed(key, error))
        else:
            self._feed(ev.PayloadStarted(key))

    def _kill(self, key: AttemptKey) -> None:
        if self._leave_off(key):
            self._feed(ev.StartFailed(key, Outcome.START_FAILED, "it was stopped before its start"))
        else:
            self._workshop.kill(key)

    async def _store(self, key: AttemptKey) -> None:
        try:
            left = await self._workshop.collect(key)
            if left.large:
                left = await self._workshop.bring(key, left)
        except Exception as error:
            self._feed(_output_failed(key, error))
        else:
            self._feed(ev.OutputStored(key, left.files, "; ".join(left.notes)))


def _start_failed(key: AttemptKey, error: Exception) -> ev.StartFailed:
    if isinstance(error, JobAtFaultError):
        return ev.StartFailed(key, Outcome.REFUSED_BY_JOB, str(error))
    expected = error if isinstance(error, NodeAtFaultError) else _of_our_own(key, error)
    return ev.StartFailed(key, Outcome.START_FAILED, str(expected))


def _output_failed(key: AttemptKey, error: Exception) -> ev.OutputFailed:
    return ev.OutputFailed(key, failure_of(error if isinstance(error, PilotageError) else _of_our_own(key, error)))


def _of_our_own(key: AttemptKey, error: Exception) -> WorldError:
    """Return what is told of an error that nobody has foreseen; where it comes from is in the log."""
    log.error("attempt met an error of the pilot's own", job=str(key), exc_info=error)
    return WorldError(f"an error of the pilot's own: {error!r:.{_LONGEST_REASON}}", transient=True)
