"""The folders of routed jobs at queues: their input, scripts, records and output.

The record of a job, `copy.json`, is enough to monitor it until its end, whatever becomes of the resource tree. Private
files are readable by the agent's user only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import structlog

from pilotage.classads.text import ad_lines, ad_text
from pilotage.errors import PilotageError, WorldError
from pilotage.job_description import JobDescription
from pilotage.jobs.environment import JobIdentity
from pilotage.jobs.files import (
    NULL,
    UNPLACEABLE_ERRNOS,
    JobFaultError,
    OutputLimits,
    find_output,
    inside,
    plain_files,
    remove_tree,
    size_of,
    stream_names,
    truncate,
)
from pilotage.resources.tree import QueueId
from pilotage.text import fold
from pilotage_agents.router.core.model import CollectedFile
from pilotage_agents.router.core.script import (
    AD_NAME,
    ENDED_NAME,
    JOB_NAME,
    PROXY_NAME,
    STARTED_NAME,
    TEMPORARY_NAME,
    WORK_NAME,
    WRAPPER_NAME,
    WrapperEnd,
    WrapperStart,
    job_script,
    parse_end,
    parse_start,
    wrapper_script,
)
from pilotage_agents.router.ports import InputFiles, RoutedJobRequest


def folder_of(root: Path, name: str) -> Path:
    """Return the folder of a routed job below `root`; raises WorldError for an invalid name."""
    if not name or "/" in name or name.startswith("."):
        raise WorldError(f"{name!r} is not the name of a routed job", transient=False)
    return root / name


def check_is_there(root: Path) -> None:
    """Raise WorldError unless the parent of the folders exists: a shared one may not be mounted."""
    if not root.parent.is_dir():
        raise WorldError(f"{root.parent}: is not there", transient=True)


def make_folder(root: Path, name: str) -> Path:
    """Make the folder of a routed job, in place of one that was never completed."""
    folder = folder_of(root, name)
    remove_folder(folder)
    # The parent must exist: in a new one no other router would find the folder.
    root.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700)
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder, if it exists."""
    if folder.exists():
        remove_tree(folder)


def names_untouched(root: Path, origin: str, before: datetime) -> tuple[str, ...]:
    """Return the names of a router's jobs whose folders were not modified since a time.

    Folders of other routers may be beside them. Raises WorldError.
    """
    ending, since = f"-{origin}", before.timestamp()
    try:
        with os.scandir(root) as entries:
            own = [entry for entry in entries if entry.name.endswith(ending) and not entry.name.startswith(".")]
            return tuple(entry.name.removesuffix(ending) for entry in own if _changed_s(entry) < since)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise WorldError(f"{root}: {error.strerror}", transient=True) from error


def _changed_s(entry: os.DirEntry[str]) -> float:
    """Return the modification time of an entry in seconds of the epoch; one that has just gone counts as new."""
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return float("inf")


def write_private(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file atomically; only its owner can read it."""
    new = path.with_name(f"{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
    new.replace(path)


_NAME = "copy.json"


@dataclass(frozen=True, slots=True)
class RoutedJobFile:
    """The record of a prepared job.

    `description` says where its output is, and `seen` which files existed before it. `queue` and `ce_type` are its
    target. `batch_id` "" = not known yet. `cut` names the output files that were cut.
    """

    description: JobDescription
    seen: Mapping[str, tuple[int, int]] | None
    queue: str
    ce_type: str
    batch_id: str = ""
    cut: frozenset[str] = frozenset()


def write_record(folder: Path, record: RoutedJobFile) -> None:
    """Write the record of a prepared job; raises OSError."""
    description = record.description
    fields = {
        "stdout": description.stdout,
        "stderr": description.stderr,
        "output_files": description.output_files,
        "seen": record.seen,
        "queue": record.queue,
        "ce_type": record.ce_type,
        "batch_id": record.batch_id,
        "cut": sorted(record.cut),
    }
    write_private(folder / _NAME, json.dumps(fields).encode())


def read_record(folder: Path) -> RoutedJobFile | None:
    """Return the record of a job; None = it was never prepared here."""
    try:
        return _record_in(json.loads((folder / _NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def change_record(folder: Path, **fields: object) -> None:
    """Change fields of a job's record; raises WorldError."""
    path = folder / _NAME
    try:
        write_private(path, json.dumps({**json.loads(path.read_text(encoding="utf-8")), **fields}).encode())
    except (OSError, ValueError) as error:
        raise WorldError(f"{path}: {error}", transient=True) from error


def kept_ce_type(root: Path, queue: QueueId) -> str:
    """Return the CEType of a queue by the records of its jobs below `root`; "" = it has none."""
    records = (read_record(folder) for folder in root.iterdir()) if root.is_dir() else ()
    return next((record.ce_type for record in records if record is not None and record.queue == str(queue)), "")


def _record_in(fields: Any) -> RoutedJobFile:
    seen = fields["seen"] and {name: (size, changed) for name, (size, changed) in fields["seen"].items()}
    description = JobDescription(
        executable="",
        stdout=fields["stdout"],
        stderr=fields["stderr"],
        output_files=tuple(fields["output_files"]),
        new_files_come_back=seen is not None,
    )
    where = fields["queue"], fields["ce_type"]
    return RoutedJobFile(description, seen, *where, fields["batch_id"], frozenset(fields["cut"]))


log = structlog.get_logger()

_MAX_READ = 1 << 16
_MAX_PROXY_BYTES = 1 << 20


class RoutedJobFolders:
    """Keeps one private folder per routed job, by its name, below `root`.

    `ce_type` is saved with each job: it selects the batch system after the queue has left the tree. A job that fails
    keeps its place until `plug_s` after its start.
    """

    def __init__(self, root: Path, bounds: OutputLimits, ce_type: str = "", plug_s: int = 0) -> None:
        self._root = root
        self._bounds = bounds
        self._ce_type = ce_type
        self._plug_s = plug_s

    @property
    def has_plug(self) -> bool:
        """Whether jobs may keep their places after their ends."""
        return self._plug_s > 0

    def path_of(self, name: str) -> Path:
        """Return the folder of a job; raises WorldError for an invalid name."""
        return folder_of(self._root, name)

    def has(self, name: str) -> bool:
        """Return whether the folder of a job exists."""
        return self.path_of(name).is_dir()

    def check(self) -> None:
        """Raise WorldError unless the parent of the folders exists: a shared one may not be mounted."""
        check_is_there(self._root)

    async def prepare(self, request: RoutedJobRequest, queue: QueueId, files: InputFiles) -> Path:
        """Make the folder of a job with all its input, the record last; returns it.

        Raises
        ------
        WorldError
            When it cannot be made, or the input does not arrive.
        JobFaultError
            When the job cannot run as it is described.
        """
        folder = self.path_of(request.name)
        try:
            await asyncio.to_thread(make_folder, self._root, request.name)
            for each in (WORK_NAME, TEMPORARY_NAME):
                await asyncio.to_thread((folder / each).mkdir, mode=0o700)
            for file in request.description.input_files:
                target = await asyncio.to_thread(_output_path, folder / WORK_NAME, file.name)
                await files.fetch(request.job_id, file, target)
                target.chmod(0o700 if file.executable else 0o600)
            await asyncio.to_thread(self._fill, folder, request, queue)
        except OSError as error:
            raise WorldError(f"{folder}: {error.strerror or error}", transient=True) from error
        except (WorldError, JobFaultError):
            raise
        except PilotageError as error:
            raise WorldError(f"its input did not arrive: {error}", transient=True) from error
        return folder

    def record(self, name: str) -> RoutedJobFile | None:
        """Return the record of a job; None = it was never prepared here."""
        return read_record(self.path_of(name))

    def keep(self, name: str, batch_id: str) -> None:
        """Save the batch id of a prepared job; raises WorldError."""
        change_record(self.path_of(name), batch_id=batch_id)

    def untouched(self, origin: str, before: datetime) -> tuple[str, ...]:
        """Return the names, without origin, of a router's jobs whose folders were not modified since a time."""
        return names_untouched(self._root, origin, before)

    def start_of(self, name: str) -> WrapperStart | None:
        """Return the start of a job by its wrapper, None = not written."""
        return parse_start(_small_text(self.path_of(name) / STARTED_NAME))

    def end_of(self, name: str) -> WrapperEnd | None:
        """Return the end of a job by its wrapper, None = not completely written."""
        return parse_end(_small_text(self.path_of(name) / ENDED_NAME))

    def output_of(self, name: str) -> tuple[CollectedFile, ...]:
        """Return the output files of a job, cut to the limit; raises WorldError."""
        record = self.record(name)
        if record is None:
            raise WorldError(f"{self.path_of(name)}: the record of the job cannot be read", transient=False)
        work = self.path_of(name) / WORK_NAME
        try:
            found = find_output(record.description, work, self._bounds, record.seen)
            files = {each: Path(os.path.realpath(path)) for each, path in found.files.items()}
            cut_files = self._cut(name, files, record.cut)
        except OSError as error:
            raise WorldError(f"{work}: the output cannot be read: {error}", transient=True) from error
        if found.notes:
            log.info("output of a job is incomplete", routed_job=name, notes=found.notes)
        return tuple(CollectedFile(each, str(path), truncated=each in cut_files) for each, path in files.items())

    def _cut(self, name: str, files: Mapping[str, Path], cut_before: frozenset[str]) -> frozenset[str]:
        """Cut the output files that are too long; returns the names of all cut files.

        The record is changed first: a repeated collection finds the files short already.
        """
        most = self._bounds.file_bytes
        too_long = {each: path for each, path in files.items() if size_of(path) > most}
        cut_files = cut_before | too_long.keys()
        if cut_files != cut_before:
            change_record(self.path_of(name), cut=sorted(cut_files))
        for path in too_long.values():
            if not truncate(path, most):
                raise OSError(f"{path} cannot be cut to {most} bytes")
        return cut_files

    def remove(self, name: str) -> None:
        """Remove the folder of a job, if it exists."""
        remove_folder(self.path_of(name))

    def _fill(self, folder: Path, request: RoutedJobRequest, queue: QueueId) -> None:
        """Write scripts and record into the folder of a job, which has its input files."""
        _write_scripts(folder, request, queue, self._plug_s)
        seen = plain_files(folder / WORK_NAME) if request.description.new_files_come_back else None
        write_record(folder, RoutedJobFile(request.description, seen, str(queue), self._ce_type))


def _write_scripts(folder: Path, request: RoutedJobRequest, queue: QueueId, plug_s: int) -> None:
    """Write the scripts, the ad and the proxy into the folder of a job, which has its input files."""
    description, work = request.description, folder / WORK_NAME
    for name in stream_names(description):
        _output_path(work, name)
    if description.stdin not in (None, "", NULL) and not _is_file(inside(work, str(description.stdin))):
        raise JobFaultError(f"its standard input {description.stdin} is not among its files")
    has_program, proxy = _has_program(description, work), _proxy(request, folder)
    try:
        script = job_script(description, _identity(request), queue, request.route, has_program=has_program, proxy=proxy)
    except ValueError as error:
        raise JobFaultError(f"its arguments cannot be split: {error}") from error
    write_private(folder / JOB_NAME, script.encode())
    wrapper = wrapper_script(plug_s, description.success_exit_code or 0)
    write_private(folder / WRAPPER_NAME, wrapper.encode(), 0o700)
    write_private(folder / AD_NAME, ad_lines(ad_text(request.ad)).encode(), 0o400)


def _output_path(work: Path, name: str) -> Path:
    """Return the path of a file of the job, and make its parent folders.

    Raises JobFaultError, also if another file of the job blocks the path.
    """
    path = inside(work, name)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_taken = path.is_dir()
    except OSError as error:
        if error.errno in UNPLACEABLE_ERRNOS:
            raise JobFaultError(f"its file {name:.300} has no place in its folder: {error.strerror}") from error
        raise
    if is_taken:
        raise JobFaultError(f"its file {name:.300} has no place in its folder: others of its files make it a folder")
    return path


def _is_file(path: Path) -> bool:
    """Return whether a file exists; an invalid name has none."""
    try:
        return path.is_file()
    except OSError as error:
        if error.errno in UNPLACEABLE_ERRNOS:
            return False
        raise


def _has_program(description: JobDescription, work: Path) -> bool:
    """Return whether the job's program is in its folder, and make it executable."""
    program = description.executable
    if program.startswith("/"):
        return False
    here = inside(work, program.removeprefix("./"))
    if _is_file(here):
        here.chmod(here.stat().st_mode | 0o700)
        return True
    if "/" in program:
        raise JobFaultError(f"there is no program {program} among the job's files")
    return False


def _proxy(request: RoutedJobRequest, folder: Path) -> str:
    """Return the path of the route's X.509 proxy in the job's folder, "" = the route gives none."""
    if not request.shared_proxy:
        return ""
    write_private(folder / PROXY_NAME, read_proxy(request.shared_proxy))
    return PROXY_NAME


def read_proxy(path: str) -> bytes:
    """Return the content of a route's X.509 proxy; raises OSError."""
    with Path(path).open("rb") as file:
        return file.read(_MAX_PROXY_BYTES)


def _identity(request: RoutedJobRequest) -> JobIdentity:
    numbers = {fold(name): value for name, value in request.ad.items() if isinstance(value, int)}
    cluster, process = numbers.get("clusterid", request.job_id), numbers.get("procid", 0)
    return JobIdentity(request.name, request.job_id, request.attempt, cluster, process, request.owner, request.vo)


def _small_text(path: Path) -> str:
    """Return the text of a small file that a job has written; "" = there is none, or it is not a regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return file.read(_MAX_READ).decode(errors="replace")
