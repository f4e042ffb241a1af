"""Job files and the event feed of a running server."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib

import pytest

from pilotage.errors import InvalidInputError, NotFoundError
from pilotage.v1 import job_service_pb2, job_service_pb2_grpc, jobs_pb2
from support.server import request_id
from support.wire_grid import WireGrid, a_job, submission


def upload(
    stub: job_service_pb2_grpc.JobServiceStub, content: bytes, *, checksum: str = "", size: int | None = None
) -> str:
    declared = checksum or hashlib.sha256(content).hexdigest()
    messages = [
        job_service_pb2.UploadFileRequest(checksum=declared, size=len(content) if size is None else size),
        *(job_service_pb2.UploadFileRequest(content=content[at : at + 2**19]) for at in range(0, len(content), 2**19)),
    ]
    return stub.UploadFile(iter(messages)).checksum


def download(stub: job_service_pb2_grpc.JobServiceStub, job_id: int, checksum: str) -> bytes:
    request = job_service_pb2.DownloadFileRequest(job_id=job_id, checksum=checksum)
    return b"".join(message.content for message in stub.DownloadFile(request))


@pytest.mark.parametrize("size", [0, 1, 3 * 2**20 + 7])
def test_input_file_is_uploaded_and_downloaded_by_the_pilot(grid: WireGrid, size: int) -> None:
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
    (match,) = pilot.request_jobs().matches

    pilots_stub = job_service_pb2_grpc.JobServiceStub(grid.channel(pilot.token))
    assert download(pilots_stub, match.job_id, checksum) == content
    assert download(grid.jobs, submitted.job_ids[0], checksum) == content


def test_output_files_are_visible_to_their_owner_only(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    (job_id,) = grid.submit(a_job())
    pilot.request_jobs()
    pilot.finish(job_id, outputs={"out/log": b"done\n"})

    outputs = grid.jobs.ListOutputFiles(job_service_pb2.ListOutputFilesRequest(job_id=job_id))

    assert [(file.name, file.size) for file in outputs.files] == [("out/log", 5)]
    checksum = outputs.files[0].checksum
    assert download(grid.jobs, job_id, checksum) == b"done\n"
    with pytest.raises(NotFoundError):
        download(grid.user("mallory"), job_id, checksum)


def test_ignored_statements_stay_visible(grid: WireGrid) -> None:
    ignored = ("universe = java", 'image = "ignored":["a"]')
    first, second, plain = grid.submit(
        dataclasses.replace(a_job(), ignored=ignored, count=2),
        dataclasses.replace(a_job(), arguments='\'"ignored":["\'', attributes={"ignored": ("x",)}),
    )
    expected = {first: [*ignored], second: [*ignored], plain: []}
    got = grid.jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=[*expected])).jobs
    listed = grid.jobs.ListJobs(job_service_pb2.ListJobsRequest()).jobs
    waited = grid.jobs.WaitForJobs(job_service_pb2.WaitForJobsRequest(job_ids=[*expected])).jobs
    explained = [grid.jobs.ExplainJob(job_service_pb2.ExplainJobRequest(job_id=each)).job for each in expected]
    for jobs in (got, listed, waited, explained):
        assert {job.id: list(job.ignored) for job in jobs} == expected


def test_submission_warns_of_requests_that_no_queue_fulfils(grid: WireGrid) -> None:
    grid.put_tree()
    large = dataclasses.replace(a_job(), request_memory_mib=10 * 1024 * 1024)
    elsewhere = dataclasses.replace(a_job(), sites=("SITES",))
    warnings = grid.jobs.SubmitJobs(submission([a_job(Memroy=1000), large, elsewhere])).warnings
    assert [warning for warning in warnings if "no queue satisfies" not in warning] == [
        "no queue states the parameter Memroy; did you mean Memory? (descriptions[0])",
        "Memory: no queue offers 10485760 MiB, the largest offers 4000 MiB; the job waits until one does"
        " (descriptions[1])",
        "Site: the tree has no site sites; did you mean SITE? (descriptions[2])",
    ]


def test_upload_that_differs_from_its_header_is_rejected(grid: WireGrid) -> None:
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


async def test_event_feed_resumes_without_gaps(grid: WireGrid) -> None:
    grid.submit(a_job())
    async with grid.server.async_channel(grid.server.token(vo=grid.vo)) as channel:
        stub: job_service_pb2_grpc.JobServiceAsyncStub = job_service_pb2_grpc.JobServiceStub(channel)
        until_now = job_service_pb2.WatchEventsRequest(until_now=True)
        past = [page async for page in stub.WatchEvents(until_now)]
        stream = stub.WatchEvents(job_service_pb2.WatchEventsRequest(after_position=past[-1].position))
        pages = aiter(stream)
        assert not (await anext(pages)).events
        (job_id,) = await asyncio.to_thread(grid.submit, a_job())
        page = await anext(pages)

    assert [event.job_id for event in page.events] == [job_id]
    assert page.position > past[-1].position


def test_event_feed_shows_only_the_users_own_events(grid: WireGrid) -> None:
    grid.submit(a_job())
    request = job_service_pb2.WatchEventsRequest(until_now=True)

    assert any(page.events for page in grid.jobs.WatchEvents(request))
    assert not any(page.events for page in grid.user("mallory").WatchEvents(request))
