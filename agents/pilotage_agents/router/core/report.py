"""Reports of routed jobs to the server.

Rules
-----
- Text from targets, nodes, payloads and hooks is cut to the limits of reports, so that no such text can make the server
  reject an end.
- A server of another release may have other limits. A rejected end is repeated first without foreign text, then without
  numbers, so that the job goes on. Files are given up last, as they cannot be produced again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Self

from pilotage.classads.library import AdValue
from pilotage.job_description import NOTHING
from pilotage.jobs.report_limits import (
    sanitized_amount,
    sanitized_attributes,
    sanitized_code,
    sanitized_reference,
    sanitized_text,
    sanitized_time,
)
from pilotage_agents.router.core.model import RoutedJobOutcome, RoutedJobReport, RoutedJobState, RoutedJobStatus
from pilotage_agents.router.core.routed_job import HELD_BY_TARGET, STOPPED, RoutedJobIntent, TrackedJob

_REPORTED_STATES: Mapping[RoutedJobState, str] = {
    RoutedJobState.RUNNING: "RUNNING",
    RoutedJobState.SUSPENDED: "SUSPENDED",
    RoutedJobState.COMPLETED: "COMPLETING",
}
"""States that the original job shows too, as names of the protocol."""

_FILES_WAIT = timedelta(hours=1)
"""How long to keep the files of an end for a server that rejects them: an older server is replaced by then.

The time starts again with every router that reports the end.
"""

_REPORTS_WITH_FILES = 2
"""After so many rejected reports, one is sent with nothing but the end and its files."""

_LONGEST_FAULT = 500


@dataclass(frozen=True, slots=True)
class RejectedReports:
    """Rejected reports of one end since a time; `fault` is the server's last complaint."""

    since: datetime
    fault: str
    reports: int = 1

    def with_rejection(self, fault: str) -> Self:
        """Return it with one more rejected report."""
        return replace(self, fault=fault, reports=self.reports + 1)


def report_of(routed: TrackedJob, hook_attributes: Mapping[str, AdValue] = NOTHING) -> RoutedJobReport:
    """Return the report of a routed job; `hook_attributes` are the unreported ones, none = unchanged."""
    outcome = routed.outcome and _sound_outcome(routed.outcome)
    status = _sound_status(routed.status) if outcome is None else outcome.status
    return RoutedJobReport(
        routed.key.job_id,
        routed.key.attempt,
        sanitized_reference(routed.reference),
        status.node,
        "DONE" if outcome else _REPORTED_STATES.get(status.state, ""),
        status.started,
        outcome,
        sanitized_text(routed.reason) if routed.intent is RoutedJobIntent.HOLD and not _ended_by_itself(routed) else "",
        status if outcome is None and status.is_plugged else None,
        sanitized_attributes(hook_attributes),
    )


def without_output(report: RoutedJobReport, why: str) -> RoutedJobReport:
    """Return the report of an end without its output: the job has then not ended well."""
    assert report.outcome is not None, "only an end brings files"
    outcome = replace(report.outcome, outcome="OUTPUT_LOST", reason=f"the output is lost: {why}", files=())
    return replace(report, outcome=outcome)


def reduced_report(report: RoutedJobReport, rejected: RejectedReports, now: datetime) -> RoutedJobReport:
    """Return the report of an end with less content, for a server that has rejected it."""
    assert report.outcome is not None, "only an end is reported with less"
    why = f"the server rejected the report of its end: {_plain(rejected.fault)}"
    ours = replace(report, reference="", node="", held=HELD_BY_TARGET if report.held else "", attributes=NOTHING)
    outcome = replace(report.outcome, status=replace(report.outcome.status, node="", reason=""), reason=why)
    if rejected.reports == 1:
        return replace(ours, outcome=outcome)
    reported = outcome.status
    status = RoutedJobStatus(reported.state, exit_code=reported.exit_code, signal=reported.signal)
    barely = replace(ours, started=None, outcome=replace(outcome, status=status))
    files_may_wait = rejected.reports == _REPORTS_WITH_FILES or now < rejected.since + _FILES_WAIT
    return barely if files_may_wait or not outcome.files else without_output(barely, why)


def _plain(fault: str) -> str:
    """Return a fault in characters that every server accepts."""
    return sanitized_text(fault.encode("ascii", "replace").decode())[:_LONGEST_FAULT]


def _ended_by_itself(routed: TrackedJob) -> bool:
    return routed.outcome is not None and routed.outcome.outcome != STOPPED


def _sound_outcome(outcome: RoutedJobOutcome) -> RoutedJobOutcome:
    return replace(outcome, status=_sound_status(outcome.status), reason=sanitized_text(outcome.reason))


def _sound_status(status: RoutedJobStatus) -> RoutedJobStatus:
    return replace(
        status,
        reason=sanitized_text(status.reason),
        node=sanitized_text(status.node),
        exit_code=sanitized_code(status.exit_code),
        signal=sanitized_code(status.signal),
        started=sanitized_time(status.started),
        ended=sanitized_time(status.ended),
        cpu_s=sanitized_amount(status.cpu_s),
        wall_s=sanitized_amount(status.wall_s),
    )
