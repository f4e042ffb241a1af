"""Files of jobs over the wire: uploads of what the server lacks, downloads that are checked and written whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from pilotage.errors import InvalidInputError, Violation, WorldError
from pilotage.file_names import MOST_PARTS, is_too_deep
from pilotage.job_description import InputFile, JobDescription
from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage_client.whole_files import whole_file

PIECE_BYTES = 256 * 1024
LONGEST_STREAM_S = 24 * 3600.0
"""How long a call may take that streams: a file's upload or download, the feed of events."""


def upload_missing(jobs: JobServiceStub, descriptions: Sequence[JobDescription]) -> None:
    """Store every input file that the server does not have yet; raises WorldError where one cannot be read."""
    by_checksum = {
        file.checksum: file for description in descriptions for file in description.input_files if file.checksum
    }
    if not by_checksum:
        return
    asked = job_service_pb2.FindMissingFilesRequest(checksums=sorted(by_checksum))
    for checksum in jobs.FindMissingFiles(asked).missing:
        _upload(jobs, by_checksum[checksum])


def _upload(jobs: JobServiceStub, file: InputFile) -> None:
    assert file.source is not None, "a file with a checksum was read from somewhere"
    jobs.UploadFile(_pieces(file), timeout=LONGEST_STREAM_S)


def _pieces(file: InputFile) -> Iterator[job_service_pb2.UploadFileRequest]:
    yield job_service_pb2.UploadFileRequest(checksum=file.checksum or "", size=file.size)
    try:
        with open(file.source or "", "rb") as source:
            while piece := source.read(PIECE_BYTES):
                yield job_service_pb2.UploadFileRequest(content=piece)
    except OSError as error:
        raise WorldError(f"{file.source} cannot be read: {error.strerror}", transient=False) from error


def download(jobs: JobServiceStub, job_id: int, file: jobs_pb2.OutputFile) -> Iterator[bytes]:
    """Yield a file's content piece by piece; raises WorldError when it does not have the checksum promised."""
    digest = hashlib.sha256()
    asked = job_service_pb2.DownloadFileRequest(job_id=job_id, checksum=file.checksum)
    for piece in jobs.DownloadFile(asked, timeout=LONGEST_STREAM_S):
        digest.update(piece.content)
        yield piece.content
    if digest.hexdigest() != file.checksum:
        raise WorldError(f"{file.name} of job {job_id} arrived damaged; ask again", transient=True)


def fetch(jobs: JobServiceStub, job_id: int, files: Iterable[jobs_pb2.OutputFile], folder: Path) -> list[Path]:
    """Write a job's files below `folder`, each whole or not at all, and return their paths."""
    return [_fetch_one(jobs, job_id, file, _inside(folder, file.name)) for file in files]


def _fetch_one(jobs: JobServiceStub, job_id: int, file: jobs_pb2.OutputFile, target: Path) -> Path:
    with whole_file(target) as output:
        for piece in download(jobs, job_id, file):
            output.write(piece)
    return target


def _inside(folder: Path, name: str) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise InvalidInputError(Violation(name, "the server names a file outside the job's folder; it is not fetched"))
    if is_too_deep(name):
        raise InvalidInputError(Violation(f"{name:.300}", f"has more than {MOST_PARTS} parts; it is not fetched"))
    return folder / path
