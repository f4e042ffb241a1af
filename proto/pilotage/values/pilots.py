"""States of pilots, and reports on their glideins."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class PilotState(StrEnum):
    """The state of a pilot."""

    REGISTERED = "REGISTERED"
    SUBMITTED = "SUBMITTED"
    RUNNING = "RUNNING"
    DRAINING = "DRAINING"
    ENDED = "ENDED"
    LOST = "LOST"


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
