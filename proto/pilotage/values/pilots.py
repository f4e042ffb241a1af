"""States of pilots, and reports on their glideins."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

STOP_MARGIN_S = 60.0
"""How long before the end of its glidein a pilot evicts jobs, if its settings do not say otherwise."""


class PilotState(StrEnum):
    """The state of a pilot."""

    REGISTERED = "REGISTERED"
    """Its enrolment secret exists, and no batch system has it. SUBMITTED, RUNNING, ENDED or LOST follows."""
    SUBMITTED = "SUBMITTED"
    """Its glidein waits in a batch system. RUNNING, ENDED or LOST follows."""
    RUNNING = "RUNNING"
    """It calls the server and takes jobs. DRAINING, ENDED or LOST follows."""
    DRAINING = "DRAINING"
    """It calls the server and takes no new jobs. RUNNING (no longer draining), ENDED or LOST follows."""
    ENDED = "ENDED"
    """It has said that it ends, or its glidein is gone. Final."""
    LOST = "LOST"
    """Silent for too long, revoked, or out of reach. RUNNING or DRAINING (it calls again) or ENDED follows."""


@dataclass(frozen=True, slots=True)
class GlideinReport:
    """The state of a pilot's glidein in its batch system: SUBMITTED, RUNNING or ENDED.

    `glidein_id` "" = none is known: an ended one is a failed submission; another one is a submission without an answer,
    so that the glidein may exist. `called_back` = the reporting agent cancelled it. `processes_ended` = no process of
    an ended one is left; else its payloads may run on. `age` is the time since the batch system was asked.
    """

    stamp: str
    glidein_id: str
    state: PilotState
    reason: str = ""
    called_back: bool = False
    processes_ended: bool = False
    age: timedelta = timedelta(0)

    @property
    def ended(self) -> bool:
        """Whether the glidein is gone."""
        return self.state is PilotState.ENDED
