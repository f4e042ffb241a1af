"""Long polls of pilots and users at a running server, and the events that end them."""

from __future__ import annotations

import asyncio

from pilotage.clock import boot_time_s
from pilotage.resources.tree import QueueId
from pilotage.v1 import job_service_pb2, jobs_pb2, pilot_service_pb2, resource_service_pb2
from support.long_polls import POLL_TIMEOUT_S, PendingPolls
from support.server import request_id
from support.wire_grid import WireGrid, a_job


async def test_new_jobs_end_the_wait_of_as_many_pilots(grid: WireGrid, polls: PendingPolls) -> None:
    waiting = [await polls.begin(grid.start_pilot()) for _ in range(4)]

    job_ids = await asyncio.to_thread(grid.submit, a_job(), a_job())
    while sum(poll.done() for poll in waiting) < len(job_ids):
        await asyncio.wait([poll for poll in waiting if not poll.done()], return_when=asyncio.FIRST_COMPLETED)

    answered = [poll for poll in waiting if poll.done()]
    assert sorted(match.job_id for poll in answered for match in poll.result().matches) == job_ids
    assert len(answered) == len(job_ids)


async def test_job_wakes_only_pilots_that_may_run_it(grid: WireGrid, polls: PendingPolls) -> None:
    small = await polls.begin(grid.start_pilot(QueueId("SITE", "ce1", "short")))
    large = await polls.begin(grid.start_pilot())

    (job_id,) = await asyncio.to_thread(grid.submit, a_job(Memory=3000))

    assert [match.job_id for match in (await large).matches] == [job_id]
    assert not small.done()


async def test_burst_of_jobs_reaches_all_waiting_pilots(grid: WireGrid, polls: PendingPolls) -> None:
    waiting = [await polls.begin(grid.start_pilot()) for _ in range(8)]

    job_ids = await asyncio.to_thread(grid.submit, *(a_job(Memory=1000 + number) for number in range(8)))
    answers = await asyncio.gather(*waiting)

    assert sorted(match.job_id for answer in answers for match in answer.matches) == job_ids


async def test_cancelled_poll_takes_no_job(grid: WireGrid, polls: PendingPolls) -> None:
    cancelled, other = grid.start_pilot(), grid.start_pilot()
    (await polls.begin(cancelled)).cancel()
    other_poll = await polls.begin(other)

    (job_id,) = await asyncio.to_thread(grid.submit, a_job())

    assert [match.job_id for match in (await other_poll).matches] == [job_id]


async def test_drain_ends_the_wait(grid: WireGrid, polls: PendingPolls) -> None:
    pilot = grid.start_pilot()
    poll = await polls.begin(pilot)

    drain = pilot_service_pb2.DrainPilotsRequest(request_id=request_id(), stamps=[pilot.stamp], reason="maintenance")
    await asyncio.to_thread(grid.pilots.DrainPilots, drain)

    commands = (await poll).commands
    assert [command.drain.reason for command in commands] == ["maintenance"]


async def test_revocation_ends_the_wait(grid: WireGrid, polls: PendingPolls) -> None:
    pilot = grid.start_pilot()
    poll = await polls.begin(pilot)

    revocation = pilot_service_pb2.RevokePilotsRequest(request_id=request_id(), stamps=[pilot.stamp], reason="stolen")
    await asyncio.to_thread(grid.pilots.RevokePilots, revocation)

    (command,) = (await poll).commands
    assert "credential of the pilot has ended (revoked by olga: stolen)" in command.drain.reason


async def test_removal_of_its_job_ends_the_wait_of_a_pilot(grid: WireGrid, polls: PendingPolls) -> None:
    pilot = grid.start_pilot()
    (job_id,) = grid.submit(a_job())
    assert [match.job_id for match in pilot.request_jobs().matches] == [job_id]
    assert pilot.report(job_id).accepted
    poll = await polls.begin(pilot)

    await asyncio.to_thread(grid.change, job_service_pb2.JOB_CHANGE_REMOVE, job_id)

    assert [(command.kill.job_id, command.kill.attempt) for command in (await poll).commands] == [(job_id, 1)]


async def test_lifted_ban_ends_the_wait(grid: WireGrid, polls: PendingPolls) -> None:
    grid.resources.Ban(resource_service_pb2.BanRequest(request_id=request_id(), site="SITE", reason="broken"))
    (job_id,) = grid.submit(a_job())
    pilot = grid.start_pilot()
    assert not pilot.request_jobs().matches
    poll = await polls.begin(pilot)

    await asyncio.to_thread(
        grid.resources.Unban, resource_service_pb2.UnbanRequest(request_id=request_id(), site="SITE")
    )

    assert [match.job_id for match in (await poll).matches] == [job_id]


async def test_new_tree_ends_the_wait(grid: WireGrid, polls: PendingPolls) -> None:
    (job_id,) = grid.submit(a_job(Memory=5000))
    poll = await polls.begin(grid.start_pilot())

    await asyncio.to_thread(
        grid.put_tree, '{"sites": {"SITE": {"ces": {"ce1": {"queues": {"long": {"Memory": 8000}}}}}}}'
    )

    assert [match.job_id for match in (await poll).matches] == [job_id]


def test_poll_without_jobs_ends_empty_before_its_deadline(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    started = boot_time_s()

    answer = pilot.matcher.RequestJobs(pilot.request(wait_s=3600), timeout=4)

    assert not answer.matches
    assert 0.3 < boot_time_s() - started < 4


async def test_wait_for_jobs_ends_with_the_last_job(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    job_ids = grid.submit(a_job(), a_job())
    request = job_service_pb2.WaitForJobsRequest(job_ids=job_ids, timeout_s=POLL_TIMEOUT_S)
    wait = asyncio.create_task(asyncio.to_thread(grid.jobs.WaitForJobs, request, timeout=POLL_TIMEOUT_S + 20))

    for _ in job_ids:
        (match,) = (await asyncio.to_thread(pilot.request_jobs)).matches
        assert not wait.done()
        await asyncio.to_thread(pilot.finish, match.job_id)

    answer = await wait
    assert answer.all_final
    assert [job.state for job in answer.jobs] == [jobs_pb2.JOB_STATE_DONE] * 2


async def test_wait_for_jobs_includes_jobs_that_ended_before(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    job_ids = grid.submit(a_job(), a_job())
    pilot.finish(pilot.request_jobs().matches[0].job_id)
    (last,) = pilot.request_jobs().matches
    request = job_service_pb2.WaitForJobsRequest(job_ids=job_ids, timeout_s=3600)
    wait = asyncio.create_task(asyncio.to_thread(grid.jobs.WaitForJobs, request, timeout=POLL_TIMEOUT_S))
    # The start of the wait cannot be observed; 20 other calls give it time to begin.
    for _ in range(20):
        await asyncio.to_thread(pilot.request_jobs, cpus=100)

    finished_s = boot_time_s()
    await asyncio.to_thread(pilot.finish, last.job_id)

    assert (await wait).all_final
    assert boot_time_s() - finished_s < POLL_TIMEOUT_S / 2


def test_wait_for_jobs_ends_at_its_timeout(grid: WireGrid) -> None:
    job_ids = grid.submit(a_job())

    answer = grid.jobs.WaitForJobs(job_service_pb2.WaitForJobsRequest(job_ids=job_ids, timeout_s=0.05))

    assert not answer.all_final
    assert answer.jobs[0].state == jobs_pb2.JOB_STATE_WAITING
