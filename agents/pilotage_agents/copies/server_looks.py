"""What another server says of copies there, each asked after with its own token."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

import structlog

from pilotage.errors import PilotageError
from pilotage_agents.copies.copy_tokens import CopyTokens
from pilotage_agents.copies.remote_server import RemoteServer
from pilotage_agents.copies.server_copy_folders import ServerCopyFolders
from pilotage_agents.core.copies.remote_copies import JobReference, remote_status
from pilotage_agents.router.route_edges import CopyState, CopyStatus

log = structlog.get_logger()

_HIDDEN = CopyStatus(CopyState.UNKNOWN, "the server shows no such job to whom the copy's token is of now")
_PURGED = CopyStatus(CopyState.GONE, "the server has no such job any more")
_ELSEWHERE = CopyStatus(
    CopyState.UNKNOWN,
    "its folder is not here, and the server shows no such job to whom the routes' token is of: one that went in its "
    "owner's name is followed where its folder is; else only pilotage routes give-up frees its job, with all others",
)


class ServerLooks:
    """Asks after copies; one whose token is not good spoils no other's answer."""

    def __init__(self, server: RemoteServer, folders: ServerCopyFolders, tokens: CopyTokens) -> None:
        self._server = server
        self._folders = folders
        self._tokens = tokens

    async def look(self, references: Collection[str]) -> Mapping[str, CopyStatus]:
        """Return what the server says of every copy asked."""
        known = [each for text in references if (each := JobReference.of(text))]
        statuses = dict.fromkeys(references, CopyStatus(CopyState.UNKNOWN, "it is no reference to a job there"))
        by_token, without = await self._tokens.by_token(known)
        for token, those in by_token.items():
            statuses |= await self._statuses(token, those)
        return statuses | {text: CopyStatus(CopyState.UNKNOWN, why) for text, why in without.items()}

    async def _statuses(self, token: str, those: Sequence[JobReference]) -> dict[str, CopyStatus]:
        try:
            jobs = await self._server.jobs(token, [each.job_id for each in those])
        except PilotageError as error:
            log.warning("server says nothing of copies", copies=len(those), example=those[0].name, reason=str(error))
            return {str(each): CopyStatus(CopyState.UNKNOWN, str(error)) for each in those}
        statuses = {str(each): remote_status(jobs[each.job_id]) for each in those if each.job_id in jobs}
        missing = [each for each in those if each.job_id not in jobs]
        return statuses | (await self._missing(token, missing) if missing else {})

    async def _missing(self, token: str, those: Sequence[JobReference]) -> dict[str, CopyStatus]:
        """Return what can be said of copies whose jobs the server does not show to the bearer of this token.

        A job that he may not see looks like one that is not there, so only one that he may see is gone.
        """
        try:
            caller = await self._server.caller(token)
        except PilotageError as error:
            return {str(each): CopyStatus(CopyState.UNKNOWN, str(error)) for each in those}
        whose = (caller.owner, caller.vo)
        statuses = {}
        for each in those:
            kept = await asyncio.to_thread(self._folders.caller, each.name)
            is_here = await asyncio.to_thread(self._folders.has_request, each.name)
            sure = caller.sees_all or kept == whose
            statuses[str(each)] = _PURGED if sure else _HIDDEN if is_here else _ELSEWHERE
        if unclear := [name for name, status in statuses.items() if status.state is CopyState.UNKNOWN]:
            reason = statuses[unclear[0]].reason
            log.warning("server shows no job for copies", copies=len(unclear), example=unclear[0], reason=reason)
        return statuses
