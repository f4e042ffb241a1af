"""Another Pilotage server as a target: each routed job is a job there.

A reference is the routed job's name and its id there. A request is saved before it is sent: sent again, it has one
effect. A job is submitted with its owner's token for that server if it brings one among its files and names it in the
attribute ScitokensFile, else with the token of the routes. Each job is polled with its own token. The X.509 proxy of a
route is one of the job's input files there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import structlog
from google.protobuf.message import DecodeError

from pilotage.errors import (
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    PilotageError,
    UnauthenticatedError,
    WorldError,
)
from pilotage.job_description import InputFile, JobDescription
from pilotage.jobs.environment import PROXY_ATTRIBUTE, input_file_of
from pilotage.jobs.wire import description_to_wire
from pilotage.text import fold
from pilotage.v1.job_service_pb2 import SubmitJobsRequest
from pilotage_agents.batch_systems.base import NotSubmitted, Submitted, Unanswered
from pilotage_agents.router.core.model import CollectedFile, RoutedJobState, RoutedJobStatus
from pilotage_agents.router.core.routed_job import JobReference, remote_status
from pilotage_agents.router.ports import (
    FindAnswer,
    InputFiles,
    RefusedByJob,
    RoutedJobAnswer,
    RoutedJobRequest,
    RouteUnsuitable,
)
from pilotage_agents.router.targets.job_folders import (
    check_is_there,
    folder_of,
    make_folder,
    names_untouched,
    read_proxy,
    remove_folder,
    write_private,
)
from pilotage_agents.router.targets.remote_server import RemoteCaller, RemoteServer

_TOKEN, _REQUEST, _JOB_ID, _CALLER, _OUTPUT = "token", "request", "job-id", "in-the-name-of", "output"


class RemoteJobFolders:
    """Keeps one private folder per routed job below `root`; `origin` distinguishes this router's from others'."""

    def __init__(self, root: Path, origin: str) -> None:
        self._root = root
        self._origin = origin

    def remote_name(self, name: str) -> str:
        """Return the name of a routed job at the server and of its folder."""
        return f"{name}-{self._origin}"

    def path_of(self, name: str) -> Path:
        """Return the folder of a routed job; raises WorldError for an invalid name."""
        return folder_of(self._root, self.remote_name(name))

    def check(self) -> None:
        """Raise WorldError unless the parent of the folders exists."""
        check_is_there(self._root)

    def make(self, name: str) -> Path:
        """Make the folder of a routed job, in place of an earlier one."""
        check_is_there(self._root)
        return make_folder(self._root, self.remote_name(name))

    def remove(self, name: str) -> None:
        """Remove the folder of a routed job, if it exists."""
        remove_folder(self.path_of(name))

    def strays(self, known: Collection[str], before: datetime) -> dict[str, int | None]:
        """Return the unknown jobs whose folders were not modified since a time, with their ids there."""
        names = names_untouched(self._root, self._origin, before)
        return {name: self.job_id(name) for name in names if name not in known}

    def token_path(self, name: str) -> Path:
        """Return the path of the owner's token."""
        return self.path_of(name) / _TOKEN

    def has_token(self, name: str) -> bool:
        """Return whether the job uses its owner's token."""
        return self.token_path(name).exists()

    def has_request(self, name: str) -> bool:
        """Return whether the server may have received the request."""
        return (self.path_of(name) / _REQUEST).exists()

    def request(self, name: str) -> SubmitJobsRequest:
        """Return the saved request; raises OSError, or WorldError for one that cannot be read."""
        try:
            return SubmitJobsRequest.FromString((self.path_of(name) / _REQUEST).read_bytes())
        except DecodeError as error:
            raise WorldError(f"{self.path_of(name) / _REQUEST}: cannot be read: {error}", transient=False) from error

    def save_request(self, name: str, request: SubmitJobsRequest) -> None:
        """Save the request before it is sent."""
        write_private(self.path_of(name) / _REQUEST, request.SerializeToString())

    def job_id(self, name: str) -> int | None:
        """Return the saved id of the job there, None = none."""
        try:
            saved = (self.path_of(name) / _JOB_ID).read_text()
        except FileNotFoundError:
            return None
        return int(saved) if saved.isdecimal() else None

    def save_job_id(self, name: str, job_id: int) -> None:
        """Save the id of the job there."""
        write_private(self.path_of(name) / _JOB_ID, str(job_id).encode())

    def caller(self, name: str) -> tuple[str, str] | None:
        """Return the owner and the VO that submitted the job, None = not saved."""
        try:
            owner, vo = json.loads((self.path_of(name) / _CALLER).read_text())
        except (OSError, ValueError, TypeError):
            return None
        return str(owner), str(vo)

    def save_caller(self, name: str, caller: RemoteCaller) -> None:
        """Save the owner and the VO that submitted the job."""
        write_private(self.path_of(name) / _CALLER, json.dumps((caller.owner, caller.vo)).encode())

    def output(self, name: str) -> Path:
        """Make the folder for the output; returns it."""
        check_is_there(self._root)
        folder = self.path_of(name) / _OUTPUT
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder


log = structlog.get_logger()

CREDENTIAL_ATTRIBUTE = "ScitokensFile"
"""The attribute that names the file with the owner's token for the server."""


class RemoteJobTokens:
    """Reads tokens at every use, as they may be renewed. `routes` is the file of the routes' token, None = none."""

    def __init__(self, folders: RemoteJobFolders, routes: Path | None) -> None:
        self._folders = folders
        self._routes = routes

    async def of(self, name: str) -> str:
        """Return the token of a routed job: its owner's, or else that of the routes; "" = that of the routes.

        Raises
        ------
        UnauthenticatedError
            When there is none, or the owner's file holds none.
        WorldError
            When the file of the routes cannot be read, or holds none.
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
        """Return the jobs by token, and by reference why others have none."""
        found: dict[str, list[JobReference]] = {}
        without: dict[str, str] = {}
        for each in known:
            try:
                found.setdefault(await self.of(each.name), []).append(each)
            except PilotageError as error:
                log.warning("token of a routed job is not available", routed_job=each.name, reason=str(error))
                without[str(each)] = str(error)
        return found, without


def _token_in(content: bytes) -> str:
    """Return the token in a file, "" = it holds none."""
    try:
        text = content.decode("ascii").strip()
    except UnicodeDecodeError:
        return ""
    return text if text.isprintable() and " " not in text else ""


_HIDDEN = RoutedJobStatus(RoutedJobState.UNKNOWN, "the server does not show the job to the present owner of its token")
_PURGED = RoutedJobStatus(RoutedJobState.GONE, "the server no longer has the job")
_ELSEWHERE = RoutedJobStatus(
    RoutedJobState.UNKNOWN,
    "its folder is not here, and the server shows no such job to whom the routes' token is of: one that went in its "
    "owner's name is followed where its folder is; else only pilotage routes give-up frees its job, with all others",
)


class RemoteJobPoller:
    """Polls jobs at the server; an invalid token affects only its own jobs."""

    def __init__(self, server: RemoteServer, folders: RemoteJobFolders, tokens: RemoteJobTokens) -> None:
        self._server = server
        self._folders = folders
        self._tokens = tokens

    async def poll(self, references: Collection[str]) -> Mapping[str, RoutedJobStatus]:
        """Return the status of every reference."""
        known = [each for text in references if (each := JobReference.parse(text))]
        statuses = dict.fromkeys(
            references, RoutedJobStatus(RoutedJobState.UNKNOWN, "it is not a reference to a job of the server")
        )
        by_token, without = await self._tokens.by_token(known)
        for token, group in by_token.items():
            statuses |= await self._statuses(token, group)
        return statuses | {text: RoutedJobStatus(RoutedJobState.UNKNOWN, why) for text, why in without.items()}

    async def _statuses(self, token: str, group: Sequence[JobReference]) -> dict[str, RoutedJobStatus]:
        try:
            jobs = await self._server.jobs(token, [each.job_id for each in group])
        except PilotageError as error:
            log.warning("server returns no status", jobs=len(group), example=group[0].name, reason=str(error))
            return {str(each): RoutedJobStatus(RoutedJobState.UNKNOWN, str(error)) for each in group}
        statuses = {str(each): remote_status(jobs[each.job_id]) for each in group if each.job_id in jobs}
        missing = [each for each in group if each.job_id not in jobs]
        return statuses | (await self._missing(token, missing) if missing else {})

    async def _missing(self, token: str, group: Sequence[JobReference]) -> dict[str, RoutedJobStatus]:
        """Return the statuses of jobs that the server does not show with this token.

        The server hides a job that the token may not see in the same way as a missing one. So a job is gone only if the
        token may see it.
        """
        try:
            caller = await self._server.caller(token)
        except PilotageError as error:
            return {str(each): RoutedJobStatus(RoutedJobState.UNKNOWN, str(error)) for each in group}
        identity = (caller.owner, caller.vo)
        statuses = {}
        for each in group:
            saved = await asyncio.to_thread(self._folders.caller, each.name)
            is_here = await asyncio.to_thread(self._folders.has_request, each.name)
            sure = caller.sees_all or saved == identity
            statuses[str(each)] = _PURGED if sure else _HIDDEN if is_here else _ELSEWHERE
        if unclear := [name for name, status in statuses.items() if status.state is RoutedJobState.UNKNOWN]:
            reason = statuses[unclear[0]].reason
            log.warning("server does not show jobs", jobs=len(unclear), example=unclear[0], reason=reason)
        return statuses


_INPUT = "input"
_PROXY_FILE = "x509-proxy-of-the-route"
_AT_ONCE = 8
_DENIED = (PermissionDeniedError, UnauthenticatedError)


def _with_proxy(description: JobDescription, proxy: bytes) -> JobDescription:
    """Return the job with the route's X.509 proxy among its files, in place of a proxy that it names itself."""
    name, taken = _PROXY_FILE, {file.name for file in description.input_files}
    while name in taken:
        name += "_"
    file = InputFile(name, checksum=_checksum(proxy), size=len(proxy))
    others = {each: value for each, value in description.attributes.items() if fold(each) != fold(PROXY_ATTRIBUTE)}
    return replace(
        description,
        input_files=(*description.input_files, file),
        attributes={**others, PROXY_ATTRIBUTE: name},
    )


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class RemoteServerTarget:
    """Submits jobs to another server; `folders` keeps requests and owners' tokens.

    `token_file` holds the routes' token, None = only jobs with a token of their own can go there.
    """

    def __init__(self, server: RemoteServer, folders: RemoteJobFolders, token_file: Path | None) -> None:
        self._server = server
        self._folders = folders
        self._token_file = token_file
        self._tokens = RemoteJobTokens(folders, token_file)
        self._poller = RemoteJobPoller(server, folders, self._tokens)

    async def submit(self, requests: Sequence[RoutedJobRequest], files: InputFiles) -> tuple[RoutedJobAnswer, ...]:
        """Upload missing files, and submit; see RoutedJobTarget."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def submit(job: RoutedJobRequest) -> RoutedJobAnswer:
            async with room:
                return await self._submit(job, files)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(submit(job)) for job in requests]
        return tuple(task.result() for task in tasks)

    async def find_again(self, names: Collection[str]) -> Mapping[str, FindAnswer]:
        """Repeat saved requests, and search the jobs there for names without one; see RoutedJobTarget."""
        await asyncio.to_thread(self._folders.check)
        found: dict[str, FindAnswer] = {}
        unknown = []
        for name in names:
            if not await asyncio.to_thread(self._folders.has_request, name):
                unknown.append(name)
                continue
            match await self._send_request(name, again=True):
                case Submitted(reference):
                    found[name] = reference
                case Unanswered() as unclear:
                    found[name] = unclear
                case NotSubmitted() | RefusedByJob() | RouteUnsuitable():
                    pass
        if unknown and self._token_file is not None:
            found |= await self._found_by_name(unknown)
        return found

    async def poll(self, references: Collection[str]) -> Mapping[str, RoutedJobStatus]:
        """Return the statuses of the jobs; see RoutedJobTarget."""
        return await self._poller.poll(references)

    async def collect(self, reference: str) -> tuple[CollectedFile, ...]:
        """Download the output of the job; see RoutedJobTarget."""
        known = JobReference.parse(reference)
        if known is None:
            raise WorldError(f"{reference} is not a reference to a job of the server", transient=False)
        try:
            folder = await asyncio.to_thread(self._folders.output, known.name)
            return await self._server.outputs(await self._tokens.of(known.name), known.job_id, folder)
        except OSError as error:
            raise WorldError(f"{error.filename}: {error.strerror or error}", transient=True) from error
        except WorldError:
            raise
        except PilotageError as error:
            # A listed content that is missing is lost for good. A job that is not shown is polled again first.
            is_lost = isinstance(error, InvalidInputError) or (
                isinstance(error, NotFoundError) and error.kind == "content"
            )
            raise WorldError(f"the output could not be fetched: {error}", transient=not is_lost) from error

    async def cancel(self, references: Collection[str]) -> None:
        """Remove the jobs there; see RoutedJobTarget."""
        known = [each for text in references if (each := JobReference.parse(text))]
        by_token, _ = await self._tokens.by_token(known)
        for token, group in by_token.items():
            try:
                await self._server.remove(token, [each.job_id for each in group], "the job router stops it")
            except PilotageError as error:
                log.warning("jobs could not be cancelled", jobs=len(group), reason=str(error))

    async def forget(self, names: Collection[str]) -> None:
        """Remove the local folders; the server keeps its jobs as long as any. See RoutedJobTarget."""
        for name in names:
            await asyncio.to_thread(self._folders.remove, name)

    async def leftovers(self, known: Collection[str], before: datetime) -> Mapping[str, str]:
        """Return the unknown jobs with folders here; see RoutedJobTarget."""
        found = await asyncio.to_thread(self._folders.strays, known, before)
        return {name: "" if job_id is None else str(JobReference(name, job_id)) for name, job_id in found.items()}

    async def _submit(self, job: RoutedJobRequest, files: InputFiles) -> RoutedJobAnswer:
        """Submit one job, with the saved request if there is one."""
        again = await asyncio.to_thread(self._folders.has_request, job.name)
        try:
            if not again:
                await self._prepare(job, files)
        except (PilotageError, OSError) as error:
            return await self._not_made(job.name, error)
        return await self._send_request(job.name, again=again)

    async def _prepare(self, job: RoutedJobRequest, files: InputFiles) -> None:
        """Upload missing files, and save the request."""
        folder = await asyncio.to_thread(self._folders.make, job.name)
        description = job.description
        if secret := input_file_of(description, CREDENTIAL_ATTRIBUTE):
            (file,) = (each for each in description.input_files if each.name == secret)
            own = self._folders.token_path(job.name)
            await files.fetch(job.job_id, file, own)
            await asyncio.to_thread(own.chmod, 0o600)
            # The token is for the submission only; with the job, others might read it.
            others = tuple(each for each in description.input_files if each.name != secret)
            description = replace(description, input_files=others)
        token = await self._tokens.of(job.name)
        proxy = await asyncio.to_thread(read_proxy, job.shared_proxy) if job.shared_proxy else None
        if proxy is not None:
            description = _with_proxy(description, proxy)
        for file in await self._server.missing(token, description.input_files):
            if proxy is not None and file.checksum == _checksum(proxy):
                await asyncio.to_thread(write_private, folder / _INPUT, proxy)
            else:
                await files.fetch(job.job_id, file, folder / _INPUT)
            await self._server.upload(token, folder / _INPUT, file)
            await asyncio.to_thread((folder / _INPUT).unlink)
        full_name = self._folders.remote_name(job.name)
        described = replace(description, name=full_name, hold=False, count=None, warnings=())
        request = SubmitJobsRequest(
            request_id=hashlib.sha256(full_name.encode()).hexdigest(), descriptions=[description_to_wire(described)]
        )
        await asyncio.to_thread(self._folders.save_request, job.name, request)

    async def _send_request(self, name: str, *, again: bool) -> RoutedJobAnswer:
        """Send the saved request of a job, unless its answer is saved too.

        A caller that is denied when it sends a request `again` may have had an answer before.
        """
        try:
            if (saved := await asyncio.to_thread(self._folders.job_id, name)) is not None:
                return Submitted(str(JobReference(name, saved)))
            request = await asyncio.to_thread(self._folders.request, name)
            token = await self._tokens.of(name)
            job_id = await self._server.submit(token, request)
        except (PilotageError, OSError, ValueError) as error:
            if isinstance(error, InvalidInputError) or (isinstance(error, _DENIED) and not again):
                return await self._not_made(name, error)
            return Unanswered(str(error))
        await self._save_answer(name, job_id, token)
        return Submitted(str(JobReference(name, job_id)))

    async def _save_answer(self, name: str, job_id: int, token: str) -> None:
        """Save the id and the caller of a submitted job; without them, less is known later."""
        try:
            await asyncio.to_thread(self._folders.save_job_id, name, job_id)
            await asyncio.to_thread(self._folders.save_caller, name, await self._server.caller(token))
        except (PilotageError, OSError) as error:
            log.warning("record of a routed job could not be written", routed_job=name, reason=str(error))

    async def _not_made(self, name: str, error: Exception) -> RoutedJobAnswer:
        """Remove the folder of a job that was not submitted; returns whose fault that is."""
        is_own = await asyncio.to_thread(self._folders.has_token, name)
        await asyncio.to_thread(self._folders.remove, name)
        if self._token_file is None and not is_own and isinstance(error, UnauthenticatedError):
            return RouteUnsuitable(str(error))
        at_fault = isinstance(error, InvalidInputError) or (is_own and isinstance(error, _DENIED))
        return RefusedByJob(str(error)) if at_fault else NotSubmitted(str(error))

    async def _found_by_name(self, names: Collection[str]) -> dict[str, FindAnswer]:
        """Return the references of jobs that were submitted with the routes' token, or that they are unknown."""
        by_remote_name = {self._folders.remote_name(name): name for name in names}
        try:
            there = await self._server.named(await self._tokens.of(""), [*by_remote_name])
        except PilotageError as error:
            return dict.fromkeys(names, Unanswered(str(error)))
        return {
            by_remote_name[title]: str(JobReference(by_remote_name[title], job_id)) for title, job_id in there.items()
        }
