"""Where a batch system's commands run, and where the folders of its glideins lie: one protocol, and the nearest place.

Every place passes the conformance suite of places.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Protocol

from pilotage_agents.batch_systems.commands import Answer, ask


class Place(Protocol):
    """A place that has a batch system's commands, and files that its nodes see."""

    async def ask(self, command: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Answer:
        """Run a command there to its end.

        Raises WorldError when it cannot be started, does not end in time, or the place is not reached: it may
        have run, unless the error is no transient one.
        """

    def path_of(self, folder: Path) -> PurePath:
        """Return where the folder of a glidein lies there."""

    async def bring(self, folders: Sequence[Path], name: str = "") -> None:
        """Have the folders there with all that is in them, or their file of this `name` in the place of the old one.

        Who reads that one meanwhile finds it whole, old or new. Raises WorldError when it may not all be there.
        """

    async def collect(self, folders: Sequence[Path]) -> None:
        """Have here what was printed there, and leave nothing of the folders there that is not here.

        Folders that are not there are no error. Raises WorldError when it is to be tried again.
        """


class ThisMachine:
    """The director's own machine, or one that sees its folders under the same paths."""

    async def ask(self, command: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Answer:
        """Run a command; see Place."""
        return await ask(command, timeout_s=timeout_s, stdin=stdin)

    def path_of(self, folder: Path) -> PurePath:
        """Return the folder itself; see Place."""
        return folder

    async def bring(self, folders: Sequence[Path], name: str = "") -> None:
        """Do nothing: the folders are there."""

    async def collect(self, folders: Sequence[Path]) -> None:
        """Do nothing: what was printed is here."""
