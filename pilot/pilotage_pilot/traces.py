"""The traces of the attempts that a pilot handles: for their log lines, their calls, and the spans of those sampled.

An attempt has three spans under that of its match: `start` until its payload runs, `run` until that ends, and `store`
until its output is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime

from pilotage.clock import Clock
from pilotage.telemetry import TraceContext, new_span_id, read_trace, trace_bound
from pilotage.tracing.recording import is_tracing, match_context, record_span
from pilotage.tracing.spans import Attributes, Span
from pilotage.values.attempts import AttemptKey
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.model import GrantedJob, Now


@dataclass(slots=True)
class _AttemptTrace:
    """The match of an attempt; `since` = when its present span began."""

    match: TraceContext
    since: datetime
    name: str = "start"


class AttemptTraces:
    """The traces of the attempts of one pilot; `attributes` are those of all its spans."""

    def __init__(self, attributes: Mapping[str, str], clock: Clock) -> None:
        self._attributes = attributes
        self._clock = clock
        self._traces: dict[AttemptKey, _AttemptTrace] = {}

    def begin(self, job: GrantedJob) -> None:
        """Follow an attempt from now on."""
        submission = read_trace(job.traceparent)
        if submission is not None:
            self._traces[job.key] = _AttemptTrace(match_context(submission, *job.key), self._clock())

    def bound(self, key: AttemptKey) -> AbstractContextManager[None]:
        """Let calls and log lines of the block belong to the trace of the attempt, if it is known."""
        trace = self._traces.get(key)
        return nullcontext() if trace is None else trace_bound(trace.match)

    def observe(self, event: ev.AttemptEvent) -> None:
        """Record the span that the event ends."""
        match event:
            case ev.PayloadStarted(key, at):
                self._end(key, "run", at=at)
            case ev.StartFailed(key, outcome):
                self._end(key, "", outcome.value)
            case ev.PayloadExited(key, exit_code, number):
                if event.began is not None:
                    self._end(key, "run", at=event.began)
                code = exit_code if exit_code is not None else -(number or 0)
                self._end(key, "store", more={"process.exit.code": code})
            case _:
                return

    def end(self, key: AttemptKey) -> None:
        """Stop following an attempt that has ended."""
        self._end(key, "")
        self._traces.pop(key, None)

    def _end(
        self,
        key: AttemptKey,
        following: str,
        error: str = "",
        more: Attributes | None = None,
        at: Now | None = None,
    ) -> None:
        trace = self._traces.get(key)
        if trace is None:
            return
        now = self._clock() if at is None else at.utc
        if trace.name and trace.match.sampled and is_tracing():
            of_job: Attributes = {"pilotage.job.id": key.job_id, "pilotage.job.attempt": key.attempt}
            attributes = {**self._attributes, **of_job, **(more or {})}
            record_span(Span(trace.name, trace.match, new_span_id(), trace.since, now, attributes, error=error))
        trace.name, trace.since = following, now
