"""What the server is told of a copy.

Rules
-----
Targets, nodes, payloads and hooks say what they like: it is told within the bounds of reports, so that no word of
theirs keeps an end from being heard. A server whose bounds are others, as those of another release may be, is told of
an end that it could not take once more without any word of theirs, and then without their numbers: its job goes on.
Files are given up last, as they cannot be had again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Self

from pilotage.classads import AdValue
from pilotage.job_description import NOTHING
from pilotage.report_bounds import (
    sound_amount,
    sound_attributes,
    sound_code,
    sound_reference,
    sound_text,
    sound_time,
)
from pilotage_agents.core.copies.copy_life import HELD_THERE, STOPPED, HeldCopy, Wish
from pilotage_agents.router.route_edges import CopyOutcome, CopyReport, CopyState, CopyStatus

_TOLD: Mapping[CopyState, str] = {
    CopyState.RUNNING: "RUNNING",
    CopyState.SUSPENDED: "SUSPENDED",
    CopyState.COMPLETED: "COMPLETING",
}
"""States that the original shows too, in the protocol's words."""

_FILES_WAIT = timedelta(hours=1)
"""So long the files of an end wait for a server that may take it: one of the release before is replaced by then.

It is counted by the router that tells of it: the next one begins anew.
"""

_REPORTS_WITH_FILES = 2
"""After so many that the server could not take, one at least is told with nothing but the end and its files."""

_LONGEST_FAULT = 500


@dataclass(frozen=True, slots=True)
class NotTaken:
    """The server could not take reports of a copy's end, so many since a time; `fault` is what it said last."""

    since: datetime
    fault: str
    reports: int = 1

    def again(self, fault: str) -> Self:
        """Return it with one more report that the server could not take."""
        return replace(self, fault=fault, reports=self.reports + 1)


def report_of(copy: HeldCopy, said: Mapping[str, AdValue] = NOTHING) -> CopyReport:
    """Return all that is to be told of a copy; `said` are the attributes that hooks have said of it, none = no news."""
    outcome = copy.outcome and _sound_outcome(copy.outcome)
    status = _sound_status(copy.status) if outcome is None else outcome.status
    return CopyReport(
        copy.key.job_id,
        copy.key.attempt,
        sound_reference(copy.reference),
        status.node,
        "DONE" if outcome else _TOLD.get(status.state, ""),
        status.started,
        outcome,
        sound_text(copy.reason) if copy.wish is Wish.HOLD and not _ended_by_itself(copy) else "",
        sound_attributes(said),
    )


def without_output(report: CopyReport, why: str) -> CopyReport:
    """Return the report of an end whose output cannot be told: without all of it the job has not ended well."""
    assert report.outcome is not None, "only an end brings files"
    outcome = replace(report.outcome, outcome="OUTPUT_LOST", reason=f"what it left is lost: {why}", files=())
    return replace(report, outcome=outcome)


def told_again(report: CopyReport, not_taken: NotTaken, now: datetime) -> CopyReport:
    """Return the report of an end as it is told to a server that could not take it before."""
    assert report.outcome is not None, "only an end is told with less"
    why = f"the server cannot take what was said of its end: {_plain(not_taken.fault)}"
    ours = replace(report, reference="", node="", held=HELD_THERE if report.held else "", attributes=NOTHING)
    outcome = replace(report.outcome, status=replace(report.outcome.status, node="", reason=""), reason=why)
    if not_taken.reports == 1:
        return replace(ours, outcome=outcome)
    said = outcome.status
    status = CopyStatus(said.state, exit_code=said.exit_code, signal=said.signal)
    barely = replace(ours, started=None, outcome=replace(outcome, status=status))
    files_may_wait = not_taken.reports == _REPORTS_WITH_FILES or now < not_taken.since + _FILES_WAIT
    return barely if files_may_wait or not outcome.files else without_output(barely, why)


def _plain(fault: str) -> str:
    """Return a fault as the server says it, in characters that it takes whatever it quotes."""
    return sound_text(fault.encode("ascii", "replace").decode())[:_LONGEST_FAULT]


def _ended_by_itself(copy: HeldCopy) -> bool:
    return copy.outcome is not None and copy.outcome.outcome != STOPPED


def _sound_outcome(outcome: CopyOutcome) -> CopyOutcome:
    return replace(outcome, status=_sound_status(outcome.status), reason=sound_text(outcome.reason))


def _sound_status(status: CopyStatus) -> CopyStatus:
    return replace(
        status,
        reason=sound_text(status.reason),
        node=sound_text(status.node),
        exit_code=sound_code(status.exit_code),
        signal=sound_code(status.signal),
        started=sound_time(status.started),
        ended=sound_time(status.ended),
        cpu_s=sound_amount(status.cpu_s),
        wall_s=sound_amount(status.wall_s),
    )
