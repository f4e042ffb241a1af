"""The folders of copies that are pushed into a batch system: what each is given, and what it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from pilotage.ad_lines import ad_lines
from pilotage.ad_text import ad_text
from pilotage.errors import PilotageError, WorldError
from pilotage.folding import fold
from pilotage.job_description import JobDescription
from pilotage.job_environment import JobIdentity
from pilotage.job_folders import NULL, JobAtFaultError, inside, remove_tree
from pilotage.job_output import Bounds, cut, find_output, plain_files, size_of, stream_names
from pilotage.resource_tree import QueueId
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

_RECORD_NAME = "copy.json"
_MOST_READ = 1 << 16
_MOST_PROXY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """What is kept of a copy that was made ready: where its output is, and `batch_id`, "" = nobody knows yet."""

    description: JobDescription
    seen: Mapping[str, tuple[int, int]] | None
    batch_id: str = ""


class CopyFolders:
    """Keeps one folder per copy, by its name, below `root`; what is in them is for their owner's eyes alone."""

    def __init__(self, root: Path, bounds: Bounds) -> None:
        self._root = root
        self._bounds = bounds

    def path_of(self, name: str) -> Path:
        """Return the folder of a copy; raises WorldError for a name that cannot be one of a folder."""
        if not name or "/" in name or name.startswith("."):
            raise WorldError(f"{name!r} is not the name of a copy", transient=False)
        return self._root / name

    def has(self, name: str) -> bool:
        """Return whether the folder of a copy is here."""
        return self.path_of(name).is_dir()

    def check(self) -> None:
        """Raise WorldError unless what the folders lie in is here: a shared one may be away for a while."""
        if not self._root.parent.is_dir():
            raise WorldError(f"{self._root.parent}: is not there", transient=True)

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
            await asyncio.to_thread(self._made, folder)
            for file in copy.description.input_files:
                target = inside(folder / WORK_NAME, file.name)
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                await files.fetch(copy.job_id, file, target)
                target.chmod(0o700 if file.executable else 0o600)
            await asyncio.to_thread(_fill, folder, copy, queue)
        except OSError as error:
            raise WorldError(f"{folder}: {error.strerror or error}", transient=True) from error
        except (WorldError, JobAtFaultError):
            raise
        except PilotageError as error:
            raise WorldError(f"its input did not arrive: {error}", transient=True) from error
        return folder

    def _made(self, folder: Path) -> None:
        """Make the folder anew: what is left of one that was never completed belongs to nobody."""
        if folder.exists():
            remove_tree(folder)
        # What it lies in has to be there: elsewhere no other router would find it.
        self._root.mkdir(mode=0o700, exist_ok=True)
        for each in (folder, folder / WORK_NAME, folder / TEMPORARY_NAME):
            each.mkdir(mode=0o700)

    def record(self, name: str) -> CopyRecord | None:
        """Return what is kept of a copy; None = it was never made ready here."""
        try:
            return _record_in((self.path_of(name) / _RECORD_NAME).read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, name: str, batch_id: str) -> None:
        """Keep what the batch system calls a copy that was made ready; raises WorldError."""
        path = self.path_of(name) / _RECORD_NAME
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            _write(path, json.dumps({**fields, "batch_id": batch_id}))
        except (OSError, ValueError) as error:
            raise WorldError(f"{path}: {error}", transient=True) from error

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
            left = tuple(self._bounded(name, path.resolve()) for name, path in found.files.items())
        except OSError as error:
            raise WorldError(f"{work}: the output cannot be read: {error}", transient=True) from error
        if found.notes:
            log.info("output of a copy is not whole", copy=name, notes=found.notes)
        return left

    def _bounded(self, name: str, path: Path) -> LeftFile:
        is_long = size_of(path) > self._bounds.file_bytes
        if is_long and not cut(path, self._bounds.file_bytes):
            raise OSError(f"{path} cannot be cut to {self._bounds.file_bytes} bytes")
        return LeftFile(name, path, truncated=is_long)

    def remove(self, name: str) -> None:
        """Remove the folder of a copy, if it is there."""
        folder = self.path_of(name)
        if folder.exists():
            remove_tree(folder)


def _fill(folder: Path, copy: CopyRequest, queue: QueueId) -> None:
    """Write the scripts and all else that a copy is given into its folder, which has its input files."""
    description, work = copy.description, folder / WORK_NAME
    for name in stream_names(description):
        inside(work, name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if description.stdin not in (None, "", NULL) and not inside(work, str(description.stdin)).is_file():
        raise JobAtFaultError(f"its standard input {description.stdin} is not among its files")
    place = CopyPlace(str(queue), copy.route, _has_program(description, work), _proxy(copy, folder))
    try:
        script = job_script(description, _identity(copy), place)
    except ValueError as error:
        raise JobAtFaultError(f"its arguments cannot be taken apart: {error}") from error
    _write(folder / JOB_NAME, script)
    _write(folder / WRAPPER_NAME, wrapper_script(), 0o700)
    _write(folder / AD_NAME, ad_lines(ad_text(copy.ad)), 0o400)
    seen = plain_files(work) if description.new_files_come_back else None
    _write(folder / _RECORD_NAME, _record_text(CopyRecord(description, seen)))


def _has_program(description: JobDescription, work: Path) -> bool:
    """Return whether the job's program lies in its folder, where it may be executed then."""
    program = description.executable
    if program.startswith("/"):
        return False
    here = inside(work, program.removeprefix("./"))
    if here.is_file():
        here.chmod(here.stat().st_mode | 0o700)
        return True
    if "/" in program:
        raise JobAtFaultError(f"there is no program {program} among the job's files")
    return False


def _proxy(copy: CopyRequest, folder: Path) -> str:
    """Return where in its folder the copy has the X.509 proxy of its route, "" = the route gives none."""
    if not copy.shared_proxy:
        return ""
    content = _read_secret(Path(copy.shared_proxy))
    with os.fdopen(os.open(folder / PROXY_NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    return PROXY_NAME


def _read_secret(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MOST_PROXY_BYTES)


def _identity(copy: CopyRequest) -> JobIdentity:
    numbers = {fold(name): value for name, value in copy.ad.items() if isinstance(value, int)}
    cluster, process = numbers.get("clusterid", copy.job_id), numbers.get("procid", 0)
    return JobIdentity(copy.name, copy.job_id, copy.attempt, cluster, process, copy.owner, copy.vo)


def _record_text(record: CopyRecord) -> str:
    description = record.description
    return json.dumps(
        {
            "stdout": description.stdout,
            "stderr": description.stderr,
            "output_files": description.output_files,
            "seen": record.seen,
            "batch_id": record.batch_id,
        }
    )


def _record_in(text: str) -> CopyRecord:
    fields: Any = json.loads(text)
    seen = fields["seen"] and {name: (size, changed) for name, (size, changed) in fields["seen"].items()}
    description = JobDescription(
        executable="",
        stdout=fields["stdout"],
        stderr=fields["stderr"],
        output_files=tuple(fields["output_files"]),
        new_files_come_back=seen is not None,
    )
    return CopyRecord(description, seen, fields["batch_id"])


def _write(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file that only its owner can read, in place of an earlier one."""
    new = path.with_name(f"{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)


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
