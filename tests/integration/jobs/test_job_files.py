"""Files that go up to a real server and come down from it."""

from __future__ import annotations

import hashlib

import pytest

from pilotage.errors import InvalidInputError, NotFoundError
from pilotage.v1 import job_service_pb2, job_service_pb2_grpc, jobs_pb2
from support.server import request_id
from support.wire_grid import WireGrid, a_job


def upload(
    stub: job_service_pb2_grpc.JobServiceStub, content: bytes, *, checksum: str = "", size: int | None = None
) -> str:
    named = checksum or hashlib.sha256(content).hexdigest()
    pieces = [
        job_service_pb2.UploadFileRequest(checksum=named, size=len(content) if size is None else size),
        *(job_service_pb2.UploadFileRequest(content=content[at : at + 2**19]) for at in range(0, len(content), 2**19)),
    ]
    return stub.UploadFile(iter(pieces)).checksum


def download(stub: job_service_pb2_grpc.JobServiceStub, job_id: int, checksum: str) -> bytes:
    request = job_service_pb2.DownloadFileRequest(job_id=job_id, checksum=checksum)
    return b"".join(piece.content for piece in stub.DownloadFile(request))


@pytest.mark.parametrize("size", [0, 1, 3 * 2**20 + 7])
def test_an_input_file_goes_up_and_comes_down_where_the_job_runs(grid: WireGrid, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    checksum = hashlib.sha256(content).hexdigest()
    missing = job_service_pb2.FindMissingFilesRequest(checksums=[checksum])
    assert list(grid.jobs.FindMissingFiles(missing).missing) == [checksum]

    assert upload(grid.jobs, content) == checksum
    assert not grid.jobs.FindMissingFiles(missing).missing
    description = jobs_pb2.JobDescription(executable="x")
    description.input_files.add(name="data", checksum=checksum, size=size)
    submitted = grid.jobs.SubmitJobs(
        job_service_pb2.SubmitJobsRequest(request_id=request_id(), descriptions=[description])
    )
    pilot = grid.start_pilot()
    (match,) = pilot.ask().matches

    pilots_stub = job_service_pb2_grpc.JobServiceStub(grid.channel(pilot.token))
    assert download(pilots_stub, match.job_id, checksum) == content
    assert download(grid.jobs, submitted.job_ids[0], checksum) == content


def test_what_a_job_left_is_its_owners_alone(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    (job_id,) = grid.submit(a_job())
    pilot.ask()
    pilot.finish(job_id, outputs={"out/log": b"done\n"})

    outputs = grid.jobs.ListOutputFiles(job_service_pb2.ListOutputFilesRequest(job_id=job_id))

    assert [(file.name, file.size) for file in outputs.files] == [("out/log", 5)]
    checksum = outputs.files[0].checksum
    assert download(grid.jobs, job_id, checksum) == b"done\n"
    with pytest.raises(NotFoundError):
        download(grid.user("mallory"), job_id, checksum)


def test_an_upload_that_is_not_what_it_says_is_refused(grid: WireGrid) -> None:
    with pytest.raises(InvalidInputError, match="checksum"):
        upload(grid.jobs, b"content", checksum="0" * 64)
    with pytest.raises(InvalidInputError, match="more content"):
        upload(grid.jobs, b"content", size=3)
    with pytest.raises(InvalidInputError, match="missing"):
        upload(grid.jobs, b"content", size=30)
    with pytest.raises(InvalidInputError, match="size"):
        upload(grid.jobs, b"", size=2**50)
    with pytest.raises(InvalidInputError, match="first message"):
        grid.jobs.UploadFile(iter([]))
