"""What the server is told of a copy.

Rules
-----
Targets, nodes, payloads and hooks say what they like: it is told within the bounds of reports, so that no word of
theirs keeps an end from being heard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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
from pilotage_agents.core.copies.copy_life import STOPPED, HeldCopy, Wish
from pilotage_agents.router.route_edges import CopyOutcome, CopyReport, CopyState, CopyStatus

_TOLD: Mapping[CopyState, str] = {
    CopyState.RUNNING: "RUNNING",
    CopyState.SUSPENDED: "SUSPENDED",
    CopyState.COMPLETED: "COMPLETING",
}
"""States that the original shows too, in the protocol's words."""


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
