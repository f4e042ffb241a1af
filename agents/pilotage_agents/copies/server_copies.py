"""Another Pilotage server as a place that copies go to: each is a job there.

A reference is the copy's name and the job's id there. What was asked of the other server is kept before it is asked:
asked again, it has one effect. A copy goes in the name of its job's owner where the job brings his token for that
server among its files, and names it in the attribute ScitokensFile; else in that of the routes.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import structlog

from pilotage.description_wire import description_to_wire
from pilotage.errors import (
    InvalidInputError,
    PermissionDeniedError,
    PilotageError,
    UnauthenticatedError,
    Violation,
    WorldError,
)
from pilotage.job_environment import input_file_of
from pilotage.job_folders import remove_tree
from pilotage.v1.job_service_pb2 import SubmitJobsRequest
from pilotage_agents.batch_systems.base import NotSubmitted, Submitted, Unanswered
from pilotage_agents.copies.remote_server import RemoteServer, token_text
from pilotage_agents.core.copies.remote_copies import remote_status
from pilotage_agents.router.route_edges import (
    CopyAnswer,
    CopyRequest,
    CopyState,
    CopyStatus,
    InputFiles,
    LeftFile,
    RefusedByJob,
)

log = structlog.get_logger()

CREDENTIAL_ATTRIBUTE = "ScitokensFile"
"""The attribute in which a job names the one of its files that holds its owner's token for the server."""

_TOKEN, _REQUEST, _JOB_ID, _INPUT, _OUTPUT = "token", "request", "job-id", "input", "output"
_AT_ONCE = 8
_DENIED = (PermissionDeniedError, UnauthenticatedError)


@dataclass(frozen=True, slots=True)
class _Reference:
    name: str
    job_id: int

    def __str__(self) -> str:
        return f"{self.name} {self.job_id}"

    @classmethod
    def of(cls, text: str) -> Self | None:
        name, _, job_id = text.rpartition(" ")
        return cls(name, int(job_id)) if name and job_id.isdecimal() and len(job_id) < 19 else None


class ServerCopies:
    """Sends copies to another server; `folder` keeps what was asked, and owners' tokens, for the agent's eyes alone.

    `token_file` holds the routes' own token, None = only jobs that bring one can go there. `origin` tells this
    router's copies from those of others that send in the same name.
    """

    def __init__(self, server: RemoteServer, folder: Path, token_file: Path | None, origin: str) -> None:
        self._server = server
        self._folder = folder
        self._token_file = token_file
        self._origin = origin

    async def submit(self, copies: Sequence[CopyRequest], files: InputFiles) -> tuple[CopyAnswer, ...]:
        """Bring the files that are missing there, and submit; see CopyTarget."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def submit(copy: CopyRequest) -> CopyAnswer:
            async with room:
                return await self._submit(copy, files)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(submit(copy)) for copy in copies]
        return tuple(task.result() for task in tasks)

    async def find_again(self, names: Collection[str]) -> Mapping[str, str]:
        """Ask again what was asked, and look among the jobs there for what nothing is kept of; see CopyTarget."""
        found: dict[str, str] = {}
        unknown = []
        for name in names:
            if not await asyncio.to_thread(self._has, name, _REQUEST):
                unknown.append(name)
                continue
            match await self._ask(name, again=True):
                case Submitted(reference):
                    found[name] = reference
                case Unanswered(reason):
                    raise WorldError(reason, transient=True)
                case NotSubmitted() | RefusedByJob():
                    pass
        if unknown and self._token_file is not None:
            found |= await self._seen_there(unknown)
        return found

    async def poll(self, references: Collection[str]) -> Mapping[str, CopyStatus]:
        """Return what the server says of the jobs; see CopyTarget."""
        known = {text: each for text in references if (each := _Reference.of(text))}
        statuses = dict.fromkeys(references, CopyStatus(CopyState.UNKNOWN, "it is no reference to a job there"))
        for token, those in (await self._by_token(known.values())).items():
            statuses |= await self._statuses(token, those)
        return statuses

    async def collect(self, reference: str) -> tuple[LeftFile, ...]:
        """Fetch what the job has left there; see CopyTarget."""
        known = _Reference.of(reference)
        if known is None:
            raise WorldError(f"{reference} is no reference to a job there", transient=False)
        folder = self._of(known.name) / _OUTPUT
        try:
            await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
            return await self._server.outputs(await self._token(known.name), known.job_id, folder)
        except OSError as error:
            raise WorldError(f"{folder}: {error.strerror or error}", transient=True) from error
        except WorldError:
            raise
        except PilotageError as error:
            raise WorldError(f"the output could not be fetched: {error}", transient=True) from error

    async def cancel(self, references: Collection[str]) -> None:
        """Have the jobs removed there; see CopyTarget."""
        known = [each for text in references if (each := _Reference.of(text))]
        for token, those in (await self._by_token(known)).items():
            try:
                await self._server.remove(token, [each.job_id for each in those], "the job router stops it")
            except PilotageError as error:
                log.warning("copies could not be cancelled", copies=len(those), reason=str(error))

    async def forget(self, references: Collection[str]) -> None:
        """Remove what is kept here; the server there keeps its jobs as long as it keeps any. See CopyTarget."""
        for reference in references:
            known = _Reference.of(reference)
            if known is not None:
                await asyncio.to_thread(self._remove, known.name)

    async def _submit(self, copy: CopyRequest, files: InputFiles) -> CopyAnswer:
        """Submit one copy, with what was asked before, if anything was."""
        again = await asyncio.to_thread(self._has, copy.name, _REQUEST)
        try:
            if not again:
                await self._prepare(copy, files)
        except (PilotageError, OSError) as error:
            return await self._not_made(copy.name, error)
        return await self._ask(copy.name, again=again)

    async def _prepare(self, copy: CopyRequest, files: InputFiles) -> None:
        """Bring the files of a copy that are missing there, and keep what is to be asked."""
        folder = self._of(copy.name)
        await asyncio.to_thread(_emptied, folder)
        description = copy.description
        if secret := input_file_of(description, CREDENTIAL_ATTRIBUTE):
            (file,) = (each for each in description.input_files if each.name == secret)
            await files.fetch(copy.job_id, file, folder / _TOKEN)
            await asyncio.to_thread((folder / _TOKEN).chmod, 0o600)
            # It has done what it is for when the copy is there, where others might read it.
            others = tuple(each for each in description.input_files if each.name != secret)
            description = replace(description, input_files=others)
        token = await self._token(copy.name)
        for file in await self._server.missing(token, description.input_files):
            await files.fetch(copy.job_id, file, folder / _INPUT)
            await self._server.upload(token, folder / _INPUT, file)
            await asyncio.to_thread((folder / _INPUT).unlink)
        called = self._called(copy.name)
        described = replace(description, name=called, hold=False, count=None, warnings=())
        request = SubmitJobsRequest(request_id=_request_id(called), descriptions=[description_to_wire(described)])
        await asyncio.to_thread(_write, folder / _REQUEST, request.SerializeToString())

    async def _ask(self, name: str, *, again: bool) -> CopyAnswer:
        """Ask for a copy what is kept for it, unless its answer is kept too.

        Whom the server no longer knows when he asks `again` may have had an answer before.
        """
        folder = self._of(name)
        try:
            kept = await asyncio.to_thread(_text, folder / _JOB_ID)
            if kept.isdecimal():
                return Submitted(str(_Reference(name, int(kept))))
            request = SubmitJobsRequest.FromString(await asyncio.to_thread((folder / _REQUEST).read_bytes))
            job_id = await self._server.submit(await self._token(name), request)
        except (PilotageError, OSError, ValueError) as error:
            if isinstance(error, InvalidInputError) or (isinstance(error, _DENIED) and not again):
                return await self._not_made(name, error)
            return Unanswered(str(error))
        try:
            await asyncio.to_thread(_write, folder / _JOB_ID, str(job_id).encode())
        except OSError as error:
            log.warning("record of a copy could not be written", copy=name, reason=str(error))
        return Submitted(str(_Reference(name, job_id)))

    async def _not_made(self, name: str, error: Exception) -> CopyAnswer:
        """Keep nothing of a copy that was not made; returns whose fault that is."""
        is_own = await asyncio.to_thread(self._has, name, _TOKEN)
        await asyncio.to_thread(self._remove, name)
        if self._token_file is None and not is_own:
            return NotSubmitted(str(error), was_tried=False)
        at_fault = isinstance(error, InvalidInputError) or (is_own and isinstance(error, _DENIED))
        return RefusedByJob(str(error)) if at_fault else NotSubmitted(str(error))

    async def _seen_there(self, names: Collection[str]) -> dict[str, str]:
        """Return the references of copies that went in the name of the routes; raises WorldError."""
        called = {self._called(name): name for name in names}
        try:
            there = await self._server.named(await self._token(""), [*called])
        except WorldError:
            raise
        except PilotageError as error:
            raise WorldError(str(error), transient=True) from error
        return {called[title]: str(_Reference(called[title], job_id)) for title, job_id in there.items()}

    async def _statuses(self, token: str, those: Sequence[_Reference]) -> dict[str, CopyStatus]:
        try:
            jobs = await self._server.jobs(token, [each.job_id for each in those])
        except PilotageError as error:
            return {str(each): CopyStatus(CopyState.UNKNOWN, str(error)) for each in those}
        # A job that a token may no longer see looks like one that is not there.
        hidden = CopyStatus(CopyState.UNKNOWN, "the server shows no such job to whom the copy went for")
        return {str(each): remote_status(jobs[each.job_id]) if each.job_id in jobs else hidden for each in those}

    async def _by_token(self, known: Collection[_Reference]) -> dict[str, list[_Reference]]:
        """Return the copies by the token that they went with; those whose token cannot be had are left out, logged."""
        found: dict[str, list[_Reference]] = {}
        for each in known:
            try:
                found.setdefault(await self._token(each.name), []).append(each)
            except PilotageError as error:
                log.warning("token of a copy cannot be had", copy=each.name, reason=str(error))
        return found

    async def _token(self, name: str) -> str:
        """Return the token that a copy goes with: its owner's, or else the routes' own; raises a PilotageError."""
        own = self._of(name) / _TOKEN if name else None
        is_own = own is not None and await asyncio.to_thread(own.exists)
        path = own if is_own else self._token_file
        if path is None:
            why = f"the routes have none for the server, and the job names no file of its own in {CREDENTIAL_ATTRIBUTE}"
            raise InvalidInputError(Violation("token", why))
        try:
            return token_text(await asyncio.to_thread(path.read_bytes))
        except OSError as error:
            raise WorldError(f"{path}: {error.strerror}", transient=True) from error
        except InvalidInputError as error:
            if is_own:
                raise
            raise WorldError(f"{path}: {error}", transient=False) from error  # no job's fault

    def _called(self, name: str) -> str:
        """Return what a copy is called there."""
        return f"{name}-{self._origin}"

    def _of(self, name: str) -> Path:
        if not name or "/" in name or name.startswith("."):
            raise WorldError(f"{name!r} is not the name of a copy", transient=False)
        return self._folder / name

    def _has(self, name: str, file: str) -> bool:
        return (self._of(name) / file).exists()

    def _remove(self, name: str) -> None:
        folder = self._of(name)
        if folder.exists():
            remove_tree(folder)


def _request_id(called: str) -> str:
    """Return what makes a copy's submission have one effect, however often it is asked for."""
    return hashlib.sha256(called.encode()).hexdigest()


def _emptied(folder: Path) -> None:
    """Make a folder that is empty."""
    if folder.exists():
        remove_tree(folder)
    folder.mkdir(mode=0o700, parents=True)


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    new = path.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    new.replace(path)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
