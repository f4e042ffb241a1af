"""A real server at work: long polls, commands, feeds, files."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest

from pilotage.clock import boot_time_s
from pilotage.errors import InvalidInputError, NotFoundError, PermissionDeniedError
from pilotage.resource_tree import QueueId
from pilotage.v1 import (
    job_service_pb2,
    job_service_pb2_grpc,
    jobs_pb2,
    matcher_service_pb2,
    matcher_service_pb2_grpc,
    pilot_service_pb2,
    resource_service_pb2,
)
from pilotage_server.core.identity import Role
from support.polls import SOON_S, Polls
from support.server import RunningServer, request_id
from support.wire_grid import QUEUE, WireGrid, a_job


@pytest.fixture
def grid(shared_server: RunningServer) -> Iterator[WireGrid]:
    grid = WireGrid(shared_server)
    grid.put_tree()
    yield grid
    grid.close()


@pytest.fixture
async def polls(grid: WireGrid) -> AsyncIterator[Polls]:
    async with Polls(grid) as polls:
        yield polls


async def test_a_new_job_ends_the_wait_of_as_many_pilots_as_it_needs(grid: WireGrid, polls: Polls) -> None:
    waiting = [await polls.begin(grid.start_pilot()) for _ in range(4)]

    job_ids = await asyncio.to_thread(grid.submit, a_job(), a_job())
    while sum(poll.done() for poll in waiting) < len(job_ids):
        await asyncio.wait([poll for poll in waiting if not poll.done()], return_when=asyncio.FIRST_COMPLETED)

    served = [poll for poll in waiting if poll.done()]
    assert sorted(match.job_id for poll in served for match in poll.result().matches) == job_ids
    assert len(served) == len(job_ids)


async def test_a_job_goes_by_a_pilot_that_may_not_run_it(grid: WireGrid, polls: Polls) -> None:
    small = await polls.begin(grid.start_pilot(QueueId("SITE", "ce1", "short")))
    large = await polls.begin(grid.start_pilot())

    (job_id,) = await asyncio.to_thread(grid.submit, a_job(Memory=3000))

    assert [match.job_id for match in (await large).matches] == [job_id]
    assert not small.done()


async def test_a_burst_finds_every_waiting_pilot(grid: WireGrid, polls: Polls) -> None:
    waiting = [await polls.begin(grid.start_pilot()) for _ in range(8)]

    job_ids = await asyncio.to_thread(grid.submit, *(a_job(Memory=1000 + number) for number in range(8)))
    answers = await asyncio.gather(*waiting)

    assert sorted(match.job_id for answer in answers for match in answer.matches) == job_ids


async def test_a_cancelled_poll_takes_no_job_with_it(grid: WireGrid, polls: Polls) -> None:
    gone, staying = grid.start_pilot(), grid.start_pilot()
    (await polls.begin(gone)).cancel()
    there = await polls.begin(staying)

    (job_id,) = await asyncio.to_thread(grid.submit, a_job())

    assert [match.job_id for match in (await there).matches] == [job_id]


async def test_a_drain_ends_the_wait(grid: WireGrid, polls: Polls) -> None:
    pilot = grid.start_pilot()
    poll = await polls.begin(pilot)

    drain = pilot_service_pb2.DrainPilotsRequest(request_id=request_id(), stamps=[pilot.stamp], reason="maintenance")
    await asyncio.to_thread(grid.pilots.DrainPilots, drain)

    commands = (await poll).commands
    assert [command.drain.reason for command in commands] == ["maintenance"]


async def test_the_removal_of_its_job_ends_the_wait_of_a_pilot(grid: WireGrid, polls: Polls) -> None:
    pilot = grid.start_pilot()
    (job_id,) = grid.submit(a_job())
    assert [match.job_id for match in pilot.ask().matches] == [job_id]
    assert pilot.report(job_id).accepted
    poll = await polls.begin(pilot)

    await asyncio.to_thread(grid.change, job_service_pb2.JOB_CHANGE_REMOVE, job_id)

    assert [(command.kill.job_id, command.kill.attempt) for command in (await poll).commands] == [(job_id, 1)]


async def test_a_lifted_ban_ends_the_wait(grid: WireGrid, polls: Polls) -> None:
    grid.resources.Ban(resource_service_pb2.BanRequest(request_id=request_id(), site="SITE", reason="broken"))
    (job_id,) = grid.submit(a_job())
    pilot = grid.start_pilot()
    assert not pilot.ask().matches
    poll = await polls.begin(pilot)

    await asyncio.to_thread(
        grid.resources.Unban, resource_service_pb2.UnbanRequest(request_id=request_id(), site="SITE")
    )

    assert [match.job_id for match in (await poll).matches] == [job_id]


async def test_a_new_tree_ends_the_wait(grid: WireGrid, polls: Polls) -> None:
    (job_id,) = grid.submit(a_job(Memory=5000))
    poll = await polls.begin(grid.start_pilot())

    await asyncio.to_thread(
        grid.put_tree, '{"sites": {"SITE": {"ces": {"ce1": {"queues": {"long": {"Memory": 8000}}}}}}}'
    )

    assert [match.job_id for match in (await poll).matches] == [job_id]


def test_a_poll_without_work_ends_empty_and_before_its_deadline(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    started = boot_time_s()

    answer = pilot.matcher.RequestJobs(pilot.request(wait_s=3600), timeout=1.5)

    assert not answer.matches
    assert 0.3 < boot_time_s() - started < 1.5


def test_a_request_whose_answer_was_lost_gets_the_same_jobs(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    job_ids = grid.submit(a_job(), a_job())
    id_ = request_id()

    first, again = pilot.ask(id_=id_), pilot.ask(id_=id_)

    assert [match.job_id for match in first.matches] == job_ids[:1]
    assert first.matches[0].lease_s > again.matches[0].lease_s > first.matches[0].lease_s - SOON_S
    again.matches[0].lease_s = first.matches[0].lease_s
    assert first == again
    assert grid.state_of(job_ids[1]) == "WAITING"


def test_an_answer_that_is_given_again_grants_no_lease_that_has_ended_meanwhile(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    (job_id,) = grid.submit(a_job())
    id_ = request_id()
    assert pilot.ask(id_=id_).matches[0].lease_s > 0
    grid.change(job_service_pb2.JOB_CHANGE_HOLD, job_id)

    assert pilot.ask(id_=id_).matches[0].lease_s == 0


def test_a_heartbeat_that_comes_again_renews_again_and_grants_nothing_that_was_taken_away(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    running, other = grid.submit(a_job(), a_job())
    pilot.ask()
    pilot.ask()
    leases = [matcher_service_pb2.HeldLease(job_id=job_id, attempt=1) for job_id in (running, other)]
    report = jobs_pb2.JobReport(job_id=running, attempt=1, state=jobs_pb2.JOB_STATE_RUNNING)
    beat = {"leases": leases, "reports": [report], "request_id": request_id()}
    first = pilot.heartbeat(**beat)
    grid.change(job_service_pb2.JOB_CHANGE_HOLD, other)

    again = pilot.heartbeat(**beat)

    assert [lease.job_id for lease in first.renewed] == [running, other]
    assert [lease.job_id for lease in again.renewed] == [running]
    assert [lease.job_id for lease in again.lost] == [other]
    assert first.results == again.results


def test_an_empty_answer_is_not_kept(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    id_ = request_id()
    assert not pilot.ask(id_=id_).matches
    (job_id,) = grid.submit(a_job())

    assert [match.job_id for match in pilot.ask(id_=id_).matches] == [job_id]


def test_only_a_pilot_asks_for_work(grid: WireGrid) -> None:
    stub = matcher_service_pb2_grpc.MatcherServiceStub(grid.channel(grid.server.token(Role.OPERATOR)))

    with pytest.raises(PermissionDeniedError):
        stub.RequestJobs(matcher_service_pb2.RequestJobsRequest(request_id="1"))


def test_an_unknown_queue_is_answered_as_unknown(grid: WireGrid) -> None:
    (job_id,) = grid.submit(a_job(Memory=2000))
    request = matcher_service_pb2.GetSubmitPoolsForQueueRequest()
    for queue in ("long", "short", "nowhere"):
        request.queues.add(site="SITE", ce="ce1", queue=queue)

    director = matcher_service_pb2_grpc.MatcherServiceStub(grid.channel(grid.server.token(Role.AGENT)))
    answer = director.GetSubmitPoolsForQueue(request)

    (pool,) = {job.pool for job in grid.jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=[job_id])).jobs}
    assert [(pools.known, pool in pools.pool_ids) for pools in answer.queues] == [
        (True, True),
        (True, False),
        (False, False),
    ]


def test_every_fault_of_a_pilots_report_has_its_place(grid: WireGrid) -> None:
    report = jobs_pb2.JobReport(job_id=0, attempt=1, cpu_s=-1)
    report.output_files.add(name="../up", checksum="x", size=1)
    request = matcher_service_pb2.ReportStateRequest(request_id="1", reports=[report])

    with pytest.raises(InvalidInputError) as refused:
        grid.start_pilot().matcher.ReportState(request)

    assert {violation.where for violation in refused.value.violations} == {
        "reports[0].job_id",
        "reports[0].state",
        "reports[0].cpu_s",
        "reports[0].output_files[0].name",
        "reports[0].output_files[0].checksum",
    }


async def test_waiting_for_jobs_ends_with_the_last_of_them(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    job_ids = grid.submit(a_job(), a_job())
    request = job_service_pb2.WaitForJobsRequest(job_ids=job_ids, timeout_s=SOON_S)
    wait = asyncio.create_task(asyncio.to_thread(grid.jobs.WaitForJobs, request, timeout=SOON_S + 20))

    for _ in job_ids:
        (match,) = (await asyncio.to_thread(pilot.ask)).matches
        assert not wait.done()
        await asyncio.to_thread(pilot.finish, match.job_id)

    answer = await wait
    assert answer.all_final
    assert [job.state for job in answer.jobs] == [jobs_pb2.JOB_STATE_DONE] * 2


def test_waiting_for_jobs_ends_at_its_time_with_those_that_are_not_final(grid: WireGrid) -> None:
    job_ids = grid.submit(a_job())

    answer = grid.jobs.WaitForJobs(job_service_pb2.WaitForJobsRequest(job_ids=job_ids, timeout_s=0.05))

    assert not answer.all_final
    assert answer.jobs[0].state == jobs_pb2.JOB_STATE_WAITING


async def test_the_feed_is_followed_and_resumed_without_a_gap(grid: WireGrid) -> None:
    grid.submit(a_job())
    async with grid.server.async_channel(grid.server.token(vo=grid.vo)) as channel:
        stub: job_service_pb2_grpc.JobServiceAsyncStub = job_service_pb2_grpc.JobServiceStub(channel)
        until_now = job_service_pb2.WatchEventsRequest(until_now=True)
        first = [page async for page in stub.WatchEvents(until_now)]
        follow = stub.WatchEvents(job_service_pb2.WatchEventsRequest(after_position=first[-1].position))
        pages = aiter(follow)
        assert not (await anext(pages)).events
        (job_id,) = await asyncio.to_thread(grid.submit, a_job())
        page = await anext(pages)

    assert [event.job_id for event in page.events] == [job_id]
    assert page.position > first[-1].position


def test_a_user_sees_his_own_events_only(grid: WireGrid) -> None:
    grid.submit(a_job())
    request = job_service_pb2.WatchEventsRequest(until_now=True)

    assert any(page.events for page in grid.jobs.WatchEvents(request))
    assert not any(page.events for page in grid.user("mallory").WatchEvents(request))


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


def test_no_job_is_given_twice_to_pilots_that_ask_at_once(grid: WireGrid) -> None:
    job_ids = grid.submit(*(a_job() for _ in range(20)))
    pilots = [grid.start_pilot() for _ in range(5)]

    async def ask_all() -> list[int]:
        answers = await asyncio.gather(*(asyncio.to_thread(pilot.ask) for _ in range(5) for pilot in pilots))
        return [match.job_id for answer in answers for match in answer.matches]

    given = Counter(asyncio.run(ask_all()))

    assert given == Counter(job_ids)


def test_registering_again_with_the_same_id_gives_the_same_pilots(grid: WireGrid) -> None:
    request = pilot_service_pb2.RegisterPilotsRequest(request_id=request_id(), count=3)
    request.queue.site, request.queue.ce, request.queue.queue = QUEUE.site, QUEUE.ce, QUEUE.queue

    first, again = grid.pilots.RegisterPilots(request), grid.pilots.RegisterPilots(request)

    assert [pilot.stamp for pilot in first.pilots] == [pilot.stamp for pilot in again.pilots]
    assert all(pilot.token for pilot in again.pilots)
