"""With whose token copies go to another server, and are asked after there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import structlog

from pilotage.errors import PilotageError, UnauthenticatedError, WorldError
from pilotage_agents.copies.server_copy_folders import ServerCopyFolders
from pilotage_agents.core.copies.remote_copies import JobReference

log = structlog.get_logger()

CREDENTIAL_ATTRIBUTE = "ScitokensFile"
"""The attribute in which a job names the one of its files that holds its owner's token for the server."""


class CopyTokens:
    """Reads tokens for every use: they may be renewed. `routes` is the file of the routes' own, None = it is none."""

    def __init__(self, folders: ServerCopyFolders, routes: Path | None) -> None:
        self._folders = folders
        self._routes = routes

    async def of(self, name: str) -> str:
        """Return the token that a copy goes with: its owner's, or else the routes' own, as for no copy ("").

        Raises
        ------
        UnauthenticatedError
            When there is none, or the owner's is none.
        WorldError
            When the routes' own cannot be read, or is none.
        """
        is_own = bool(name) and await asyncio.to_thread(self._folders.has_token, name)
        path = self._folders.token_path(name) if is_own else self._routes
        if path is None:
            why = f"the routes have none for the server, and the job names no file of its own in {CREDENTIAL_ATTRIBUTE}"
            raise UnauthenticatedError(f"token: {why}")
        try:
            token = _token_in(await asyncio.to_thread(path.read_bytes))
        except OSError as error:
            raise WorldError(f"{path}: {error.strerror}", transient=True) from error
        if not token and is_own:
            raise UnauthenticatedError("token: the job's file holds none")
        if not token:
            raise WorldError(f"{path}: it holds no token", transient=False)
        return token

    async def by_token(self, known: Iterable[JobReference]) -> tuple[dict[str, list[JobReference]], dict[str, str]]:
        """Return the copies by the token that they went with, and why that of others cannot be had, by reference."""
        found: dict[str, list[JobReference]] = {}
        without: dict[str, str] = {}
        for each in known:
            try:
                found.setdefault(await self.of(each.name), []).append(each)
            except PilotageError as error:
                log.warning("token of a copy cannot be had", copy=each.name, reason=str(error))
                without[str(each)] = str(error)
        return found, without


def _token_in(content: bytes) -> str:
    """Return the token that a file holds, "" = it is none."""
    try:
        text = content.decode("ascii").strip()
    except UnicodeDecodeError:
        return ""
    return text if text.isprintable() and " " not in text else ""
