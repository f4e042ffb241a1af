"""What a real server answers its pilots: jobs once to one of them, the same again to the same request."""

from __future__ import annotations

import asyncio
from collections import Counter

import jwt
import pytest

from pilotage.errors import InvalidInputError, PermissionDeniedError
from pilotage.v1 import job_service_pb2, jobs_pb2, matcher_service_pb2, matcher_service_pb2_grpc, pilot_service_pb2
from pilotage_server.core.identity import Role
from support.server import request_id
from support.waiting_calls import SOON_S
from support.wire_grid import QUEUE, WireGrid, a_job


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


def test_a_renewed_credential_is_that_of_the_same_pilot(grid: WireGrid) -> None:
    request = pilot_service_pb2.RegisterPilotsRequest(request_id=request_id(), count=1, vos=["lhcb"])
    request.queue.site, request.queue.ce, request.queue.queue = QUEUE.site, QUEUE.ce, QUEUE.queue
    (pilot,) = grid.pilots.RegisterPilots(request).pilots
    renew = pilot_service_pb2.RenewCredentialsRequest(stamps=[pilot.stamp], lifetime_s=9000)
    (renewed,) = grid.pilots.RenewCredentials(renew).pilots
    old, new = (jwt.decode(each.token, options={"verify_signature": False}) for each in (pilot, renewed))
    changed = {"iat", "exp", "jti"}
    assert {name: old[name] for name in old.keys() - changed} == {name: new[name] for name in new.keys() - changed}
    assert new["exp"] - new["iat"] == 9000


@pytest.mark.parametrize("stamps", [[], ["stamp"] * 1001])
def test_credentials_of_none_and_of_too_many_are_not_renewed(grid: WireGrid, stamps: list[str]) -> None:
    with pytest.raises(InvalidInputError, match="stamps"):
        grid.pilots.RenewCredentials(pilot_service_pb2.RenewCredentialsRequest(stamps=stamps))
