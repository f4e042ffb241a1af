"""Files on the user's disk: bounded reads, atomic writes, private files, tree files, and transfers of job files."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from pilotage.errors import InvalidInputError, InvalidTreeError, Violation, WorldError
from pilotage.job_description import InputFile, JobDescription
from pilotage.jobs.file_names import MAX_PARTS, is_too_deep
from pilotage.v1 import job_service_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage_client.models import JobFile

if TYPE_CHECKING:
    from pilotage.resources.tree import ResourceTree


@contextmanager
def whole_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when the block succeeds; raises WorldError if it cannot be written."""
    partial = path.with_name(f".{path.name}.part{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as output:
            yield output
        partial.replace(path)
    except OSError as error:
        raise WorldError(f"{path} cannot be written: {error.strerror}", transient=False) from error
    finally:
        with suppress(OSError):
            partial.unlink()


PIECE_BYTES = 256 * 1024
LONGEST_STREAM_S = 24 * 3600.0
"""The deadline of a streaming call: an upload, a download, the feed of events."""


def upload_missing(
    jobs: JobServiceStub,
    descriptions: Sequence[JobDescription],
    report: Callable[[int, int], None] = lambda _sent, _total: None,
) -> None:
    """Upload the input files that the server lacks; raises WorldError if one cannot be read.

    `report` gets the bytes that were sent, and those of all missing files.
    """
    by_checksum = {
        file.checksum: file for description in descriptions for file in description.input_files if file.checksum
    }
    if not by_checksum:
        return
    asked = job_service_pb2.FindMissingFilesRequest(checksums=sorted(by_checksum))
    missing = [by_checksum[checksum] for checksum in jobs.FindMissingFiles(asked).missing]
    sent, total = 0, sum(file.size for file in missing)

    def count(size: int) -> None:
        nonlocal sent
        sent += size
        report(sent, total)

    for file in missing:
        assert file.source is not None, "a file with a checksum was read from somewhere"
        jobs.UploadFile(_pieces(file, count), timeout=LONGEST_STREAM_S)


def _pieces(file: InputFile, count: Callable[[int], None]) -> Iterator[job_service_pb2.UploadFileRequest]:
    yield job_service_pb2.UploadFileRequest(checksum=file.checksum or "", size=file.size)
    try:
        with open(file.source or "", "rb") as source:
            while piece := source.read(PIECE_BYTES):
                yield job_service_pb2.UploadFileRequest(content=piece)
                count(len(piece))
    except OSError as error:
        raise WorldError(f"{file.source} cannot be read: {error.strerror}", transient=False) from error


def download(jobs: JobServiceStub, job_id: int, file: JobFile) -> Iterator[bytes]:
    """Yield a file's content piece by piece; raises WorldError at the end if the checksum differs."""
    digest = hashlib.sha256()
    asked = job_service_pb2.DownloadFileRequest(job_id=job_id, checksum=file.checksum)
    for piece in jobs.DownloadFile(asked, timeout=LONGEST_STREAM_S):
        digest.update(piece.content)
        yield piece.content
    if digest.hexdigest() != file.checksum:
        raise WorldError(f"{file.name} of job {job_id} arrived damaged; try again", transient=True)


def fetch(jobs: JobServiceStub, job_id: int, files: Iterable[JobFile], folder: Path) -> list[Path]:
    """Write a job's files below `folder`, each atomically, and return their paths."""
    targets = []
    for file in files:
        target = _inside(folder, file.name)
        with whole_file(target) as output:
            for piece in download(jobs, job_id, file):
                output.write(piece)
        targets.append(target)
    return targets


def _inside(folder: Path, name: str) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise InvalidInputError(Violation(name, "is outside the job's folder; the file is not fetched"))
    if is_too_deep(name):
        raise InvalidInputError(Violation(f"{name:.300}", f"has more than {MAX_PARTS} parts; it is not fetched"))
    return folder / path


LARGEST_BYTES = 64 * 1024 * 1024


def content_of(path: Path) -> bytes:
    """Return a file's content; raises OSError, also if it is larger than `LARGEST_BYTES` or endless (a device)."""
    with path.open("rb") as file:
        content = file.read(LARGEST_BYTES + 1)
    if len(content) > LARGEST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def tree_format(file: Path) -> str:
    """Return the format of a file's suffix; raises InvalidTreeError if it is unknown."""
    from pilotage.resources import formats  # readers of trees load YAML and the like, which few commands need

    return formats.tree_format(file.name).value


def read_tree_file(file: Path) -> str:
    """Return a tree file's text; raises InvalidInputError if it cannot be read."""
    try:
        return content_of(file).decode()
    except OSError as error:
        raise InvalidInputError(Violation(str(file), (error.strerror or "cannot be read").lower())) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InvalidInputError(Violation(f"{file}:{line}", "not a text in UTF-8")) from error


def read_tree(file: Path) -> tuple[ResourceTree, tuple[Violation, ...]]:
    """Return the tree of a file, and warnings; raises InvalidTreeError with every fault, prefixed with the file."""
    from pilotage.resources import formats
    from pilotage.resources.tree_reader import tree_from_mapping

    with faults_of(file):
        return tree_from_mapping(formats.read_tree_text(read_tree_file(file), file.name))


@contextmanager
def faults_of(file: Path) -> Iterator[None]:
    """Prefix the faults of an InvalidTreeError that leaves the block with the file's name."""
    try:
        yield
    except InvalidTreeError as error:
        raise InvalidTreeError(*(Violation(str(file), str(fault)) for fault in error.violations)) from error


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 600 atomically; raises WorldError if it cannot be written."""
    with whole_file(path, mode=0o600) as output:
        output.write(text.encode())
