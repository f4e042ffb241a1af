"""Another Pilotage server as a place that copies go to: each is a job there.

A reference is the copy's name and the job's id there. What was asked of the other server is kept before it is asked:
asked again, it has one effect. A copy goes in the name of its job's owner where the job brings his token for that
server among its files, and names it in the attribute ScitokensFile; else in that of the routes.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import structlog

from pilotage.description_wire import description_to_wire
from pilotage.errors import (
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    PilotageError,
    UnauthenticatedError,
    WorldError,
)
from pilotage.job_environment import input_file_of
from pilotage.v1.job_service_pb2 import SubmitJobsRequest
from pilotage_agents.batch_systems.base import NotSubmitted, Submitted, Unanswered
from pilotage_agents.copies.copy_tokens import CREDENTIAL_ATTRIBUTE, CopyTokens
from pilotage_agents.copies.remote_server import RemoteServer
from pilotage_agents.copies.server_copy_folders import ServerCopyFolders
from pilotage_agents.copies.server_looks import ServerLooks
from pilotage_agents.core.copies.remote_copies import JobReference
from pilotage_agents.router.route_edges import (
    CopyAnswer,
    CopyRequest,
    CopyStatus,
    Found,
    InputFiles,
    LeftFile,
    NotThisWay,
    RefusedByJob,
)

log = structlog.get_logger()

_INPUT = "input"
_AT_ONCE = 8
_DENIED = (PermissionDeniedError, UnauthenticatedError)


class ServerCopies:
    """Sends copies to another server; `folders` keeps what was asked, and owners' tokens.

    `token_file` holds the routes' own token, None = only jobs that bring one can go there.
    """

    def __init__(self, server: RemoteServer, folders: ServerCopyFolders, token_file: Path | None) -> None:
        self._server = server
        self._folders = folders
        self._token_file = token_file
        self._tokens = CopyTokens(folders, token_file)
        self._looks = ServerLooks(server, folders, self._tokens)

    async def submit(self, copies: Sequence[CopyRequest], files: InputFiles) -> tuple[CopyAnswer, ...]:
        """Bring the files that are missing there, and submit; see CopyTarget."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def submit(copy: CopyRequest) -> CopyAnswer:
            async with room:
                return await self._submit(copy, files)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(submit(copy)) for copy in copies]
        return tuple(task.result() for task in tasks)

    async def find_again(self, names: Collection[str]) -> Mapping[str, Found]:
        """Ask again what was asked, and look among the jobs there for what nothing is kept of; see CopyTarget."""
        await asyncio.to_thread(self._folders.check)
        found: dict[str, Found] = {}
        unknown = []
        for name in names:
            if not await asyncio.to_thread(self._folders.has_request, name):
                unknown.append(name)
                continue
            match await self._ask(name, again=True):
                case Submitted(reference):
                    found[name] = reference
                case Unanswered() as unclear:
                    found[name] = unclear
                case NotSubmitted() | RefusedByJob() | NotThisWay():
                    pass
        if unknown and self._token_file is not None:
            found |= await self._seen_there(unknown)
        return found

    async def poll(self, references: Collection[str]) -> Mapping[str, CopyStatus]:
        """Return what the server says of the jobs; see CopyTarget."""
        return await self._looks.look(references)

    async def collect(self, reference: str) -> tuple[LeftFile, ...]:
        """Fetch what the job has left there; see CopyTarget."""
        known = JobReference.of(reference)
        if known is None:
            raise WorldError(f"{reference} is no reference to a job there", transient=False)
        try:
            folder = await asyncio.to_thread(self._folders.output, known.name)
            return await self._server.outputs(await self._tokens.of(known.name), known.job_id, folder)
        except OSError as error:
            raise WorldError(f"{error.filename}: {error.strerror or error}", transient=True) from error
        except WorldError:
            raise
        except PilotageError as error:
            raise WorldError(f"the output could not be fetched: {error}", transient=not _is_lost(error)) from error

    async def cancel(self, references: Collection[str]) -> None:
        """Have the jobs removed there; see CopyTarget."""
        known = [each for text in references if (each := JobReference.of(text))]
        by_token, _ = await self._tokens.by_token(known)
        for token, those in by_token.items():
            try:
                await self._server.remove(token, [each.job_id for each in those], "the job router stops it")
            except PilotageError as error:
                log.warning("copies could not be cancelled", copies=len(those), reason=str(error))

    async def forget(self, names: Collection[str]) -> None:
        """Remove what is kept here; the server there keeps its jobs as long as it keeps any. See CopyTarget."""
        for name in names:
            await asyncio.to_thread(self._folders.remove, name)

    async def strays(self, known: Collection[str], before: datetime) -> Mapping[str, str]:
        """Return the copies that have folders here; see CopyTarget."""
        found = await asyncio.to_thread(self._folders.strays, known, before)
        return {name: "" if job_id is None else str(JobReference(name, job_id)) for name, job_id in found.items()}

    async def _submit(self, copy: CopyRequest, files: InputFiles) -> CopyAnswer:
        """Submit one copy, with what was asked before, if anything was."""
        again = await asyncio.to_thread(self._folders.has_request, copy.name)
        try:
            if not again:
                await self._prepare(copy, files)
        except (PilotageError, OSError) as error:
            return await self._not_made(copy.name, error)
        return await self._ask(copy.name, again=again)

    async def _prepare(self, copy: CopyRequest, files: InputFiles) -> None:
        """Bring the files of a copy that are missing there, and keep what is to be asked."""
        folder = await asyncio.to_thread(self._folders.make, copy.name)
        description = copy.description
        if secret := input_file_of(description, CREDENTIAL_ATTRIBUTE):
            (file,) = (each for each in description.input_files if each.name == secret)
            own = self._folders.token_path(copy.name)
            await files.fetch(copy.job_id, file, own)
            await asyncio.to_thread(own.chmod, 0o600)
            # It has done what it is for when the copy is there, where others might read it.
            others = tuple(each for each in description.input_files if each.name != secret)
            description = replace(description, input_files=others)
        token = await self._tokens.of(copy.name)
        for file in await self._server.missing(token, description.input_files):
            await files.fetch(copy.job_id, file, folder / _INPUT)
            await self._server.upload(token, folder / _INPUT, file)
            await asyncio.to_thread((folder / _INPUT).unlink)
        called = self._folders.called(copy.name)
        described = replace(description, name=called, hold=False, count=None, warnings=())
        request = SubmitJobsRequest(request_id=_request_id(called), descriptions=[description_to_wire(described)])
        await asyncio.to_thread(self._folders.keep_request, copy.name, request)

    async def _ask(self, name: str, *, again: bool) -> CopyAnswer:
        """Ask for a copy what is kept for it, unless its answer is kept too.

        Whom the server no longer knows when he asks `again` may have had an answer before.
        """
        try:
            if (kept := await asyncio.to_thread(self._folders.job_id, name)) is not None:
                return Submitted(str(JobReference(name, kept)))
            request = await asyncio.to_thread(self._folders.request, name)
            token = await self._tokens.of(name)
            job_id = await self._server.submit(token, request)
        except (PilotageError, OSError, ValueError) as error:
            if isinstance(error, InvalidInputError) or (isinstance(error, _DENIED) and not again):
                return await self._not_made(name, error)
            return Unanswered(str(error))
        await self._keep(name, job_id, token)
        return Submitted(str(JobReference(name, job_id)))

    async def _keep(self, name: str, job_id: int, token: str) -> None:
        """Keep the answer to what was asked, and whom the server answered; without that, less can be said later."""
        try:
            await asyncio.to_thread(self._folders.keep_job_id, name, job_id)
            await asyncio.to_thread(self._folders.keep_caller, name, await self._server.caller(token))
        except (PilotageError, OSError) as error:
            log.warning("record of a copy could not be written", copy=name, reason=str(error))

    async def _not_made(self, name: str, error: Exception) -> CopyAnswer:
        """Keep nothing of a copy that was not made; returns whose fault that is."""
        is_own = await asyncio.to_thread(self._folders.has_token, name)
        await asyncio.to_thread(self._folders.remove, name)
        if self._token_file is None and not is_own and isinstance(error, UnauthenticatedError):
            return NotThisWay(str(error))
        at_fault = isinstance(error, InvalidInputError) or (is_own and isinstance(error, _DENIED))
        return RefusedByJob(str(error)) if at_fault else NotSubmitted(str(error))

    async def _seen_there(self, names: Collection[str]) -> dict[str, Found]:
        """Return the references of copies that went in the name of the routes, or that it cannot be said."""
        called = {self._folders.called(name): name for name in names}
        try:
            there = await self._server.named(await self._tokens.of(""), [*called])
        except PilotageError as error:
            return dict.fromkeys(names, Unanswered(str(error)))
        return {called[title]: str(JobReference(called[title], job_id)) for title, job_id in there.items()}


def _is_lost(error: PilotageError) -> bool:
    """Return whether what a job has left cannot be had for good: a content that is listed, and is not there.

    A job that is not shown is looked at again before anything is concluded.
    """
    return isinstance(error, InvalidInputError) or (isinstance(error, NotFoundError) and error.kind == "content")


def _request_id(called: str) -> str:
    """Return what makes a copy's submission have one effect, however often it is asked for."""
    return hashlib.sha256(called.encode()).hexdigest()
