"""What a site director needs of a batch system: one protocol, and the values that pass through it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

from pilotage_agents.core.pilot_shape import Shape

LOG_NAME = "pilot.log"
"""The file in a glidein's folder that takes what its pilot prints."""


class GlideinState(StrEnum):
    """Where a batch system has a glidein."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"

    UNKNOWN = "unknown"
    """The batch system gave no answer for it: nothing may be concluded, least of all that it ended."""

    @property
    def is_known(self) -> bool:
        """Whether the batch system has said where the glidein is."""
        return self is not GlideinState.UNKNOWN


@dataclass(frozen=True, slots=True)
class SelfContained:
    """How a pilot is started where nothing of its folder is seen: `given` is all that it reads, from its input.

    `program` is the file on the node that it runs, which must have the SHA-256 `sha256`, both "" = it is not checked.
    """

    command: tuple[str, ...]
    given: str
    program: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class GlideinRequest:
    """A batch job to submit that carries one pilot.

    `stamp` is the pilot's and finds the glidein again; `folder` exists, is the pilot's own, and takes its
    output. `command` runs in it, or in what has its files where the pilot runs. `queue` is the batch system's own
    name of the queue. `wall_time_s` None = as long as the queue allows. `alone` None = the folder is seen on the nodes.
    """

    stamp: str
    queue: str
    command: tuple[str, ...]
    folder: Path
    shape: Shape
    wall_time_s: int | None = None
    alone: SelfContained | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """The batch system has taken the glidein and calls it `glidein_id`."""

    glidein_id: str


@dataclass(frozen=True, slots=True)
class NotSubmitted:
    """The batch system has not taken the glidein; `reason` is in its words.

    `was_tried` False = it was not asked to, after another that it gave no good answer for.
    """

    reason: str
    was_tried: bool = True


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The batch system may or may not have taken the glidein: it is looked for again by its stamp."""

    reason: str


Submission = Submitted | NotSubmitted | Unanswered


@dataclass(frozen=True, slots=True)
class GlideinStatus:
    """What a batch system says of a glidein; `exit_code` None = it has not ended, or nobody knows.

    `has_failed`: it could not be started, or was lost with its node, so that there is no exit code that says so.
    """

    state: GlideinState
    reason: str = ""
    exit_code: int | None = None
    has_failed: bool = False


class StampedId(Protocol):
    """An id of a glidein that holds the stamp of its pilot; as text it is what its batch system is asked for."""

    @property
    def stamp(self) -> str:
        """The stamp of the pilot."""


Id = TypeVar("Id", bound=StampedId)


def living_by_stamp(statuses: Mapping[Id, GlideinStatus], stamps: Collection[str]) -> Mapping[str, str]:
    """Return the ids, by stamp, of glideins with these stamps that have not ended."""
    return {
        each.stamp: str(each)
        for each, status in statuses.items()
        if each.stamp in stamps and status.state is not GlideinState.ENDED
    }


class BatchSystem(Protocol):
    """A batch system; every implementation passes the conformance suite.

    No method raises for what the batch system does or fails to do: that is in the answers.
    """

    async def submit_many(self, requests: Sequence[GlideinRequest]) -> tuple[Submission, ...]:
        """Submit glideins; returns one answer each, in order."""

    async def find_again(self, stamps: Sequence[str]) -> Mapping[str, str]:
        """Return the ids of glideins by stamp, for those that were submitted and whose answer was lost.

        A stamp that is missing in the answer was never submitted, or has ended. Raises WorldError when the
        batch system cannot say.
        """

    async def poll_all(self, glidein_ids: Sequence[str]) -> Mapping[str, GlideinStatus]:
        """Return the status of every id asked; one that the batch system says nothing of is UNKNOWN."""

    async def cancel_many(self, glidein_ids: Sequence[str]) -> None:
        """Ask the glideins to end; those that have ended already, or never were, are no error."""

    async def renew(self, folders: Sequence[Path], name: str) -> None:
        """Have the file `name` of waiting glideins' folders as it is now where their pilots will read it.

        What they were given otherwise stays as it was. Raises WorldError when it is to be tried again.
        """

    async def collect(self, folders: Sequence[Path]) -> None:
        """Have in the folders of glideins that have ended what they printed, and nothing of theirs elsewhere.

        Raises WorldError when it is to be tried again.
        """
