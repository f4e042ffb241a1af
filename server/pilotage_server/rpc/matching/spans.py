"""Spans of the calls of pilots: a match for each attempt that began, and a result for each end that was reported.

They are recorded after the commit, from what the call has anyway: no job and no row is read for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from datetime import datetime
from typing import NamedTuple

from pilotage import clock
from pilotage.telemetry import TraceContext, new_span_id
from pilotage.tracing.recording import match_context, record_span, sampled_trace
from pilotage.tracing.spans import Attributes, Span
from pilotage.v1 import matcher_service_pb2
from pilotage.values.attempts import AttemptKey, Outcome
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.identity import PilotCredential
from pilotage_server.operations.matching.request_jobs import WorkDone


class CallSpans(NamedTuple):
    """The spans of one call, which began then; `reports` are those that it brings."""

    pilot: PilotCredential
    began: datetime
    reports: tuple[JobReport, ...] = ()

    def record_work(self, done: Future[WorkDone]) -> None:
        """Record the spans of a request for jobs; a repeated request has none."""
        answer = done.result().answer if done.exception() is None else None
        if answer is None:
            return
        self._record_results(result.key for result in answer.results if result.accepted)
        for match in answer.matches:
            submission = sampled_trace(match.terms.traceparent)
            if submission is not None:
                own = match_context(submission, match.job_id, match.attempt)
                self._record("match", submission, own.span_id, match.job_id, match.attempt)

    def record_heartbeat(self, done: Future[bytes]) -> None:
        """Record the spans of a heartbeat."""
        if done.exception() is None and any(report.traceparent for report in self.reports):
            results = matcher_service_pb2.ReportStateResponse.FromString(done.result()).results
            self._record_results(AttemptKey(each.job_id, each.attempt) for each in results if each.accepted)

    def _record_results(self, accepted: Iterable[AttemptKey]) -> None:
        recorded = set(accepted)
        for report in self.reports:
            submission = sampled_trace(report.traceparent)
            if submission is None or (report.job_id, report.attempt) not in recorded or report.outcome is None:
                continue
            parent = match_context(submission, report.job_id, report.attempt)
            more: Attributes = {"pilotage.outcome": report.outcome.value}
            if report.exit_code is not None:
                more["process.exit.code"] = report.exit_code
            error = "" if report.outcome is Outcome.EXITED else report.outcome.value
            self._record("result", parent, new_span_id(), report.job_id, report.attempt, error, more)

    def _record(
        self,
        name: str,
        parent: TraceContext,
        span_id: str,
        job_id: int,
        attempt: int,
        error: str = "",
        more: Attributes | None = None,
    ) -> None:
        queue = self.pilot.queue
        attributes: Attributes = {
            "pilotage.job.id": job_id,
            "pilotage.job.attempt": attempt,
            "pilotage.site": queue.site,
            "pilotage.ce": queue.ce,
            "pilotage.queue": queue.queue,
            "pilotage.pilot.stamp": self.pilot.stamp,
            **(more or {}),
        }
        record_span(Span(name, parent, span_id, self.began, clock.now(), attributes, error=error))
