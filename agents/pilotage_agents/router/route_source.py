"""Where a router's table comes from: a file that is read again when it changes, or a command that is run again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from pilotage.clock import Clock
from pilotage.errors import InvalidInputError, Violation, WorldError
from pilotage_agents.batch_systems.commands import ask
from pilotage_agents.core.routes.route_table import RouteTable, Targets
from pilotage_agents.router.route_files import read_route_file

log = structlog.get_logger()

_UNREAD = ("unread",)
"""In place of the stamps of files that could not be read: they are read again, changed or not."""


@dataclass(frozen=True, slots=True)
class TableSettings:
    """What a table is made of.

    `file` holds it; with a `command`, what that prints is kept there. It is read again after `refresh`, None = a file
    when it has changed, a command never. `targets_file` is looked at for changes as well, None = targets never change.
    """

    file: Path
    command: tuple[str, ...]
    refresh: timedelta | None
    targets: Callable[[], Targets]
    targets_file: Path | None = None
    constraint: str = ""
    allow_commands: bool = False
    timeout_s: float = 60.0


class RouteSource:
    """Reads the table anew when it may be another; a newer one that is faulty is refused whole, and the old one stays.

    `fault` says why the newest was refused, empty = it is in force.
    """

    def __init__(self, settings: TableSettings, clock: Clock) -> None:
        self.fault = ""
        self._settings = settings
        self._clock = clock
        self._read_at: datetime | None = None
        self._stamps: tuple[object, ...] = ()
        self._table: RouteTable | None = None

    async def newer(self) -> RouteTable | None:
        """Return the table if it is another than before, None = it is not.

        Raises
        ------
        PilotageError
            When it cannot be had, or is faulty, and there is none from before.
        """
        stamps = self._now_stamped()
        if not self._is_due(stamps):
            return None
        try:
            table = await self._read()
        except (InvalidInputError, WorldError) as error:
            if self._table is None:
                raise
            self._refuse(str(error))
            table = self._table
            if isinstance(error, WorldError) and not self._settings.command:
                stamps = _UNREAD
        else:
            self.fault = ""
        self._read_at, self._stamps = self._clock(), stamps
        if table == self._table:
            return None
        self._table = table
        return table

    def _refuse(self, why: str) -> None:
        if why != self.fault:
            log.warning("newer route table refused, the one before stays in force", reason=why)
        self.fault = why

    def _is_due(self, stamps: tuple[object, ...]) -> bool:
        if self._read_at is None or stamps != self._stamps:
            return True
        refresh = self._settings.refresh
        return refresh is not None and self._clock() >= self._read_at + refresh

    def _now_stamped(self) -> tuple[object, ...]:
        """Return what is another when one of the files has changed."""
        files = [self._settings.targets_file, None if self._settings.command else self._settings.file]
        return tuple(_stamp(file) for file in files if file is not None)

    async def _read(self) -> RouteTable:
        if self._settings.command:
            await self._run_command()
        return await asyncio.to_thread(self._read_files)

    def _read_files(self) -> RouteTable:
        settings = self._settings
        table = read_route_file(settings.file, constraint=settings.constraint, allow_commands=settings.allow_commands)
        return table.aimed(settings.targets())

    async def _run_command(self) -> None:
        command = self._settings.command
        answer = await ask(command, timeout_s=self._settings.timeout_s)
        if answer.exit_code:
            raise InvalidInputError(Violation(command[0], answer.complaint))
        try:
            await asyncio.to_thread(self._settings.file.write_text, answer.stdout)
        except OSError as error:
            raise WorldError(f"{self._settings.file}: {error.strerror}", transient=True) from error


def _stamp(path: Path) -> object:
    try:
        status = path.stat()
    except OSError as error:
        return error.errno
    return status.st_mtime_ns, status.st_size, status.st_ino
