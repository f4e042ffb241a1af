"""A host that is reached over the system's ssh, as a place of a batch system's commands and of its glideins' folders.

An answer that does not come is no answer: ssh's own failure says nothing of what the command has done.
"""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import LOG_NAME
from pilotage_agents.batch_systems.commands import Answer, ask
from pilotage_agents.batch_systems.ssh_text import logs_in, print_logs, remove, replace, ssh_command, unpack
from pilotage_agents.settings import SshSettings

_MOST_LOG_BYTES = 1 << 20
_MOST_IN_A_COMMAND = 20


class SshPlace:
    """The host of `settings`; glideins' folders go below the folder that is named there, if one is."""

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        # Never the folder of a director itself, should both hosts see the same: what is there is removed.
        self._folder = PurePosixPath(settings.folder, "glideins") if settings.folder else None

    async def ask(self, command: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Answer:
        """Run a command on the host; see Place."""
        try:
            return await ask(ssh_command(self._settings, command), timeout_s=timeout_s, stdin=stdin)
        except WorldError as error:
            raise WorldError(f"{self._settings.host}: {error}", transient=error.transient) from error

    def path_of(self, folder: Path) -> PurePath:
        """Return where the folder of a glidein lies on the host; see Place."""
        return self._folder / folder.name if self._folder else folder

    async def bring(self, folders: Sequence[Path], name: str = "") -> None:
        """Send the folders, or the files, in one archive; see Place."""
        if self._folder and folders:
            archive = await asyncio.to_thread(_packed, folders, name)
            into = self._folder
            command = replace(into, name, [each.name for each in folders]) if name else unpack(into)
            await self._succeed(command, archive)

    async def collect(self, folders: Sequence[Path]) -> None:
        """Fetch the ends of the logs, then remove the folders; see Place."""
        if not self._folder:
            return
        for start in range(0, len(folders), _MOST_IN_A_COMMAND):
            some = {folder.name: folder for folder in folders[start : start + _MOST_IN_A_COMMAND]}
            printed = await self._succeed(print_logs(self._folder, some, _MOST_LOG_BYTES))
            await asyncio.to_thread(_write_logs, some, logs_in(printed, some))
            await self._succeed(remove(self._folder, some))

    async def _succeed(self, command: Sequence[str], stdin: bytes = b"") -> str:
        """Run a command that must succeed; returns what it prints."""
        answer = await self.ask(command, timeout_s=self._settings.transfer_timeout_s, stdin=stdin)
        if answer.exit_code != 0:
            raise WorldError(f"{self._settings.host}: {answer.complaint}", transient=True)
        return answer.stdout


def _packed(folders: Sequence[Path], name: str) -> bytes:
    """Return an archive of the folders, or of one file of each; a file that lies in several of them is in it once."""
    memory = io.BytesIO()
    try:
        with tarfile.open(fileobj=memory, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for folder in folders:
                archive.add(folder / name, arcname=str(PurePath(folder.name, name)))
    except OSError as error:
        raise WorldError(f"{error.filename}: {error.strerror}", transient=True) from error
    return memory.getvalue()


def _write_logs(folders: Mapping[str, Path], logs: Mapping[str, bytes]) -> None:
    for name, log in logs.items():
        path = folders[name] / LOG_NAME
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(log)
        except OSError as error:
            raise WorldError(f"{path}: {error.strerror}", transient=True) from error
