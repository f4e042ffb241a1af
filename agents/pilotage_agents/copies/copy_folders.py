"""The folders of copies that are pushed into a batch system: what each is given, and what it leaves."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import structlog

from pilotage.ad_lines import ad_lines
from pilotage.ad_text import ad_text
from pilotage.errors import PilotageError, WorldError
from pilotage.folding import fold
from pilotage.job_description import JobDescription
from pilotage.job_environment import JobIdentity
from pilotage.job_folders import NO_PLACE, NULL, JobAtFaultError, inside
from pilotage.job_output import Bounds, cut, find_output, plain_files, size_of, stream_names
from pilotage.resource_tree import QueueId
from pilotage_agents.copies.copy_records import CopyRecord, change_record, read_record, write_record
from pilotage_agents.copies.private_files import (
    check_is_there,
    folder_of,
    make_folder,
    names_untouched,
    remove_folder,
    write_private,
)
from pilotage_agents.core.copies.copy_scripts import (
    AD_NAME,
    ENDED_NAME,
    JOB_NAME,
    PROXY_NAME,
    STARTED_NAME,
    TEMPORARY_NAME,
    WORK_NAME,
    WRAPPER_NAME,
    CopyEnd,
    CopyPlace,
    CopyStart,
    end_in,
    job_script,
    start_in,
    wrapper_script,
)
from pilotage_agents.router.route_edges import CopyRequest, InputFiles, LeftFile

log = structlog.get_logger()

_MOST_READ = 1 << 16
_MOST_PROXY_BYTES = 1 << 20


class CopyFolders:
    """Keeps one folder per copy, by its name, below `root`; what is in them is for their owner's eyes alone.

    `ce_type` is kept with each copy: it finds the batch system again when the tree has its queue no more.
    """

    def __init__(self, root: Path, bounds: Bounds, ce_type: str = "") -> None:
        self._root = root
        self._bounds = bounds
        self._ce_type = ce_type

    def path_of(self, name: str) -> Path:
        """Return the folder of a copy; raises WorldError for a name that cannot be one of a folder."""
        return folder_of(self._root, name)

    def has(self, name: str) -> bool:
        """Return whether the folder of a copy is here."""
        return self.path_of(name).is_dir()

    def check(self) -> None:
        """Raise WorldError unless what the folders lie in is here: a shared one may be away for a while."""
        check_is_there(self._root)

    async def prepare(self, copy: CopyRequest, queue: QueueId, files: InputFiles) -> Path:
        """Make the folder of a copy with all that it is given, the record last; returns it.

        Raises
        ------
        WorldError
            When it cannot be made, or the input does not arrive.
        JobAtFaultError
            When the job cannot be run as it is described.
        """
        folder = self.path_of(copy.name)
        try:
            await asyncio.to_thread(make_folder, self._root, copy.name)
            for each in (WORK_NAME, TEMPORARY_NAME):
                await asyncio.to_thread((folder / each).mkdir, mode=0o700)
            for file in copy.description.input_files:
                target = await asyncio.to_thread(_room_for, folder / WORK_NAME, file.name)
                await files.fetch(copy.job_id, file, target)
                target.chmod(0o700 if file.executable else 0o600)
            await asyncio.to_thread(self._fill, folder, copy, queue)
        except OSError as error:
            raise WorldError(f"{folder}: {error.strerror or error}", transient=True) from error
        except (WorldError, JobAtFaultError):
            raise
        except PilotageError as error:
            raise WorldError(f"its input did not arrive: {error}", transient=True) from error
        return folder

    def record(self, name: str) -> CopyRecord | None:
        """Return what is kept of a copy; None = it was never made ready here."""
        return read_record(self.path_of(name))

    def keep(self, name: str, batch_id: str) -> None:
        """Keep what the batch system calls a copy that was made ready; raises WorldError."""
        change_record(self.path_of(name), batch_id=batch_id)

    def untouched(self, origin: str, before: datetime) -> tuple[str, ...]:
        """Return the names of a router's copies, without its origin, whose folders nobody has touched since a time."""
        return names_untouched(self._root, origin, before)

    def start_of(self, name: str) -> CopyStart | None:
        """Return what a copy has written down of its start, None = nothing."""
        return start_in(_small_text(self.path_of(name) / STARTED_NAME))

    def end_of(self, name: str) -> CopyEnd | None:
        """Return what a copy has written down of its end, None = nothing that is whole."""
        return end_in(_small_text(self.path_of(name) / ENDED_NAME))

    def output_of(self, name: str) -> tuple[LeftFile, ...]:
        """Return the files that a copy has left, none larger than may be; raises WorldError."""
        record = self.record(name)
        if record is None:
            raise WorldError(f"{self.path_of(name)}: what is kept of the copy cannot be read", transient=False)
        work = self.path_of(name) / WORK_NAME
        try:
            found = find_output(record.description, work, self._bounds, record.seen)
            files = {each: Path(os.path.realpath(path)) for each, path in found.files.items()}
            cut_files = self._cut(name, files, record.cut)
        except OSError as error:
            raise WorldError(f"{work}: the output cannot be read: {error}", transient=True) from error
        if found.notes:
            log.info("output of a copy is not whole", copy=name, notes=found.notes)
        return tuple(LeftFile(each, path, truncated=each in cut_files) for each, path in files.items())

    def _cut(self, name: str, files: Mapping[str, Path], cut_before: frozenset[str]) -> frozenset[str]:
        """Cut the files of a copy that are too long; returns the names of all that are not whole.

        They are written down before: whoever collects again finds them short.
        """
        most = self._bounds.file_bytes
        too_long = {each: path for each, path in files.items() if size_of(path) > most}
        cut_files = cut_before | too_long.keys()
        if cut_files != cut_before:
            change_record(self.path_of(name), cut=sorted(cut_files))
        for path in too_long.values():
            if not cut(path, most):
                raise OSError(f"{path} cannot be cut to {most} bytes")
        return cut_files

    def remove(self, name: str) -> None:
        """Remove the folder of a copy, if it is there."""
        remove_folder(self.path_of(name))

    def _fill(self, folder: Path, copy: CopyRequest, queue: QueueId) -> None:
        """Write what a copy is given into its folder, which has its input files, and what is kept of it."""
        _write_scripts(folder, copy, queue)
        seen = plain_files(folder / WORK_NAME) if copy.description.new_files_come_back else None
        write_record(folder, CopyRecord(copy.description, seen, str(queue), self._ce_type))


def _write_scripts(folder: Path, copy: CopyRequest, queue: QueueId) -> None:
    """Write the scripts and all else that a copy is given into its folder, which has its input files."""
    description, work = copy.description, folder / WORK_NAME
    for name in stream_names(description):
        _room_for(work, name)
    if description.stdin not in (None, "", NULL) and not _is_file(inside(work, str(description.stdin))):
        raise JobAtFaultError(f"its standard input {description.stdin} is not among its files")
    place = CopyPlace(str(queue), copy.route, _has_program(description, work), _proxy(copy, folder))
    try:
        script = job_script(description, _identity(copy), place)
    except ValueError as error:
        raise JobAtFaultError(f"its arguments cannot be taken apart: {error}") from error
    write_private(folder / JOB_NAME, script.encode())
    write_private(folder / WRAPPER_NAME, wrapper_script().encode(), 0o700)
    write_private(folder / AD_NAME, ad_lines(ad_text(copy.ad)).encode(), 0o400)


def _room_for(work: Path, name: str) -> Path:
    """Return the path of a file that a job names, with the folders that it lies in made.

    Raises JobAtFaultError, also where another of the job's files is in its way.
    """
    path = inside(work, name)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_taken = path.is_dir()
    except OSError as error:
        if error.errno in NO_PLACE:
            raise JobAtFaultError(f"its file {name:.300} has no place in its folder: {error.strerror}") from error
        raise
    if is_taken:
        raise JobAtFaultError(f"its file {name:.300} has no place in its folder: others of its files make it a folder")
    return path


def _is_file(path: Path) -> bool:
    """Return whether there is a file, which none is of a name that no file can have."""
    try:
        return path.is_file()
    except OSError as error:
        if error.errno in NO_PLACE:
            return False
        raise


def _has_program(description: JobDescription, work: Path) -> bool:
    """Return whether the job's program lies in its folder, where it may be executed then."""
    program = description.executable
    if program.startswith("/"):
        return False
    here = inside(work, program.removeprefix("./"))
    if _is_file(here):
        here.chmod(here.stat().st_mode | 0o700)
        return True
    if "/" in program:
        raise JobAtFaultError(f"there is no program {program} among the job's files")
    return False


def _proxy(copy: CopyRequest, folder: Path) -> str:
    """Return where in its folder the copy has the X.509 proxy of its route, "" = the route gives none."""
    if not copy.shared_proxy:
        return ""
    write_private(folder / PROXY_NAME, _read_secret(Path(copy.shared_proxy)))
    return PROXY_NAME


def _read_secret(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MOST_PROXY_BYTES)


def _identity(copy: CopyRequest) -> JobIdentity:
    numbers = {fold(name): value for name, value in copy.ad.items() if isinstance(value, int)}
    cluster, process = numbers.get("clusterid", copy.job_id), numbers.get("procid", 0)
    return JobIdentity(copy.name, copy.job_id, copy.attempt, cluster, process, copy.owner, copy.vo)


def _small_text(path: Path) -> str:
    """Return the text of a small file that a copy has written; "" = there is none, or it is something else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return file.read(_MOST_READ).decode(errors="replace")
