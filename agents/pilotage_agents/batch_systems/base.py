"""The protocol of batch systems and the values that it uses.

A glidein's state is UNKNOWN unless the batch system's answer states it: an answer that is missing, does not parse or
leaves the glidein out concludes nothing. A submission that may have arrived without an answer is `Unanswered`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

from pilotage_agents.batch_systems.shape import Shape

LOG_NAME = "pilot.log"
"""The file in a glidein's folder with the output of its pilot."""


_FIRST_SIGNAL_CODE = 128
"""Exit codes from here on are 128 + n, for an end by signal n."""


class GlideinState(StrEnum):
    """The state of a glidein in its batch system."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"

    UNKNOWN = "unknown"
    """The batch system gave no answer for it: nothing may be concluded, least of all that it ended."""

    @property
    def is_known(self) -> bool:
        """Whether the batch system has stated it."""
        return self is not GlideinState.UNKNOWN


@dataclass(frozen=True, slots=True)
class SelfContained:
    """How a pilot starts on a node that does not see its folder: `input_text` is all that it reads, on its input.

    `program` is the file on the node that it runs; it must have the SHA-256 `sha256`. Both "" = no check.
    """

    command: tuple[str, ...]
    input_text: str
    program: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class GlideinRequest:
    """A batch job to submit that carries one pilot.

    `stamp` is the pilot's and must let the glidein be found again. `folder` exists, belongs to the pilot and takes its
    output. `command` runs in it, or in a copy of it on the node. `queue` is the batch system's own name of the queue.
    `wall_time_s` None = as long as the queue allows. `self_contained` None = the nodes see the folder. `in_place`: they
    must see it, as all that the job writes there is read at once; no copy will do.
    """

    stamp: str
    queue: str
    command: tuple[str, ...]
    folder: Path
    shape: Shape
    wall_time_s: int | None = None
    self_contained: SelfContained | None = None
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Submitted:
    """The batch system has accepted the glidein; `glidein_id` is its id there."""

    glidein_id: str


@dataclass(frozen=True, slots=True)
class NotSubmitted:
    """The batch system has not accepted the glidein; `reason` is in its words.

    `was_tried` False = it did not arrive, or was not sent after one that got no good answer.
    """

    reason: str
    was_tried: bool = True


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The batch system may or may not have accepted the glidein; it is searched for by its stamp later."""

    reason: str


Submission = Submitted | NotSubmitted | Unanswered


@dataclass(frozen=True, slots=True)
class GlideinStatus:
    """The status of a glidein; `exit_code` None = it has not ended, or its exit code is not known; 128 + n = signal n.

    `has_failed` = it could not be started, or was lost with its node, so that there is no exit code to show the
    failure.
    """

    state: GlideinState
    reason: str = ""
    exit_code: int | None = None
    has_failed: bool = False

    @property
    def processes_ended(self) -> bool:
        """Whether no process of an ended glidein is left.

        Only the pilot's own exit shows that: its watchdog exits after every process of its payloads. After a signal, a
        cancellation or the loss of a node some may be left, in a batch system that does not track all processes, or on
        a node that is only out of reach.
        """
        return self.state is GlideinState.ENDED and self.exit_code is not None and self.exit_code < _FIRST_SIGNAL_CODE


class StampedId(Protocol):
    """An id of a glidein that holds the stamp of its pilot; its text is the id in the batch system."""

    @property
    def stamp(self) -> str:
        """The stamp of the pilot."""


Id = TypeVar("Id", bound=StampedId)


def live_ids_by_stamp(statuses: Mapping[Id, GlideinStatus], stamps: Collection[str]) -> Mapping[str, str]:
    """Return the ids, by stamp, of glideins with these stamps that have not ended."""
    return {
        each.stamp: str(each)
        for each, status in statuses.items()
        if each.stamp in stamps and status.state is not GlideinState.ENDED
    }


class BatchSystem(Protocol):
    """A batch system; every implementation passes the conformance suite.

    A refusal or a failure of the batch system is part of the result; only the methods that say so raise.
    """

    async def submit_many(self, requests: Sequence[GlideinRequest]) -> tuple[Submission, ...]:
        """Submit glideins; returns one result each, in order."""

    async def find_by_stamp(self, stamps: Sequence[str]) -> Mapping[str, str]:
        """Return the ids, by stamp, of submitted glideins whose answers were lost.

        A stamp that is missing in the result was never submitted, or has ended. Raises WorldError when the batch system
        does not answer.
        """

    async def poll_all(self, glidein_ids: Sequence[str]) -> Mapping[str, GlideinStatus]:
        """Return the status of every id; one that the batch system does not mention is UNKNOWN."""

    async def cancel_many(self, glidein_ids: Sequence[str]) -> None:
        """Cancel glideins; those that have ended or never existed are no error."""

    async def renew(self, folders: Sequence[Path], name: str) -> None:
        """Deliver the present file `name` of waiting glideins' folders to where their pilots will read it.

        Other files stay unchanged. Raises WorldError when it must be tried again.
        """

    async def collect(self, folders: Sequence[Path]) -> None:
        """Fetch the output of ended glideins into their folders, and remove their files elsewhere.

        Raises WorldError when it must be tried again.
        """
